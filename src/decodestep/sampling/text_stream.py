"""Token ids to streamed text: complete characters only, and nothing that may still become a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from itertools import compress

from decodestep.stopping.stop_automaton import StopAutomaton


class TextStream:
    """The text of one row as it grows.

    token_bytes: token id -> the bytes that it adds.
    stop_strings: the text ends before the first complete one; if several are complete at the same byte, before the longest.
        Token boundaries make no difference.
    spelled_bytes: token id -> the bytes in which stop strings are looked for: those of token_bytes, or of a token that adds
        none, such as a control token, its name; None for token_bytes.
    min_tokens: a stop string that is complete within this many tokens does not end the text; it is held back like the start of
        one.

    `text` is the final part of the text; `push` and `finish` return what they add to it. It holds back exactly the bytes that
    may still become a stop string, and the bytes of an incomplete character. Bytes that are not UTF-8 become U+FFFD. Each byte
    is matched once, however many are held. `stop` is the stop string that has ended the text, "" before.
    Raises ValueError as `StopAutomaton` does.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        stop_strings: Sequence[str] = (),
        *,
        spelled_bytes: Callable[[int], bytes] | None = None,
        min_tokens: int = 0,
    ) -> None:
        self._token_bytes, self._spelled_bytes = token_bytes, spelled_bytes or token_bytes
        self._stops = StopAutomaton(stop_strings)
        self._state = 0  # of the stop strings
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = bytearray()  # may be the start of a stop string
        self._adds = bytearray()  # whether each of the held bytes is of the text: a name of a token is not
        self._early = min_tokens  # how many of the next tokens complete no stop string
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
        adds = bool(data)
        data = data or self._spelled_bytes(token_id)
        held = len(self._held)
        self._held += data
        self._adds += bytes([adds]) * len(data)
        self._state, found = self._stops.read(self._state, data)
        if self._early:
            self._early -= 1
        elif found:
            start, end = (held + at for at in found[0])
            self.stop = self._held[start:end].decode()
            return self._release(start, final=True)
        # A stop string begins with the first byte of a character, so an incomplete character before it stays incomplete:
        # U+FFFD.
        kept = len(self._held) - self._stops.possible(self._state)
        return self._release(kept, final=any(self._adds[kept : kept + 1]))

    def finish(self) -> str:
        """Ends the text; returns what was held back, with U+FFFD for an incomplete character."""
        return "" if self.stopped else self._release(len(self._held), final=True)

    def _release(self, size: int, *, final: bool) -> str:
        piece = self._decoder.decode(bytes(compress(self._held[:size], self._adds)), final)
        del self._held[:size], self._adds[:size]
        self._pieces.append(piece)
        return piece
