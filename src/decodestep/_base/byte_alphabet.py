"""How vocabularies write single bytes: byte-level ones as characters of an alphabet, others as tokens such as <0x0A>."""

from __future__ import annotations

import re

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: a printable Latin-1 byte is its own character, the other bytes are U+0100, U+0101, ... in order."""
    own = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    other = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(other)}


# The byte that each character of a byte-level vocabulary stands for.
BYTE_OF = _byte_alphabet()


def byte_of(token: str) -> bytes | None:
    """The byte that a token such as <0x0A> stands for; None for other tokens."""
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes.fromhex(match[1]) if match else None
