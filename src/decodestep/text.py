"""Token ids to streamed text: whole characters only, and nothing that may turn out to be the start of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class TextStream:
    """The text of one row as it grows.

    token_bytes: the bytes that a token adds. stop_strings: the text ends where the first of these begins.
    `text` is what has been decided; `push` and `finish` return what each adds to it.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stop_strings: Sequence[str] = ()) -> None:
        self._token_bytes = token_bytes
        self._stops = tuple(stop_strings)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # decoded, but perhaps the start of a stop string
        self.text = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Takes the next token; sets `stopped` where a stop string is complete."""
        self._held += self._decoder.decode(self._token_bytes(token_id))
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            return self._release(min(found))
        return self._release(len(self._held) - self._possible_start())

    def finish(self) -> str:
        """The rest, once no token follows: held text, and a character that was cut short as U+FFFD."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(len(self._held))

    def _possible_start(self) -> int:
        """How many of the held characters, at the end, begin some stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0

    def _release(self, length: int) -> str:
        piece, self._held = self._held[:length], self._held[length:]
        self.text += piece
        return piece
