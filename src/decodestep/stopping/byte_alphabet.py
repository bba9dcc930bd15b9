"""The alphabet in which byte-level vocabularies write bytes as characters."""

from __future__ import annotations


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: a printable Latin-1 byte is its own character, the other bytes are U+0100, U+0101, ... in order."""
    own = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    other = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(other)}


# The byte that each character of a byte-level vocabulary stands for.
BYTE_OF = _byte_alphabet()
