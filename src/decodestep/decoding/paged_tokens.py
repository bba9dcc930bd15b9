"""Tokens in pages of a pool: which pages and which state a sequence has for its tokens, and which pages are reserved for it."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence

import numpy as np

from decodestep._base.checks import Phrase, is_int, refuse, require
from decodestep.decoding.holdings import Holding, Page
from decodestep.decoding.kv_cache import PAGE
from decodestep.decoding.page_pool import LOCK, PagePool
from decodestep.decoding.sequence_state import SequenceState

_OP = "CachedSequence"


class PagedTokens:
    """What a `CachedSequence` is a use of: its tokens and the pages that hold them, which change together, and their state.

    As in `PagePool`, methods whose names end in `_locked` require `LOCK`, and a change of the pool. Wherever an interrupt
    comes, there are the pages of the tokens: pages and tokens change in one statement, since Python raises it around calls.
    """

    def __init__(self, pool: PagePool, capacity: int | None, *, admitted: bool) -> None:
        ok = capacity is None or (is_int(capacity) and capacity >= 0)
        require(ok, _OP, "capacity", "a number of tokens or None", capacity)
        self.tokens: list[int] = []
        self.drafted = 0
        self._pool = pool
        self._held = Holding(self, pool, admitted=admitted)
        self.state = None if pool.rows is None else SequenceState(pool.rows, self._held)
        self._table = np.zeros(8, np.int64)  # the numbers of _pages, with spare capacity
        self._capacity_pages = count_pages(capacity or 0)  # how many pages it may have without running out
        self._expected = 0  # the length of the text that is being read
        self._long = False  # whether the first token was rotated by the long frequencies
        self._same_rope = 0  # how many tokens, from the first on, were rotated as that one
        with LOCK, pool.changing_locked():
            pool.open_locked(self._held, self._capacity_pages)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def position(self) -> int:
        """How many of its tokens, the first ones, the next pass does not run again."""
        return len(self.tokens) if self.state is None else self.state.position

    def expect(self, length: int) -> None:
        """Announces a text of `length` tokens, those in the sequence included, that will be run in several calls.

        With long-rope its tokens are then rotated as in a single call. A call of `Model.forward` announces its own tokens, and
        `reuse` those that it is given.
        """
        require(is_int(length) and length >= 0, _OP, "length", "an integer >= 0", length)
        self._expected = max(self._expected, int(length))
        if not self.tokens:
            self._long = self.is_long

    def next_page(self, tokens: Sequence[int]) -> Hashable:
        """A key that is equal for two sequences if running `tokens` would fill the same page in both; otherwise unique."""
        parent, rest = self._last_full_page()
        missing = PAGE - len(rest)
        return (parent, (*rest, *tokens[:missing])) if len(tokens) >= missing and self._rotates_alike else object()

    def belongs_to(self, pool: PagePool) -> bool:
        """Whether its pages are those of `pool`."""
        return self._pool is pool

    @property
    def reserved(self) -> int:
        """The number of pages that the pool has reserved for it, of those that it does not have."""
        return self._held.reserved

    @property
    def _pages(self) -> list[Page]:
        return self._held.pages

    @property
    def page_numbers(self) -> np.ndarray:
        """The numbers of its pages in the storage, in order, int64; a view."""
        return self._table[: len(self._pages)]

    @property
    def is_long(self) -> bool:
        """Whether long frequencies rotate what is read now."""
        after = self._pool.long_after
        return after is not None and self._expected > after

    def room(self, unused: int) -> int:
        """How many more tokens its pages hold, with the reserved ones and `unused` more."""
        return (len(self._pages) + self.reserved + unused) * PAGE - len(self.tokens)

    def _require_idle(self) -> None:
        # A thread that asks is in no pass: if it is the one, an interrupt has ended its pass at an unlucky moment.
        closed = not self._pool.is_open(self._held)
        if closed or self._held.runner not in (None, threading.get_ident()):
            state = Phrase("a closed one" if closed else "a running one")
            refuse(_OP, "sequence", "open and used by one thread at a time", state)

    @property
    def _rotates_alike(self) -> bool:
        """Whether what is read now is rotated as all tokens before it."""
        return self._same_rope == len(self.tokens) and self._long == self.is_long

    def _page_before(self, page: int) -> Page:
        return self._pages[page - 1] if page else self._pool.roots[self._long]

    def _last_full_page(self) -> tuple[Page, list[int]]:
        """The last full page, and the tokens after it."""
        full = len(self.tokens) // PAGE
        return self._page_before(full), self.tokens[full * PAGE :]

    def _shared_from(self, position: int) -> list[Page]:
        """Those of its pages from this position on that cannot be written again: others have them, or what follows them."""
        pages = self._pages[position // PAGE :]
        for place in reversed(range(len(pages))):
            following = pages[place + 1 : place + 2]
            if pages[place].users > 1 or any(child not in following for child in pages[place].children.values()):
                return pages[: place + 1]
        return []

    def _own_from_locked(self, position: int) -> None:
        """Makes the pages from this position on the sequence's alone, whose tokens from there on will run again."""
        shared, first = self._shared_from(position), position // PAGE
        for page in reversed(self._pages[first + len(shared) :]):
            self._pool.withdraw_locked(page)
        for place, page in enumerate(shared, first):
            self._claim_locked(1)
            own = self._pool.take_locked()
            if place == first and position % PAGE:
                self._pool.storage.copy(page.number, own.number)
            self._table[place], self._pages[place] = own.number, own
            self._pool.release_locked([page])

    def _tree_page_locked(self, length: int) -> Page | None:
        """The page of the pool's tree that ends with the first `length` tokens; added to it where it is partly filled, and None
        if that cannot be."""
        full, part = divmod(length, PAGE)
        before = self._page_before(full)
        if before.parent is None and full:
            return None
        if not part:
            return before
        tokens = tuple(self.tokens[full * PAGE : length])
        found = before.children.get(tokens)
        if found is not None:
            return found
        page = self._pages[full]
        if page.users == 1 and page.parent is None:
            self._pool.share_part_locked(page, before, tokens)
            return page
        if not self._pool.available_locked():
            return None
        copied = self._pool.take_locked()
        self._pool.storage.copy(page.number, copied.number)
        self._pool.share_part_locked(copied, before, tokens)
        self._pool.release_locked([copied])
        return copied

    def _mend_locked(self) -> None:
        """Goes back to an earlier state if a pass has failed that wrote the last one."""
        if self.state is not None:
            self.state.go_back_locked([self._page_before(0), *self._pages], self.tokens, len(self.tokens))
            if not self.drafted:
                self.state.end_pass_locked()

    def _claim_locked(self, pages: int) -> None:
        """Uses up to this many of the reserved pages."""
        self._pool.reserve_locked(self._held, -min(max(pages, 0), self.reserved))

    def _reserve_again_locked(self, freed: int) -> None:
        """Reserves up to this many pages, which it has given back, as far as its capacity goes."""
        self._pool.reserve_locked(self._held, max(0, min(freed, self._capacity_pages - len(self._pages) - self.reserved)))

    def _put(self, first: int, listed: Sequence[Page], added: Sequence[int] = ()) -> None:
        """Puts pages in the place of those from the first-th on, and appends tokens, which they hold."""
        end, numbers, before = first + len(listed), [page.number for page in listed], len(self.tokens)
        if end > len(self._table):
            self._table = np.concatenate([self._table, np.zeros(end, np.int64)])
        alike, table, pages, tokens = self._rotates_alike, self._table, self._pages, self.tokens
        table[first:end], pages[first:], tokens[before:] = numbers, listed, added
        if alike:
            self._same_rope += len(added)


def count_pages(tokens: int) -> int:
    """The number of pages for this many tokens."""
    return -(-tokens // PAGE)
