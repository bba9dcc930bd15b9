"""Token ids to streamed text: whole characters only, and nothing that may turn out to be the start of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from decodestep.stopping.stop_automaton import StopAutomaton


class TextStream:
    """The text of one row as it grows.

    token_bytes: the bytes that a token adds. stop_strings: the text ends before the one that is complete first, the longest of
        those complete at the same byte; where the tokens are cut makes no difference.

    `text` is what has been decided; `push` and `finish` return what each adds to it. Held back are exactly the bytes that
    may still become a stop string, and a character of which bytes are missing; bytes that are no UTF-8 become U+FFFD. Stop
    strings are matched byte by byte, so each byte is looked at once, however much is held.
    Raises ValueError as `StopAutomaton` does.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stop_strings: Sequence[str] = ()) -> None:
        self._token_bytes = token_bytes
        self._stops = StopAutomaton(stop_strings)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = bytearray()  # perhaps the start of a stop string
        self._before = 0  # bytes that came before the held ones
        self._pieces: list[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def push(self, token_id: int) -> str:
        """Takes the next token; sets `stopped` where a stop string is complete, after which nothing is added."""
        if self.stopped:
            return ""
        data = self._token_bytes(token_id)
        self._held += data
        found = self._stops.feed(data)
        if found:
            self.stopped = True
            return self._release(found[0][0] - self._before, final=True)
        # A stop string begins with a character's first byte, so a character before it that is incomplete remains so.
        possible = self._stops.possible
        return self._release(len(self._held) - possible, final=possible > 0)

    def finish(self) -> str:
        """The rest, once no token follows: held text, and a character that was cut short as U+FFFD."""
        return "" if self.stopped else self._release(len(self._held), final=True)

    def _release(self, size: int, *, final: bool) -> str:
        piece = self._decoder.decode(bytes(self._held[:size]), final)
        del self._held[:size]
        self._before += size
        self._pieces.append(piece)
        return piece
