"""The kept pages of a cache in a file, from which a later process goes on as from its own.

    "decodestep cache 1\\n"    the form of a `files.checked_file`
    a line of JSON            what the pages hang on: `key`
    for each page             a line of JSON, the values of the page, and what it has of states
    a line of JSON            null

A page's line: parent, the number of an earlier page, or -1 and -2 for the pool's roots; tokens; states, whether it has those of
layers for next-token prediction; rank, of its snapshot or null. Values are in the machine's order of bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from decodestep.decoding.holdings import Holding, Page
from decodestep.decoding.kv_cache import PAGE
from decodestep.decoding.page_pool import LOCK, PagePool
from decodestep.decoding.state_rows import END_RANK, StateRows
from decodestep.errors import CacheFileError
from decodestep.files.checked_file import CheckedReader, CheckedWriter, is_there, replacing

_FORM = b"decodestep cache 1\n"

IsSame = Callable[[tuple[int, ...], bool, int], bool]


class CacheOf(NamedTuple):
    """A model's cache, as files know it. key: what its values hang on beside the model. states: the shape of the states of a
    token, where the model has layers for next-token prediction."""

    pool: PagePool
    key: str
    states: tuple[int, int] | None


class _Found(NamedTuple):
    """What a file has of a page. row: the values of its snapshot's state."""

    parent: int
    tokens: tuple[int, ...]
    states: np.ndarray | None
    rank: int | None
    row: np.ndarray | None


class _Owner:
    """In place of a sequence."""


def is_cache_file(path: Path) -> bool:
    """Whether a file begins as those of `save`, or is empty."""
    with path.open("rb") as file:
        return _FORM.startswith(file.read(len(_FORM)))


def save(cache: CacheOf, path: Path, texts: Sequence[Sequence[int]] | None) -> int:
    """Writes the pages of a cache that texts begin with, or all that can be reused; returns how many tokens these hold.

    The file is there as a whole, or as it was before; of a link, the file to which it leads.
    """
    pool = cache.pool
    with _holding(pool) as held:
        with LOCK, pool.changing_locked():
            parents = _tree(pool, texts)
            pool.hold_locked(*parents)
            held.pages += parents
        with replacing(Path(os.path.realpath(path))) as file:
            _write(CheckedWriter(file, _FORM), cache, parents)
    return sum(len(page.tokens) for page in parents)


def restore(cache: CacheOf, path: Path, is_same: IsSame) -> int:
    """Keeps the pages of a file that `save` wrote; returns how many tokens they hold.

    is_same: is_same(tokens, long, number), whether the model computes for the tokens of a text, under the second root if long,
    what page `number` of the storage has. It is asked for the first page.
    Raises CacheFileError, or OSError where the file cannot be read, with nothing changed.
    """
    is_there(path)
    with _holding(cache.pool) as held:
        with path.open("rb") as file:
            found = _Reader(file, path, cache).read(held)
        if found and not is_same(found[0].tokens, found[0].parent == -2, held.pages[0].number):
            raise CacheFileError(f"{path}: its first page must be what this model computes, and is not")
        with LOCK, cache.pool.changing_locked():
            _link(cache.pool, held.pages, found)
    return sum(len(each.tokens) for each in found)


@contextmanager
def _holding(pool: PagePool) -> Iterator[Holding]:
    """What holds pages while they are written or read."""
    owner = _Owner()
    held = Holding(owner, pool, admitted=False)
    with LOCK, pool.changing_locked():
        pool.open_locked(held, 0)
    try:
        yield held
    finally:
        with LOCK, pool.changing_locked():
            pool.close_locked(held)


def _tree(pool: PagePool, texts: Sequence[Sequence[int]] | None) -> dict[Page, int]:
    """The pages of the tree, each with the number of the one before it, which comes first; a root's is -1 or -2.

    Pages under a root that are not full are left out, so that the file's first page is one that can be computed again.
    """
    found: dict[Page, int] = {}
    for root, parent in enumerate(pool.roots):
        level = [(parent, -1 - root, 0, texts)]
        for node, number, begin, those in level:
            for child in node.children.values():
                end = begin + len(child.tokens)
                same = None if those is None else [text for text in those if tuple(text[begin:end]) == child.tokens]
                if same != [] and end >= PAGE:
                    level.append((child, len(found), end, same))
                    found[child] = number
    return found


