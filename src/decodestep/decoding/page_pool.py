"""The pages of a model's cache: allocated to sequences, shared by those with a common prefix, and kept for later ones."""

from __future__ import annotations

import math
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn
from weakref import WeakSet

from decodestep._base.checks import require
from decodestep._base.machine_limits import memory_limit
from decodestep.decoding.holdings import Holding, Page
from decodestep.decoding.kv_cache import PAGE, Pages
from decodestep.decoding.state_rows import StateRows
from decodestep.errors import CacheFullError as CacheFullError

if TYPE_CHECKING:
    from decodestep.chat.user_mark import UserMark

MOST_KEPT_BYTES = 2**30  # of pages, and as many of snapshots
_SEQUENCES = 1024  # that are open at once, if half of the cache has a state for each

# One lock for all pools: it is held for microseconds, and never while the process forks.
LOCK = threading.Lock()
_POOLS: WeakSet[PagePool] = WeakSet()


class PagePool:
    """Allocates the pages of a storage. Methods whose names end in `_locked` require `LOCK`, and those that change anything are
    called within `changing_locked`.

    storage: the pages. max_kept: the largest number of kept pages; the least recently used are dropped first.
    long_after: the length of the longest text whose rope is of long-rope's short frequencies; None without long-rope.
    roots: the parents of the first pages: of what has the rope of the short frequencies, and of the long ones.

        a page is    fresh      never used: takes no memory yet
                     held       by one sequence, or by several if it is full
                     kept       full and held by none: reused by a sequence that begins with the same tokens
                     free       used before, available again

    pages: their number. page_bytes: the size of one. rows: those of recurrent states; None for a model without. user_mark: by
    which these are kept before the last turn of a chat, once it is known.
    """

    def __init__(self, storage: Pages, max_kept: int, long_after: int | None = None) -> None:
        self.storage = storage
        self.pages = storage.count
        self.page_bytes = storage.page_bytes
        self.rows: StateRows | None = None
        self.user_mark: UserMark | None = None
        if storage.states is not None:
            row_bytes = storage.states[0].nbytes
            most = max(1, MOST_KEPT_BYTES // row_bytes)
            self.rows = StateRows(storage.states, most, interval=-(-row_bytes * PAGE // storage.page_bytes))
        self._max_kept = max_kept
        self._fresh = 0  # the first page that has never been handed out
        self._free: list[int] = []
        self._kept: dict[Page, None] = {}  # by their last use; children before their parent
        self.long_after = long_after
        self.roots = Page(-1), Page(-1)
        self._reserved = 0
        self._open: set[Holding] = set()  # all counts follow from these
        self.dropped: deque[Holding] = deque()  # those whose sequences have been garbage collected
        self._unfinished = False  # whether a change is being made, or one has been cut short
        self._freed = threading.Condition(LOCK)
        with LOCK:
            _POOLS.add(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("the cache of a model cannot be copied or pickled: load the model in each process")

    @property
    def held(self) -> int:
        """The number of pages held by sequences."""
        with LOCK, self.changing_locked():
            self._take_back_dropped_locked()
            return self._fresh - len(self._free) - len(self._kept)

    @property
    def kept(self) -> int:
        """The number of pages that are kept for reuse."""
        with LOCK, self.changing_locked():
            self._take_back_dropped_locked()
            return len(self._kept)

    @property
    def unused(self) -> int:
        """The number of pages that are fresh or free, and not reserved."""
        with LOCK, self.changing_locked():
            return max(0, self.available_locked() - len(self._kept))

    @property
    def spare_states(self) -> float:
        """How many more recurrent states sequences can keep; infinite for a model without."""
        with LOCK:
            return math.inf if self.rows is None else self.rows.spare_locked()

    def clear(self) -> None:
        """Drops the kept pages, and all snapshots."""
        with LOCK, self.changing_locked():
            if self.rows is not None:
                self.rows.clear_locked()
            self._keep_at_most_locked(0)

    @contextmanager
    def changing_locked(self) -> Iterator[None]:
        """Context manager of a change. Where an interrupt ends one in the middle, the next one begins with counting all pages
        again, so that none is lost and none has two owners."""
        if self._unfinished:
            self._recount_locked()
        self._unfinished = True
        try:
            yield
        except CacheFullError:  # which is raised before anything has changed
            self._unfinished = False
            raise
        self._unfinished = False

    def last_length_like(self, length: int) -> int | None:
        """The length up to which texts have the rope of one of `length` tokens; None if they have it at every length."""
        return None if self.long_after is None or length > self.long_after else self.long_after

    def prepare(self, slabs: int = 1) -> bool:
        """Allocates a little of the memory of the pages that will be used next; False if `slabs` slabs of them have theirs."""
        with LOCK:
            return self.storage.prepare(self._fresh, slabs)

    def require_total(self, count: int, what: str, sequences: int = 1) -> None:
        """Raises CacheFullError if the cache has fewer pages than `what` may need in so many sequences, free or not."""
        if count > self.pages:
            have = f"the cache has {self.pages}"
            raise CacheFullError(f"{what} may need {count} pages, and {have}: load the model with more cache_bytes")
        if self.rows is not None and sequences > self.rows.count:
            have = f"the cache has {self.rows.count}"
            raise CacheFullError(f"{what} needs {sequences} recurrent states, and {have}: load the model with more cache_bytes")

    def wait_for(self, count: int, sequences: int = 1) -> None:
        """Waits until `count` pages are free, and states of so many sequences, for at most a tenth of a second, so that the
        caller can check other conditions.

        Raises CacheFullError if there are too few, and nobody gives any back while the caller waits: no sequence is open that
        will end by itself (see `admit`), or there is no other thread that could run those.
        """
        alone = threading.active_count() == 1
        with LOCK:
            with self.changing_locked():
                available = self.available_locked() >= count
                available = available and (self.rows is None or self.rows.spare_locked() >= sequences)
                if alone or not any(held.admitted for held in self._open):
                    self.require_locked(count)
                    if self.rows is not None:
                        self.rows.require_locked(sequences)
            if not available:
                self._freed.wait(0.1)

    def available_locked(self) -> int:
        """The number of pages that are available and not reserved."""
        self._take_back_dropped_locked()
        return self.pages - self._fresh + len(self._free) + len(self._kept) - self._reserved

    def require_locked(self, count: int) -> None:
        available = self.available_locked()
        if count > available:
            size = self.page_bytes / 2**20
            raise CacheFullError(
                f"the cache has {available} of its {self.pages} pages of {PAGE} tokens free, and {count} are needed: "
                f"load the model with more cache_bytes ({size:.2f} MiB a page), or run fewer or shorter sequences at once"
            )

    def open_locked(self, held: Holding, reserved: int) -> None:
        """Lists what a new sequence will hold, and reserves pages for it, each to be given up before it is taken."""
        self.require_locked(reserved)
        if self.rows is not None:
            self.rows.require_locked(1)
            self.rows.claim_locked(1)
        self._open.add(held)
        self.reserve_locked(held, reserved)

    def is_open(self, held: Holding) -> bool:
        """Whether it has been opened and not closed."""
        return held in self._open

    def reserve_locked(self, held: Holding, pages: int) -> None:
        """Reserves this many more pages, which are free; below 0 gives reservations up."""
        held.reserved += pages
        self._reserved += pages

    def close_locked(self, held: Holding) -> None:
        """Takes back all that a sequence has; nothing if it has been closed."""
        if held in self._open:
            self._open.remove(held)
            self._reserved -= held.reserved
            if self.rows is not None:
                self.rows.close_locked(held)
            pages, held.pages, held.reserved = held.pages, [], 0
            self.release_locked(pages)

    def take_locked(self) -> Page:
        """A page for one user: a free, a fresh, or the least recently used kept one. Raises CacheFullError if all are held."""
        self.require_locked(1)
        if self._free:
            return Page(self._free.pop())
        if self._fresh < self.pages:
            self._fresh += 1
            return Page(self._fresh - 1)
        self._evict_locked()
        return Page(self._free.pop())

    def path_locked(self, parent: Page, tokens: Sequence[int]) -> Iterator[Page]:
        """The full pages after `parent` that hold these tokens, as far as there are any, without the last token."""
        for first in range(0, len(tokens) - PAGE, PAGE):
            page = parent.children.get(tuple(tokens[first : first + PAGE]))
            if page is None:
                return
            yield page
            parent = page

    def child_beginning_with_locked(self, parent: Page, token: int) -> Page | None:
        """A full page after `parent` that begins with `token`, or None."""
        return parent.latest_child.get(token)

    def hold_locked(self, *pages: Page) -> None:
        """Adds a user to pages that are held or kept."""
        for page in pages:
            page.users += 1
            self._kept.pop(page, None)

    def share_locked(self, page: Page, parent: Page, tokens: Sequence[int]) -> Page:
        """Adds a page that has become full to the tree; returns it, or an equal page that was there already."""
        found = parent.children.get(tuple(tokens))
        if found is not None:
            self.hold_locked(found)
            self.release_locked([page])
            return found
        page.parent, page.tokens = parent, tuple(tokens)
        parent.children[page.tokens] = parent.latest_child[page.tokens[0]] = page
        return page

    def share_part_locked(self, page: Page, parent: Page, tokens: Sequence[int]) -> None:
        """Adds a page to the tree that is partly filled and will not be written again, for a snapshot; none is there yet."""
        page.parent, page.tokens = parent, tuple(tokens)
        parent.children[page.tokens] = page

    def withdraw_locked(self, page: Page) -> None:
        """Takes a page that no page follows out of the tree, if it is in it: it may then be written again."""
        if page.parent is None:
            return
        del page.parent.children[page.tokens]
        if page.parent.latest_child.get(page.tokens[0]) is page:
            del page.parent.latest_child[page.tokens[0]]
        if self.rows is not None:
            self.rows.drop_locked(page)
        page.parent, page.tokens, page.states = None, (), None

    def release_locked(self, pages: Sequence[Page]) -> None:
        """Releases pages, given in the order of a sequence."""
        for page in reversed(pages):  # so that of those kept the last one goes first
            page.users -= 1
            if page.users == 0:
                if page.parent is None:
                    self._free.append(page.number)
                else:
                    self._kept[page] = None
        self._keep_at_most_locked(self._max_kept)
        self._freed.notify_all()

    def _keep_at_most_locked(self, count: int) -> None:
        while len(self._kept) > count:
            self._evict_locked()

    def _evict_locked(self) -> None:
        page = next(iter(self._kept))
        del self._kept[page]
        self.withdraw_locked(page)
        self._free.append(page.number)

    def _take_back_dropped_locked(self) -> None:
        while self.dropped:
            self.close_locked(self.dropped[0])
            self.dropped.popleft()

    def _recount_locked(self) -> None:
        """Brings all counts, and what pages are to each other, in line with what is held and what the tree leads to."""
        users = Counter(page for held in self._open for page in held.pages)
        tree: list[Page] = [*self.roots]
        for page in tree:
            tree += page.children.values()
            for child in page.children.values():
                child.parent = page
            page.latest_child = {
                token: child for token, child in page.latest_child.items() if page.children.get(child.tokens) is child
            }
        shared = dict.fromkeys(reversed(tree[len(self.roots) :]))  # children before their parent
        for page in users:
            if page not in shared:
                page.parent, page.tokens, page.states, page.snapshot = None, (), None, None
        for page in (*users, *shared):
            page.users = users[page]
        self._kept = {page: None for page in (*self._kept, *shared) if page in shared and not users[page]}
        taken = {page.number for page in (*users, *self._kept)}
        self._free = [number for number in range(self._fresh) if number not in taken]
        self._reserved = sum(held.reserved for held in self._open)
        if self.rows is not None:
            self.rows.recount_locked(self._open, shared)


def new_pool(
    new_storage: Callable[..., Pages],
    page_bytes: int,
    cache_bytes: int | None,
    long_after: int | None = None,
    row_bytes: int = 0,
) -> PagePool:
    """A pool of as many pages as fit into cache_bytes; None for a quarter of the machine's memory, and at least one page.

    new_storage: new_storage(pages), and with recurrent states new_storage(pages, rows). row_bytes: the size of such a row: they
    take up to a half, and at least one is there.
    Raises ValueError if cache_bytes holds no page, MemoryError if it exceeds the available address space; the default is halved
    until it fits.
    """
    least, holds = page_bytes + row_bytes, f"a page of {PAGE} tokens takes"
    holds = f"{holds} with a recurrent state" if row_bytes else holds
    holds_one = cache_bytes is None or cache_bytes >= least
    require(holds_one, "load", "cache_bytes", f"at least {least}, which {holds}", cache_bytes)
    size = memory_limit() // 4 if cache_bytes is None else cache_bytes
    most_rows = MOST_KEPT_BYTES // row_bytes + _SEQUENCES if row_bytes else 0
    while True:
        rows = max(1, min(most_rows, size // 2 // row_bytes)) if row_bytes else 0
        count = max(1, (size - rows * row_bytes) // page_bytes)
        try:
            storage = new_storage(count, 1 + rows) if row_bytes else new_storage(count)
            return PagePool(storage, MOST_KEPT_BYTES // page_bytes, long_after)
        except MemoryError as error:
            if cache_bytes is not None or count == 1:
                taken = count * page_bytes + rows * row_bytes
                raise MemoryError(f"no address space for a cache of {taken} bytes") from error
            size //= 2


def _begin_child() -> None:
    """After a fork only the forking thread exists in the child, so pages held by other threads are released, and no other
    thread is in a pass."""
    own = threading.get_ident()
    for pool in _POOLS:
        with pool.changing_locked():
            for held in list(pool._open):
                if held.thread != own:
                    pool.close_locked(held)
                elif held.runner != own:
                    held.runner = None
    LOCK.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=_begin_child)
