"""The rows of recurrent states: which of them sequences have, and which are snapshots from which later sequences go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decodestep.decoding.kv_cache import PAGE
from decodestep.decoding.states import ZERO_ROW
from decodestep.errors import CacheFullError

if TYPE_CHECKING:
    from decodestep.decoding.holdings import Holding, Page

# Of snapshots where a prompt or an answer ended, and before the last turn of a user; below them are those between, by the power
# of two in their position.
END_RANK, TURN_RANK = 13, 12


class StateRow:
    """A row of the storage. number: its index. users: how many sequences and snapshots have it; of several nobody writes it."""

    __slots__ = ("number", "users")

    def __init__(self, number: int) -> None:
        self.number = number
        self.users = 1


class Reached(NamedTuple):
    """A state of a sequence. row: None for zeros, which are the state before the first token. position: how many tokens it is
    after; -1 while a pass writes it."""

    row: StateRow | None
    position: int


START = Reached(None, 0)
WRITTEN = -1


class Snapshot:
    """The state after the last token of a page in the pool's tree. rank: those of the lowest go first. uses: how many sequences
    have gone on from it."""

    __slots__ = ("rank", "row", "uses")

    def __init__(self, row: StateRow, rank: int, uses: int) -> None:
        self.row, self.rank, self.uses = row, rank, uses


class StateRows:
    """Allocates rows. Methods whose names end in `_locked` require the pool's lock, as there, and a change of the pool.

        a row is    held        by sequences: of each its state, and one from which it may go on again
                    snapshot    of a page of the tree; it may be held, too
                    free        neither

    An open sequence has a claim to one row, and to a second where it also keeps an earlier state. Claims never exceed the
    rows, and a snapshot goes where a claim is made good, so that a pass cannot run out of rows.

    storage: float32 (1 + count, values of a row), of which the first row is zeros. most_snapshots: the least recently used go
    first, of those with the lowest rank. interval: the number of tokens whose keys and values take as much memory as a row.
    """

    def __init__(self, storage: np.ndarray, most_snapshots: int, interval: int) -> None:
        self.storage = storage
        self.count = len(storage) - 1
        self.row_bytes = storage.shape[1] * storage.itemsize
        self.interval = interval
        self._most = most_snapshots
        self._fresh = ZERO_ROW + 1  # the first row that has never been handed out
        self._free: list[int] = []
        self._claimed = 0
        self._snapshots: list[dict[Page, None]] = [{} for _ in range(END_RANK + 1)]  # by rank, by their last use

    @property
    def snapshots(self) -> int:
        """The number of snapshots."""
        return sum(map(len, self._snapshots))

    def spare_locked(self) -> int:
        """The number of rows to which nobody has a claim."""
        return self.count - self._claimed

    def require_locked(self, claims: int) -> None:
        if claims > self.spare_locked():
            size = self.row_bytes / 2**20
            raise CacheFullError(
                f"the cache has {self.spare_locked()} of its {self.count} recurrent states free, and {claims} are needed: load "
                f"the model with more cache_bytes ({size:.2f} MiB a state), or run fewer sequences at once"
            )

    def claim_locked(self, rows: int) -> None:
        """Claims this many more rows, which are spare; below 0 gives claims up."""
        self._claimed += rows

    def take_locked(self) -> StateRow:
        """A row for one user, whose claim it is."""
        while not self._free and self._fresh > self.count:
            self._evict_locked()
        if self._free:
            return StateRow(self._free.pop())
        self._fresh += 1
        return StateRow(self._fresh - 1)

    def own_locked(self, row: StateRow) -> StateRow:
        """The row if it has no other user, by now, or else a copy in its place."""
        while row.users > 1 and not self._free and self._fresh > self.count:
            self._evict_locked()
        if row.users == 1:
            return row
        copy = self.take_locked()
        self.storage[copy.number] = self.storage[row.number]
        self.release_locked(row)
        return copy

    def hold_locked(self, row: StateRow | None) -> None:
        if row is not None:
            row.users += 1

    def release_locked(self, row: StateRow | None) -> None:
        if row is not None:
            row.users -= 1
            if row.users == 0:
                self._free.append(row.number)

    def keep_locked(self, page: Page, row: StateRow, position: int, rank: int | None, *, shared: bool = False) -> None:
        """Makes a row, which has the state after `position` tokens, the snapshot of a page of the tree that has none.

        rank: of its own; None: that of its position. shared: whether other texts are known to go on from there.
        """
        if rank is None:
            pages = position // PAGE
            rank = min((pages & -pages).bit_length(), TURN_RANK) - 1
        self.hold_locked(row)
        page.snapshot = Snapshot(row, rank, int(shared))
        self._snapshots[rank][page] = None
        while self.snapshots > self._most:
            self._evict_locked()

    def use_locked(self, page: Page) -> None:
        """A sequence goes on from the page's snapshot."""
        assert page.snapshot is not None
        page.snapshot.uses += 1
        self._rank_locked(page, END_RANK if page.snapshot.uses > 1 else page.snapshot.rank)

    def pass_locked(self, page: Page, uses: int, rank: int = 0) -> None:
        """A text has gone on to a later snapshot: the rank of an end that had no more uses falls, or of the state before a turn
        that is no longer the last."""
        snapshot = page.snapshot
        if snapshot is None or not rank < snapshot.rank >= TURN_RANK:
            return
        if snapshot.uses <= (uses if snapshot.rank == END_RANK else 1):
            self._rank_locked(page, rank)

    def drop_locked(self, page: Page) -> None:
        """Drops the page's snapshot, if it has one."""
        if page.snapshot is not None:
            del self._snapshots[page.snapshot.rank][page]
            snapshot, page.snapshot = page.snapshot, None
            self.release_locked(snapshot.row)

    def close_locked(self, held: Holding) -> None:
        """Takes back what a sequence has."""
        states = [each for each in (held.state, held.before) if each is not None]
        held.state, held.before = START, None
        self._claimed -= len(states)
        for state in states:
            self.release_locked(state.row)

    def clear_locked(self) -> None:
        """Drops all snapshots."""
        while self.snapshots:
            self._evict_locked()

    def recount_locked(self, open_: Iterable[Holding], tree: Iterable[Page]) -> None:
        """As that of the pool."""
        reached = [each for held in open_ for each in (held.state, held.before) if each is not None]
        kept = [page for page in tree if page.snapshot is not None]
        rows = [each.row for each in reached if each.row is not None]
        users = Counter([*rows, *(page.snapshot.row for page in kept if page.snapshot is not None)])
        for row, count in users.items():
            row.users = count
        taken = {row.number for row in users}
        self._free = [number for number in range(ZERO_ROW + 1, self._fresh) if number not in taken]
        self._claimed = len(reached)
        order = {page: place for place, page in enumerate(page for pages in self._snapshots for page in pages)}
        self._snapshots = [{} for _ in self._snapshots]
        for page in sorted(kept, key=lambda page: order.get(page, len(order))):
            if page.snapshot is not None:
                self._snapshots[page.snapshot.rank][page] = None

    def _rank_locked(self, page: Page, rank: int) -> None:
        """Gives a page's snapshot a rank, as the most recently used of it."""
        assert page.snapshot is not None
        del self._snapshots[page.snapshot.rank][page]
        page.snapshot.rank = rank
        self._snapshots[rank][page] = None

    def _evict_locked(self) -> None:
        self.drop_locked(next(page for pages in self._snapshots for page in pages))


def passed_pages(path: Sequence[Page], tokens: Sequence[int], last: Page) -> list[Page]:
    """The pages of a text before `last`, which follows path or is its end, with those that are partly filled."""
    found = [page for page in path[1:] if page is not last]
    for place, page in enumerate(path):
        part = tuple(tokens[place * PAGE : (place + 1) * PAGE - 1])
        after = (page.children.get(part[:count]) for count in range(1, len(part) + 1))
        found += [each for each in after if each is not None and each is not last]
    return found


def last_snapshot(path: Sequence[Page], tokens: Sequence[int]) -> tuple[int, Page] | None:
    """The last snapshot from which a text can go on: the page that has it, and its place in path, or that of the page before it
    if it is partly filled; None without one.

    path: pages that follow each other. tokens: those of the text after path[0]; path[1:] holds the first of them.
    """
    for place in reversed(range(len(path))):
        part = tokens[place * PAGE : (place + 1) * PAGE - 1] if path[place].children else ()
        for count in range(len(part), 0, -1):
            page = path[place].children.get(tuple(part[:count]))
            if page is not None and page.snapshot is not None:
                return place, page
        if place and path[place].snapshot is not None:
            return place, path[place]
    return None
