"""llama.cpp as a peer: the same file, tokens in, logits out, without its sampler and its Python loop."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np

_ERROR = 4  # GGML_LOG_LEVEL_ERROR
_FLOAT32 = 0  # GGML_TYPE_F32
_errors: list[str] = []
# Kept for the life of the process: the library keeps the pointer and logs even when no model is left.
QUIET = llama_cpp.llama_log_callback(lambda level, text, data: _errors.append(text.decode()) if level == _ERROR else None)


class LlamaCpp:
    """One sequence or several, in a cache of its own; `evaluate` runs tokens, `forget` goes back.

    together: the most tokens of one pass. exact_cache: keys and values in float32, in place of float16. Raises
    RuntimeError for a file that llama.cpp does not load, with what it says of it.
    """

    def __init__(
        self,
        path: Path,
        context: int,
        threads: int,
        *,
        flash_attention: bool,
        sequences: int = 1,
        together: int = 512,
        exact_cache: bool = False,
    ) -> None:
        llama_cpp.llama_log_set(QUIET, ctypes.c_void_p(0))
        _errors.clear()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path}: {''.join(_errors).strip()}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = context * sequences
        options.n_batch = options.n_ubatch = self._together = together
        options.n_seq_max = sequences
        options.n_threads = options.n_threads_batch = threads
        options.flash_attn_type = 1 if flash_attention else 0
        if exact_cache:
            options.type_k = options.type_v = _FLOAT32
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        self._batch = llama_cpp.llama_batch_init(512, 0, sequences)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def evaluate(self, tokens: np.ndarray, start: int, *, every: bool = False, sequence: int = 0) -> np.ndarray:
        """Runs tokens of one sequence from position `start` on; the last one's logits, or every one's."""
        made = []
        for first in range(0, len(tokens), self._together):
            block = tokens[first : first + self._together]
            last = first + len(block) == len(tokens)
            self._fill(block, range(start + first, start + first + len(block)), [sequence] * len(block), every, last)
            if every or last:
                made.append(self._logits(len(block) if every else 1, len(block)))
        return np.concatenate(made)

    def step(self, tokens: list[int], position: int) -> None:
        """One token of each of the first sequences, together."""
        self._fill(tokens, [position] * len(tokens), range(len(tokens)), True, True)

    def forget(self, position: int) -> None:
        """Removes `position` and everything after it from every sequence."""
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), -1, position, -1)

    def _fill(self, tokens, positions, sequences, every, last) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence) in enumerate(zip(tokens, positions, sequences, strict=True)):
            batch.token[i], batch.pos[i] = int(token), position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = every or (last and i == len(tokens) - 1)
        if llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")

    def _logits(self, rows: int, tokens: int) -> np.ndarray:
        if rows == 1:
            pointer = llama_cpp.llama_get_logits_ith(self._context, tokens - 1)
            return np.ctypeslib.as_array(pointer, (1, self._vocabulary)).copy()
        pointer = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, (rows, self._vocabulary)).copy()

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)
