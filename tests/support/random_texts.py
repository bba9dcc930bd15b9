"""Texts of everything that tokenizers cut differently: all scripts, numbers, spaces, contractions, cases, code and emoji."""

from __future__ import annotations

import random
import unicodedata

_LINE = (
    "the and naïve don't we'LL they'd I'M 's 'S 'tis can’t camelCase HTTPServer XMLHttpRequest aB ABc __init__ return def "
    "for(i=0;i<n;i++) x+=1 != -> https://a.b/c?d=e&f=1 3.14 1,234,567 2024-11-29 0x1F $5.00 50% #tag @me `code` ~~~ ^_^ "
    "... ??? !!! «quote» “x” ‘y’ — – 漢字 かな カタカナ 中文\uff0c标点\uff01 한국어 ㅋㅋ привет Ελληνικά שלום مرحبا "
    "हिन्दी ไทย \u00e9 e\u0301 \u212b A\u030a ﬁ Ǆ ǅ ſ İ ı ß ½ ² Ⅷ ١٢٣ ४५ 😀 👍🏽 🏳️\u200d🌈 "
    "👨\u200d👩\u200d👧 <s> <|end|> <|end \u2581 <0x41>"
)
_WORDS = _LINE.split()
_SPACES = (
    *(" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\t\t", " \n", "\n ", "\r", " " * 7, " " * 16),
    *("\u00a0", "\u3000", "\u2028", "\x0b", "\x85", "\u200b", "\u200d"),
)
_LETTERS_AND_MARKS = "abcXYZ'’.,;:!?/\\-_(){}[]<>\"*"
# Blocks of which single characters are drawn; of what is not assigned, tables of different versions of Unicode differ.
_BLOCKS = [
    *((0x20, 0x7F), (0xA0, 0x250), (0x250, 0x370), (0x370, 0x530), (0x530, 0x700), (0x900, 0xE80), (0xE80, 0x1100)),
    *((0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2C00), (0x2C00, 0x2E80), (0x2E80, 0x3100), (0x3100, 0x3400)),
    *((0x3400, 0xA000), (0xA000, 0xAC00), (0xAC00, 0xD7B0), (0xF900, 0x10000), (0x10000, 0x11000), (0x1D400, 0x1D800)),
    *((0x1F000, 0x1FB00), (0x20000, 0x20500)),
]


def random_texts(count: int, seed: int = 0) -> list[str]:
    """The same for the same seed, each of up to thirteen parts."""
    source = random.Random(seed)
    return ["".join(_part(source) for _ in range(source.randrange(1, 14))) for _ in range(count)]


def _part(source: random.Random) -> str:
    kind = source.random()
    if kind < 0.55:
        return source.choice(("", " ")) + source.choice(_WORDS)
    if kind < 0.70:
        return source.choice(_SPACES)
    if kind < 0.80:
        return str(source.randrange(10 ** source.randrange(1, 12)))
    if kind < 0.90:
        return "".join(_character(source) for _ in range(source.randrange(1, 4)))
    return "".join(source.choice(_LETTERS_AND_MARKS) for _ in range(source.randrange(1, 6)))


def _character(source: random.Random) -> str:
    while True:
        character = chr(source.randrange(*source.choice(_BLOCKS)))
        if unicodedata.category(character) not in ("Cn", "Cs"):
            return character
