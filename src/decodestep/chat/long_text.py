"""Texts of any length that are written in small pieces."""

from __future__ import annotations


class LongText:
    """A text that is written in pieces, each of which takes the same time: `io.StringIO` joins a hundred thousand at once, for
    which other rows would wait for milliseconds."""

    _MOST = 256  # pieces that are joined at once

    def __init__(self) -> None:
        self._joined: list[str] = []
        self._pieces: list[str] = []

    def __str__(self) -> str:
        return "".join((*self._joined, *self._pieces))

    def __bool__(self) -> bool:
        return bool(self._joined or self._pieces)

    def write(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
        if len(self._pieces) == self._MOST:
            self._joined.append("".join(self._pieces))
            self._pieces.clear()
