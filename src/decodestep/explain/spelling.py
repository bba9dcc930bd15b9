"""Tokens as readable text: control tokens by name, bytes of incomplete characters in hexadecimal."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from decodestep.tokenizers.tokenizer import Tokenizer


def spell(tokenizer: Tokenizer, token: int) -> str:
    """The token's text; for a control token, its name; for part of a character, its bytes: ‹E4 BD›."""
    data = tokenizer.token_bytes(token)
    if not data:
        return tokenizer.token(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return f"‹{data.hex(' ').upper()}›"


def pieces(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """The text that each token adds: a character belongs to the token with its last byte."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = []
    for token in tokens:
        data = tokenizer.token_bytes(token)
        found.append(decoder.decode(data) if data else tokenizer.token(token))
    return found
