"""Slot feeds: what fills a sequence's slots in the cache of layers for next-token prediction, where drafts are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from decodestep.decoding.decoder import TokenBatch
from decodestep.decoding.kv_cache import PAGE, LatentPages

if TYPE_CHECKING:
    from decodestep.decoding.next_tokens import NextTokenLayers
    from decodestep.decoding.sequence import CachedSequence

_KEPT = 64  # states of tokens that may be dropped again
_ENOUGH = 64  # tokens that wait: filling them together costs each hardly anything
_TOGETHER = 512  # tokens of one run


class SlotFeed:
    """Fills the slots of a sequence's tokens (`NextTokenLayers`). A sequence has one only where somebody drafts from it.

    The hidden states of tokens that have run wait here until a draft is wanted, many wait, or a text that is being read has
    come. Whenever they are filled, slots have the bits of those of the same tokens run at once.

    layers, pages: whose, and where the slots are. filled: how many tokens, from the first on, have theirs. known: whether the
    others can have theirs, which they cannot after pages that were filled for nobody who drafts.
    """

    def __init__(self, layers: NextTokenLayers, pages: LatentPages) -> None:
        self.layers, self.pages = layers, pages
        self.filled, self.known = 0, True
        # How many of the next tokens have slots in a page that was copied, and run again because it does not have their states.
        self._again = 0
        self._first, self._rows = 0, np.empty(0)  # of the tokens filled last: the position of the first, and states (T, K, He)
        self._waiting: list[np.ndarray] = []  # the hidden states of the tokens after those

    @property
    def due(self) -> bool:
        """Whether so many tokens wait that they are to be filled."""
        return self.known and len(self._waiting) >= _ENOUGH

    def new(self) -> SlotFeed:
        """One for another sequence."""
        return SlotFeed(self.layers, self.pages)

    def add(self, first: int, hidden: np.ndarray) -> None:
        """Takes the hidden states of tokens that have run, from position `first` on, in place of any that it has of them."""
        if self.known:
            del self._waiting[max(0, first - self.filled) :]
            self.known = first == self.filled + len(self._waiting)
            self._waiting.extend(hidden.copy())

    def count_waiting(self, length: int) -> int:
        """How many of the first `length` tokens can be filled now."""
        return max(0, min(len(self._waiting), length - self.filled)) if self.known else 0

    def waiting(self, count: int) -> tuple[list[np.ndarray], np.ndarray | None, int]:
        """What `NextTokenLayers.fill` takes of a sequence for its next `count` tokens: hidden states, before, again."""
        return self._waiting[:count], self.states(self.filled - 1), self._again

    def fill(self, states: np.ndarray) -> None:
        """The next tokens have been filled. states: theirs."""
        count, kept = len(states), states[-_KEPT:].copy()
        first, again, waiting = self.filled + count - len(kept), max(0, self._again - count), self._waiting[count:]
        self.filled, self._first, self._rows, self._again, self._waiting = first + len(kept), first, kept, again, waiting

    def states(self, position: int) -> np.ndarray | None:
        """Those of a token that has been filled; None if they are not known."""
        place = position - self._first
        return self._rows[place] if 0 <= place < len(self._rows) else None

    def begin(self, length: int, states: np.ndarray | None, again: int = 0) -> None:
        """Begins after `length` tokens that others have filled, whose pages the sequence has now.

        states: those of the last of them. again: how many tokens follow that have slots too, and whose states are not known.
        """
        self.filled, self.known, self._again = length, states is not None or again > 0, again
        self._first, self._rows = length - 1, np.empty(0) if states is None else states[None]
        self._waiting = []

    def follow(self, other: SlotFeed | None) -> None:
        """Begins where another feed is, of a sequence with the same tokens in the same pages, or copies of them."""
        self.known = other is not None and other.known
        if other is not None:
            self.filled, self._again, self._first, self._rows = other.filled, other._again, other._first, other._rows
            self._waiting = other._waiting.copy()

    def cut(self, length: int, states: np.ndarray | None) -> None:
        """The tokens from position `length` on are dropped. states: those of the last that stays, if its page has them."""
        del self._waiting[max(0, length - self.filled) :]
        if length < self.filled:
            found = self.states(length - 1)
            self.begin(length, states if found is None else found)
        self.known = self.known or length == 0


def fill_slots(sequences: Iterable[CachedSequence]) -> int:
    """Fills the slots of tokens that wait, of all sequences together, but for drafted tokens. Returns how many."""
    group: list[tuple[CachedSequence, SlotFeed, int]] = []
    filled = 0
    for sequence in sequences:
        feed = sequence.feed
        count = 0 if feed is None else feed.count_waiting(len(sequence) - sequence.drafted)
        if feed is not None and count:
            group.append((sequence, feed, count))
            filled += count
        if sum(count for _, _, count in group) >= _TOGETHER:
            _fill(group)
            group = []
    if group:
        _fill(group)
    return filled


def _fill(group: Sequence[tuple[CachedSequence, SlotFeed, int]]) -> None:
    feeds, counts = [feed for _, feed, _ in group], [count for _, _, count in group]
    numbers = [sequence.page_numbers for sequence, _, _ in group]
    table = np.zeros((len(group), max(map(len, numbers))), np.int64)
    for i, own in enumerate(numbers):
        table[i, : len(own)] = own
    hidden, before, again = zip(*(feed.waiting(count) for _, feed, count in group), strict=True)
    batch = TokenBatch(
        np.array([token for sequence, feed, n in group for token in sequence.tokens[feed.filled : feed.filled + n]]),
        np.repeat(np.arange(len(group)), counts),
        np.concatenate([np.arange(feed.filled, feed.filled + n) for _, feed, n in group]),
        table,
        np.zeros(0, np.int64),
    )
    layers, pages = feeds[0].layers, feeds[0].pages
    states = layers.fill(batch, np.stack([row for rows in hidden for row in rows]), before, again, pages)
    for (sequence, feed, _), own in zip(group, np.split(states, np.cumsum(counts)[:-1]), strict=True):
        first = feed.filled
        feed.fill(own)
        sequence.give_states({at: own[at - first] for at in range(first, feed.filled) if at % PAGE == PAGE - 1})
