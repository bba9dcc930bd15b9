"""Finds stop strings in a stream of bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from decodestep._base.checks import refuse, require


class StopAutomaton:
    """Finds strings in streams of bytes that come in pieces: the Aho-Corasick automaton of their UTF-8.

    strings: non-empty, without lone surrogates, which UTF-8 cannot encode. An empty list is legal and finds nothing.

    What it knows of a stream is a state, a number that its reader keeps; that of the beginning of a stream is 0. `read` takes
    constant time for a byte, on average over the stream; building takes time proportional to the bytes of the strings.
    `longest` is how many bytes the longest string has, 0 without strings.
    Raises ValueError for an empty string and for one that UTF-8 cannot encode.
    Source: Aho and Corasick, "Efficient string matching: an aid to bibliographic search", 1975.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        # A state is a beginning of some string: the longest one that the stream ends with. State 0 is the empty beginning.
        self._next: list[dict[int, int]] = [{}]
        self._depth = [0]  # the state's length in bytes
        self._longest = [0]  # the length of the longest string that ends in the state
        for string in strings:
            self._add(string)
        self._fallback = self._fallbacks()
        self.longest = max(self._longest)

    def possible(self, state: int) -> int:
        """How many of a stream's last bytes may still become a string: the longest end of it that begins a string."""
        return self._depth[state]

    def read(self, state: int, data: bytes) -> tuple[int, list[tuple[int, int]]]:
        """The state after the next bytes of a stream, and (start, end) for each of them that completes a string, in order.

        The string is the bytes [start, end), counted from the first of `data`: it may have begun before. Where several strings
        end at one byte, it is the longest of them; the first of the list is the one that was complete first.
        """
        found = []
        for end, byte in enumerate(data, 1):
            while state and byte not in self._next[state]:
                state = self._fallback[state]
            state = self._next[state].get(byte, 0)
            if self._longest[state]:
                found.append((end - self._longest[state], end))
        return state, found

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """The transitions as arrays: the state that follows state s on byte b, intp (states, 256); whether a string ends in s.

        A stream begins in state 0.
        """
        following = np.zeros((len(self._next), 256), np.intp)
        for state in sorted(range(len(self._next)), key=self._depth.__getitem__):
            following[state] = following[self._fallback[state]]
            following[state, list(self._next[state])] = list(self._next[state].values())
        return following, np.array(self._longest) > 0

    def _add(self, string: str) -> None:
        require(isinstance(string, str) and string != "", "StopAutomaton", "strings", "non-empty strings", string)
        try:
            data = string.encode()
        except UnicodeEncodeError:
            refuse("StopAutomaton", "strings", "encodable as UTF-8", string)
        state = 0
        for byte in data:
            following = self._next[state].get(byte)
            if following is None:
                following = len(self._next)
                self._next[state][byte] = following
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._longest.append(0)
            state = following
        self._longest[state] = len(data)

    def _fallbacks(self) -> list[int]:
        """For each state, the longest proper end of it that is a state too. Breadth first: shorter states are ready first."""
        fallback = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for byte, following in self._next[state].items():
                shorter = fallback[state]
                while shorter and byte not in self._next[shorter]:
                    shorter = fallback[shorter]
                fallback[following] = self._next[shorter].get(byte, 0)
                if not self._longest[following]:
                    self._longest[following] = self._longest[fallback[following]]
                queue.append(following)
        return fallback
