"""An immutable mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

KeyT = TypeVar("KeyT")


class FrozenMapping(Mapping[KeyT, Any]):
    """An immutable copy of a mapping: equal to it, and hashable if its values are."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[KeyT, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: KeyT) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)
