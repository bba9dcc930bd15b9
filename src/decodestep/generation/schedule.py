"""Beside: when the prompts of a batch run between the passes of its rows."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from decodestep.models.forward import BLOCK
from decodestep.models.prefill import Room, keys_of


class Beside:
    """Prompts between the passes of the rows that draw: for rows that come and go, none of which may wait for another's prompt.

        between two passes of the rows, while prompts are not done:
            where no block of prompts is begun, begin one of at most `room` tokens
            run `layers` of its layers

    A block is run a few layers at a time because it has to be long to be quick: each block reads all weights, and the keys of
    its prompts, once.

    most_rows: how many rows may have pages at once. decoder_layers: of the model.
    SLOWER: by how much prompts may lengthen the time from one pass of the rows to the next, as a share of a pass; several
        prompts may lengthen it as often, so that those who wait for a first token are not many while a few draw.
    BLOCK_PASSES: beside how many passes a block is run, about. A prompt that comes meanwhile waits for its end.
    PASS_SECONDS: how long a block may take where no row draws, and one of several prompts may keep the rows from drawing.
    AHEAD: for how many tokens a row has pages when it is admitted; more are taken as they are needed.

    A block is taken to last token * tokens + token_key * keys seconds, since a key that is attended to is a cost of its own;
    what blocks last corrects the two, each by its share. Which tokens come out does not depend on it.
    """

    SLOWER = 0.5
    BLOCK_PASSES = 16
    PASS_SECONDS = 0.15
    AHEAD = 64

    _FIRST = 32  # tokens of a block before anything is known
    _KEYS = 800  # to begin with, so many keys cost what a token does

    def __init__(self, most_rows: int, decoder_layers: int) -> None:
        self.most_rows = most_rows
        self._decoder_layers = decoder_layers
        self._passes: deque[float] = deque(maxlen=5)  # what the last ones lasted: their median is that of no interruption
        self._token = self._token_key = 0.0  # 0: nothing is known
        self._tokens = self._keys = 0  # of the block
        self._seconds, self._layers = 0.0, 0  # what was run of it
        self._left = 0.0  # seconds of what was allowed before; less than 0 where it was not enough

    def room(self, rows: int, prompts: int) -> Room:
        """For the tokens of a block beside so many rows, of so many prompts that are not done."""
        if not self._token:
            return Room(self._FIRST)
        layers_a_pass = max(1, round(self._decoder_layers / self.BLOCK_PASSES))
        passes = self._decoder_layers / layers_a_pass if rows else 1
        return Room(BLOCK, passes * self._allowed(rows, prompts), self._token, self._token_key)

    def begin(self, pieces: Iterable[tuple[int, int]]) -> None:
        """A block is begun, of these pieces: each one's first position and number of tokens."""
        self._tokens = self._keys = self._layers = 0
        self._seconds = 0.0
        for position, tokens in pieces:
            self._tokens += tokens
            self._keys += keys_of(position, tokens)

    def layers(self, rows: int, prompts: int, left: int) -> int:
        """How many of the `left` layers of the block are run before the next pass of so many rows; may be 0."""
        if not rows:
            return left
        allowed = self._allowed(rows, prompts)
        self._left = max(min(self._left, 0.0), -allowed) + allowed
        if self._left <= 0:
            return 0
        of_layer = self._seconds / self._layers if self._layers else self._expected() / self._decoder_layers
        return min(left, max(1, int(self._left / of_layer + 0.25))) if of_layer else 1

    @contextmanager
    def timed_rows(self) -> Iterator[None]:
        """Around a pass of rows."""
        start = time.perf_counter()
        yield
        self._passes.append(time.perf_counter() - start)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Around anything else that the rows wait for: prompts have less time then."""
        start = time.perf_counter()
        yield
        self._left -= time.perf_counter() - start

    @contextmanager
    def timed_layers(self, layers: int) -> Iterator[None]:
        """Around so many layers of the block."""
        before = self._left
        with self.timed():
            yield
        self._seconds += before - self._left
        self._layers += layers
        if self._layers == self._decoder_layers:
            self._learn()

    def _allowed(self, rows: int, prompts: int) -> float:
        """How many seconds prompts may take before the next pass of rows."""
        if not rows:
            return self.PASS_SECONDS
        alone = statistics.median(self._passes) if self._passes else 0.002
        slower = self.SLOWER * alone
        return max(slower, min(slower * min(prompts, 16), self.PASS_SECONDS - alone))

    def _expected(self) -> float:
        return self._token * self._tokens + self._token_key * self._keys

    def _learn(self) -> None:
        if not self._token:
            self._token = self._seconds / self._tokens
            self._token_key = self._token / self._KEYS
        token, token_key = _corrections(0.2, self._seconds, self._token * self._tokens, self._token_key * self._keys)
        self._token *= token
        self._token_key *= token_key


def _corrections(rate: float, seconds: float, *parts: float) -> list[float]:
    """By what to multiply each part so that all together come nearer to `seconds`: a large part more than a small one.

    What was interrupted says little, so that no error counts for more than the sum of the parts.
    """
    whole = math.fsum(parts)
    error = max(-0.5 * whole, min(whole, seconds - whole))
    squares = math.fsum(part * part for part in parts)
    return [1 + rate * error * part / squares for part in parts]
