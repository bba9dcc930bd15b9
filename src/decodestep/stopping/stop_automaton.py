"""Finds stop strings in a stream of bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from decodestep._base.checks import refuse, require


class StopAutomaton:
    """Finds strings in a stream of bytes that comes in pieces: the Aho-Corasick automaton of their UTF-8.

    strings: non-empty, without lone surrogates, which UTF-8 cannot encode. An empty list is legal and finds nothing.

    `feed` reads each byte once, in constant time on average over the stream; building takes time proportional to the bytes of
    the strings. `possible` is how many of the last bytes may still become a string: the length of the longest end of the stream
    that begins a string.
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
        self._state = 0
        self._fed = 0

    @property
    def possible(self) -> int:
        return self._depth[self._state]

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """Reads the next bytes; returns (start, end) for each of them that completes a string, in order.

        The string is the stream's bytes [start, end), counted from the beginning of the stream; where several strings end at
        one byte, the longest of them. The first of the list is the one that was complete first.
        """
        found = []
        state = self._state
        for end, byte in enumerate(data, self._fed + 1):
            while state and byte not in self._next[state]:
                state = self._fallback[state]
            state = self._next[state].get(byte, 0)
            if self._longest[state]:
                found.append((end - self._longest[state], end))
        self._state = state
        self._fed += len(data)
        return found

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
