"""Token ids to streamed text: complete characters only, and nothing that may still become a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from decodestep.stopping.stop_automaton import StopAutomaton


class TextStream:
    """The text of one row as it grows.

    token_bytes: token id -> the bytes that it adds.
    stop_strings: the text ends before the first complete one; if several are complete at the same byte, before the longest.
        Token boundaries make no difference.

    `text` is the final part of the text; `push` and `finish` return what they add to it. It holds back exactly the bytes that
    may still become a stop string, and the bytes of an incomplete character. Bytes that are not UTF-8 become U+FFFD. Each byte
    is matched once, however many are held. `stop` is the stop string that has ended the text, "" before.
    Raises ValueError as `StopAutomaton` does.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stop_strings: Sequence[str] = ()) -> None:
        self._token_bytes = token_bytes
        self._stops = StopAutomaton(stop_strings)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = bytearray()  # may be the start of a stop string
        self._before = 0  # how many bytes came before the held ones
        self._pieces: list[str] = []
        self.stop = ""

    @property
    def stopped(self) -> bool:
        return self.stop != ""

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text that became final. Sets `stop` when a stop string is complete; no text follows."""
        if self.stopped:
            return ""
        data = self._token_bytes(token_id)
        self._held += data
        found = self._stops.feed(data)
        if found:
            start, end = (at - self._before for at in found[0])
            self.stop = self._held[start:end].decode()
            return self._release(start, final=True)
        # A stop string begins with the first byte of a character, so an incomplete character before it stays incomplete:
        # U+FFFD.
        possible = self._stops.possible
        return self._release(len(self._held) - possible, final=possible > 0)

    def finish(self) -> str:
        """Ends the text; returns what was held back, with U+FFFD for an incomplete character."""
        return "" if self.stopped else self._release(len(self._held), final=True)

    def _release(self, size: int, *, final: bool) -> str:
        piece = self._decoder.decode(bytes(self._held[:size]), final)
        del self._held[:size]
        self._before += size
        self._pieces.append(piece)
        return piece
