"""A tokenizer in whose texts some control tokens have their names."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decodestep.tokenizers.tokenizer import Tokenizer


class ShownTokens:
    """The texts of a tokenizer's tokens, and the tokens of texts, where some control tokens have their names.

    shown: the ids of these, at least one.
    """

    def __init__(self, tokenizer: Tokenizer, shown: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._names = {i: tokenizer.token(i).encode() for i in shown}
        self._ids = {tokenizer.token(i): i for i in shown}
        longest_first = sorted(self._ids, key=len, reverse=True)  # some begin with others
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def token_bytes(self, token_id: int) -> bytes:
        """As `Tokenizer.token_bytes`, and the names of those shown."""
        return self._names.get(token_id) or self._tokenizer.token_bytes(token_id)

    def encode_within(self, text: str) -> list[int]:
        """As `Tokenizer.encode_within`; the names of those shown become those tokens."""
        ids: list[int] = []
        for piece in filter(None, self._pattern.split(text)):
            ids += [self._ids[piece]] if piece in self._ids else self._tokenizer.encode_within(piece)
        return ids
