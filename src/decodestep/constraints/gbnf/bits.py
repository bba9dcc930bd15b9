"""Sets of small numbers as integers, with a bit for each member."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_


def union(sets: Iterable[int]) -> int:
    """All members of all sets."""
    return reduce(or_, sets, 0)


def members_of(numbers: int) -> Iterator[int]:
    """The members, in ascending order."""
    while numbers:
        lowest = numbers & -numbers
        yield lowest.bit_length() - 1
        numbers ^= lowest


def meeting(sets: list[int]) -> list[int]:
    """For each set the numbers of the sets with which it has a member in common, as a set."""
    having: dict[int, int] = {}
    for number, each in enumerate(sets):
        for member in members_of(each):
            having[member] = having.get(member, 0) | 1 << number
    return [union(having[member] for member in members_of(each)) for each in sets]
