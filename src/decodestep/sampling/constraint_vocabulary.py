"""A vocabulary in llguidance's form."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

TokenBytes = Callable[[int], bytes]


@lru_cache(maxsize=4)
def tokenizer_of(token_bytes: TokenBytes, vocab_size: int, ends: frozenset[int]) -> Any:
    """The vocabulary in llguidance's form; takes a few tenths of a second, cached for all rows of a model."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Vocabulary(token_bytes, vocab_size, ends)), n_vocab=vocab_size, eos_token=sorted(ends))


class _Vocabulary:
    """The tokenizer interface of llguidance: the bytes of every token, and some division of a text into tokens."""

    bos_token_id = None

    def __init__(self, token_bytes: TokenBytes, vocab_size: int, ends: frozenset[int]) -> None:
        self.eos_token_id = min(ends)
        # Tokens without text can only be ends: \xff begins nothing that is text.
        self.tokens = [token_bytes(i) or b"\xff<%d>" % i for i in range(vocab_size)]
        self.special_token_ids = [i for i, data in enumerate(self.tokens) if data[:1] == b"\xff"]
        self._ids = {data: i for i, data in reversed(list(enumerate(self.tokens)))}
        self._longest = max(map(len, self.tokens))

    def __call__(self, text: bytes) -> list[int]:
        """The longest token that the rest begins with, again and again; bytes without one are left out."""
        ids = []
        at = 0
        while at < len(text):
            sizes = range(min(self._longest, len(text) - at), 0, -1)
            size = next((size for size in sizes if text[at : at + size] in self._ids), 0)
            ids += [self._ids[text[at : at + size]]] if size else []
            at += size or 1
        return ids
