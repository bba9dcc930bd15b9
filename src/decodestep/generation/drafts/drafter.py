"""The interface of drafters: what proposes the next tokens of a row, for the row's own draws to accept or not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from decodestep.decoding.sequence import CachedSequence
from decodestep.generation.drafts.experience import Experience
from decodestep.sampling.row import Row


class Outlook(NamedTuple):
    """What a drafter expects of its next proposal.

    Attributes:
        tokens: how many it can propose.
        chance: that the row draws one of them if it has drawn those before, in [0, 1], by its kind alone.
        seconds: what it takes to propose one.
    """

    tokens: int
    chance: float
    seconds: float = 0.0


class Drafter(ABC):
    """Proposes tokens that one row may draw next. Wrong ones cost time and change nothing.

    A drafter is asked between two passes of its row. It reads the row's tokens itself, which since its last proposal have
    become more, by any number of those it proposed and others. What it raises ends its row, and those that it proposes for
    together.

    Attributes:
        is_certain: whether all its tokens will be drawn. They are then run whatever they take, and are not counted as drafted.
        kind: what the tokens that it has proposed last are counted as, in `Row.drafted` and `Row.accepted`.
        experience: what has become of its drafts: its own, or one that it shares with others.
    """

    is_certain: bool = False
    kind: str = "other"

    @cached_property
    def experience(self) -> Experience:
        return Experience()

    def outlook(self, row: Row, most: int) -> Outlook:
        """What a proposal of up to `most` tokens, >= 1, promises; takes microseconds."""
        return Outlook(most, 0.5)

    @abstractmethod
    def propose(self, row: Row, limit: int) -> Sequence[int]:
        """Up to `limit` token ids, limit >= 1, that may follow the row's tokens."""

    @classmethod
    def propose_all(cls, asked: Sequence[tuple[Drafter, Row, int]]) -> list[Sequence[int]]:
        """The proposals of several drafters of this class, each for its row with its limit."""
        return [drafter.propose(row, limit) for drafter, row, limit in asked]

    def attach(self, sequence: CachedSequence) -> None:  # noqa: B027  # most need no more than the row
        """Tells it the row's sequence in the model's cache, which is another one after the row had to give up its pages.

        Whenever the drafter is asked, all of the row's tokens but the last have been run.
        """

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """Releases what it holds: the row has ended, or gives up its pages for a while. What it raises is ignored."""


DrafterFactory = Callable[[Row], Drafter]  # makes that of a new row


def count_equal(one: Sequence[int], other: Sequence[int], known: int = 0) -> int:
    """With how many equal tokens two sequences begin. known: how many of them are known to be, as far as both have them."""
    most = min(len(one), len(other))
    same = min(known, most)
    while same < most and one[same] == other[same]:
        same += 1
    return same
