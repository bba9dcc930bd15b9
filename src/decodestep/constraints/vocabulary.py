"""A vocabulary in llguidance's form."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

TokenBytes = Callable[[int], bytes]
Encode = Callable[[str], list[int]]


@lru_cache(maxsize=4)
def tokenizer_of(token_bytes: TokenBytes, vocab_size: int, ends: frozenset[int], encode: Encode | None = None) -> Any:
    """The vocabulary in llguidance's form; takes a few tenths of a second, cached for all rows of a model."""
    from llguidance import LLTokenizer, TokenizerWrapper

    vocabulary = _Vocabulary(token_bytes, vocab_size, ends, encode)
    return LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=vocab_size, eos_token=sorted(ends))


class _Vocabulary:
    """The tokenizer interface of llguidance: the bytes of every token, and the division of a text into tokens."""

    bos_token_id = None

    def __init__(self, token_bytes: TokenBytes, vocab_size: int, ends: frozenset[int], encode: Encode | None) -> None:
        self.eos_token_id = min(ends)
        self._encode = encode
        # Tokens without text can only be ends: \xff begins nothing that is text.
        self.tokens = [token_bytes(i) or b"\xff<%d>" % i for i in range(vocab_size)]
        self.special_token_ids = [i for i, data in enumerate(self.tokens) if data[:1] == b"\xff"]
        self._ids = {data: i for i, data in reversed(list(enumerate(self.tokens)))}
        self._longest = max(map(len, self.tokens))

    def __call__(self, text: bytes) -> list[int]:
        """The tokenizer's tokens of a text, or the longest ones if those have other bytes: where it normalises the text, or
        finds a character that it does not know or a control token."""
        if self._encode is not None:
            with suppress(Exception):  # it ends the process in llguidance
                ids = self._encode(text.decode())
                if b"".join(map(self.tokens.__getitem__, ids)) == text:
                    return ids
        return self._longest_tokens(text)

    def _longest_tokens(self, text: bytes) -> list[int]:
        """The longest token that the rest begins with, again and again; bytes without one are left out."""
        ids = []
        at = 0
        while at < len(text):
            sizes = range(min(self._longest, len(text) - at), 0, -1)
            size = next((size for size in sizes if text[at : at + size] in self._ids), 0)
            ids += [self._ids[text[at : at + size]]] if size else []
            at += size or 1
        return ids