def _write(writer: CheckedWriter, cache: CacheOf, parents: dict[Page, int]) -> None:
    writer.line(cache.key)
    rows = cache.pool.rows
    for page, parent in parents.items():
        with LOCK:
            states, snapshot = page.states, page.snapshot
            row = None if snapshot is None or rows is None else rows.storage[snapshot.row.number].copy()
        rank = None if snapshot is None else snapshot.rank
        writer.line({"parent": parent, "tokens": page.tokens, "states": states is not None, "rank": rank})
        for part in cache.pool.storage.parts(page.number):
            writer.put(_bytes(part))
        for values in (states, row):
            if values is not None:
                writer.put(_bytes(values))
    writer.line(None)
    writer.end()


def _bytes(values: np.ndarray) -> memoryview:
    return np.ascontiguousarray(values).view(np.uint8).data


class _Reader:
    """Reads a file into pages that a sequence of `restore` holds."""

    def __init__(self, file: BinaryIO, path: Path, cache: CacheOf) -> None:
        self._file, self._cache = file, cache
        self._checked = CheckedReader(file, path, _FORM, "file of cached pages")

    def read(self, held: Holding) -> list[_Found]:
        """What the file has of each page, once all of it has been found to be whole. The values of pages are in held.pages."""
        if self._checked.line() != self._cache.key:
            self._checked.fail("is of another model, version or kind of processor, or of a model that is loaded in another way")
        found: list[_Found] = []
        while (line := self._checked.line()) is not None:
            found.append(self._page(line, found, held))
        self._checked.end()
        if self._file.read(1):
            self._checked.fail("is damaged")
        return found

    def _page(self, line: Any, before: Sequence[_Found], held: Holding) -> _Found:
        pool, cache = self._cache.pool, self._cache
        if not (isinstance(line, dict) and line.keys() == {"parent", "tokens", "states", "rank"}):
            self._checked.fail("is damaged")
        parent, tokens, states, rank = line["parent"], line["tokens"], line["states"], line["rank"]
        whole = type(parent) is int and -2 <= parent < len(before) and isinstance(tokens, list) and 0 < len(tokens) <= PAGE
        whole = whole and (parent < 0 or len(before[parent].tokens) == PAGE)
        whole = whole and all(type(token) is int and token >= 0 for token in tokens) and type(states) is bool
        whole = whole and (rank is None or (type(rank) is int and 0 <= rank <= END_RANK and pool.rows is not None))
        whole = whole and (len(tokens) == PAGE or (rank is not None and parent >= 0)) and not (states and cache.states is None)
        if not whole:
            self._checked.fail("is damaged")
        with LOCK, pool.changing_locked():
            held.pages.append(pool.take_locked())
        for part in pool.storage.parts(held.pages[-1].number):
            part[...] = self._values(part.shape, part.dtype)
        own = self._values(cache.states, np.dtype(np.float32)) if states and cache.states is not None else None
        row = None
        if rank is not None and pool.rows is not None:
            row = self._values(pool.rows.storage.shape[1:], pool.rows.storage.dtype)
        return _Found(parent, tuple(tokens), own, rank, row)

    def _values(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return np.frombuffer(self._checked.take(math.prod(shape) * dtype.itemsize), np.uint8).view(dtype).reshape(shape)


def _link(pool: PagePool, pages: list[Page], found: Sequence[_Found]) -> None:
    """Brings pages that have been read into the pool's tree; those that are there already take their places in the list."""
    ends: list[int] = []
    for i, each in enumerate(found):
        parent = pages[each.parent] if each.parent >= 0 else pool.roots[-1 - each.parent]
        ends.append(len(each.tokens) + (ends[each.parent] if each.parent >= 0 else 0))
        room = pool.rows is not None and each.row is not None and pool.rows.spare_locked() > 0
        if len(each.tokens) == PAGE:
            pages[i] = pool.share_locked(pages[i], parent, each.tokens)
        elif room and each.tokens not in parent.children:
            pool.share_part_locked(pages[i], parent, each.tokens)
        if pages[i].parent is not None and pages[i].states is None:
            pages[i].states = each.states
        if room and pool.rows is not None and pages[i].parent is not None and pages[i].snapshot is None:
            _keep_locked(pool.rows, pages[i], each, ends[i])


def _keep_locked(rows: StateRows, page: Page, found: _Found, end: int) -> None:
    """Makes a state the snapshot of a page. There is a row for it, to which nobody has a claim."""
    rows.claim_locked(1)
    row = rows.take_locked()
    rows.storage[row.number] = found.row
    rows.keep_locked(page, row, end, found.rank)
    rows.release_locked(row)
    rows.claim_locked(-1)
