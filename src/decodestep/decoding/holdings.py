"""What sequences have in a pool: pages, recurrent states, and the tree of full pages that can be reused."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np

from decodestep.decoding.state_rows import START, Reached, Snapshot

if TYPE_CHECKING:
    from decodestep.decoding.page_pool import PagePool


class Holding(ref[object]):
    """What an open sequence has in a pool; a weak reference to the sequence, so that the pool learns of its garbage collection.

    pages: those that it holds, in the order of its tokens. reserved: how many more the pool has reserved for it.
    state: its recurrent state, where the model has them; before: the one before drafts, or before the pass that is running.
    admitted: whether the sequence will end by itself. thread: the thread that made it. runner: the one whose forward pass runs
    tokens of it, or None.
    """

    __slots__ = ("admitted", "before", "pages", "reserved", "runner", "state", "thread")
    __eq__, __hash__ = object.__eq__, object.__hash__  # whatever becomes of the sequence

    def __new__(cls, sequence: object, pool: PagePool, *, admitted: bool) -> Holding:
        return super().__new__(cls, sequence, pool.dropped.append)  # no code of Python, which an interrupt could end

    def __init__(self, sequence: object, pool: PagePool, *, admitted: bool) -> None:
        self.pages: list[Page] = []
        self.reserved = 0
        self.state = START
        self.before: Reached | None = None
        self.admitted = admitted
        self.thread = threading.get_ident()
        self.runner: int | None = None


class Page:
    """A page that is held by sequences or kept for reuse.

    number: its index in the storage. users: the number of sequences that hold it.
    A full page is never written again and is a node of a prefix tree: `parent` is the full page before it, `tokens` its PAGE
    tokens, `children` the full pages after it, by their tokens. The path from the root is the sequence.
    latest_child: for each first token, the child that was filled last. states: of its last token, where the model has layers
    for next-token prediction (`NextTokenLayers`). snapshot: the recurrent state after its last token, if there is one; a page
    with a snapshot may be in the tree though it has fewer tokens, and none after it.
    """

    __slots__ = ("children", "latest_child", "number", "parent", "snapshot", "states", "tokens", "users")

    def __init__(self, number: int) -> None:
        self.number = number
        self.users = 1
        self.parent: Page | None = None
        self.tokens: tuple[int, ...] = ()
        self.children: dict[tuple[int, ...], Page] = {}
        self.latest_child: dict[int, Page] = {}
        self.states: np.ndarray | None = None
        self.snapshot: Snapshot | None = None
