"""Drafting: what the rows of a batch draft for their next pass, and what has become of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from decodestep.decoding.sequence import CachedSequence
from decodestep.generation.drafts.drafter import Drafter, DrafterFactory, Outlook, count_equal
from decodestep.generation.drafts.forced import ForcedDrafter
from decodestep.generation.drafts.lengths import Acceptance, choose_lengths, expected_tokens
from decodestep.sampling.row import Row

MOST = 32  # tokens of a draft: more take longer than they gain, and hold up the other rows of the pass


@dataclass
class _Source:
    """A drafter of a row, and what has become of its drafts."""

    drafter: Drafter
    acceptance: Acceptance = field(default_factory=Acceptance)


class _Offer(NamedTuple):
    """What a drafter offers for a row. claimed: the chance by the drafter; that of the outlook is corrected."""

    key: int
    source: _Source
    claimed: float
    outlook: Outlook


class _Draft(NamedTuple):
    """The draft of a row with `length` tokens."""

    source: _Source
    claimed: float
    length: int
    tokens: list[int]


class Drafting:
    """The drafts of the rows of a batch.

    factories: of the drafters that each row has, but for rows with `params.draft` False. A row whose constraint leaves no
        choice drafts the text that must follow in any case. Of a row's drafters the one that promises most proposes.
    """

    def __init__(self, factories: Sequence[DrafterFactory] = ()) -> None:
        self._factories = factories
        self._sources: dict[int, list[_Source]] = {}  # of each row, by the batch's keys
        self._drafts: dict[int, _Draft] = {}  # those that a pass is running, or has run
        self._errors: dict[int, Exception] = {}  # of rows whose drafters have raised

    def add(self, key: int, row: Row) -> None:
        """Adds a row."""
        forced = [] if row.constraint is None else [ForcedDrafter(row.constraint)]
        chosen = [factory(row) for factory in self._factories] if row.params.draft else []
        self._sources[key] = [_Source(drafter) for drafter in (*forced, *chosen)]

    def attach(self, key: int, sequence: CachedSequence) -> None:
        """Tells a row's drafters its sequence in the model's cache."""
        with self._of_row(key):
            for source in self._sources[key]:
                source.drafter.attach(sequence)

    def release(self, key: int) -> None:
        """Makes a row's drafters release what they hold, and forgets its draft."""
        self.drop(key)
        for source in self._sources.get(key, ()):
            with suppress(Exception):  # nothing depends on it
                source.drafter.close()

    def remove(self, key: int) -> None:
        """Removes a row."""
        self.release(key)
        self._sources.pop(key, None)

    def close(self) -> None:
        """Makes all drafters release what they hold."""
        for key in self._sources:
            self.release(key)

    def take_errors(self) -> dict[int, Exception]:
        """What drafters have raised since the last call, by the rows that this ends."""
        errors, self._errors = self._errors, {}
        return errors

    def choose(self, rows: Mapping[int, Row], room: Callable[[int], int], seconds: Callable[[int], float] | None) -> None:
        """Chooses a draft for each row that is to have one in the next pass, in place of those it had.

        rows: all of the pass, by their keys. room: how many tokens a row may draft at most. seconds: the time of the pass with
        so many drafted tokens; None: only those are drafted that are certain.
        """
        offers: list[_Offer] = []
        for key, row in rows.items():
            self.drop(key)
            with self._of_row(key):
                offers += [offer] if (offer := self._best_offer(key, row, room)) else []
        asked = [(offer, offer.outlook.tokens) for offer in offers if offer.source.drafter.is_certain]
        if seconds is not None and len(offers) > len(asked):
            others = [offer for offer in offers if not offer.source.drafter.is_certain]
            certain = sum(length for _, length in asked)
            lengths = choose_lengths([offer.outlook for offer in others], len(rows) + certain, lambda n: seconds(certain + n))
            asked += [(offer, length) for offer, length in zip(others, lengths, strict=True) if length]
        for kind in dict.fromkeys(type(offer.source.drafter) for offer, _ in asked):
            group = [(offer, length) for offer, length in asked if type(offer.source.drafter) is kind]
            with self._of_row(*(offer.key for offer, _ in group)):
                proposals = kind.propose_all([(offer.source.drafter, rows[offer.key], length) for offer, length in group])
                for (offer, length), proposal in zip(group, proposals, strict=True):
                    self._take(offer, rows[offer.key], proposal[:length])

    def drop(self, key: int) -> None:
        """Forgets a row's draft."""
        self._drafts.pop(key, None)

    @property
    def possible(self) -> bool:
        """Whether any row has a drafter."""
        return any(self._sources.values())

    @property
    def pending(self) -> bool:
        """Whether there are drafts that have not been settled."""
        return bool(self._drafts)

    def tokens(self, key: int) -> list[int]:
        """The draft of a row, [] for none."""
        draft = self._drafts.get(key)
        return [] if draft is None else draft.tokens

    def settle(self, key: int, row: Row) -> None:
        """Counts what a row, which has drawn its tokens since, has accepted of its draft."""
        source, claimed, length, tokens = self._drafts.pop(key)
        drawn = row.history.tokens[length:]
        accepted = count_equal(drawn, tokens)
        source.acceptance.learn(claimed, accepted, min(len(drawn), len(tokens)), length)
        if not source.drafter.is_certain:
            row.drafted += len(tokens)
            row.accepted += range(length, length + accepted)

    def _take(self, offer: _Offer, row: Row, proposal: Sequence[int]) -> None:
        """Takes a proposal as the row's draft, up to what is no token."""
        ids = range(row.plan.vocab_size)
        if tokens := list(takewhile(ids.__contains__, map(int, proposal))):
            self._drafts[offer.key] = _Draft(offer.source, offer.claimed, len(row.history), tokens)

    @contextmanager
    def _of_row(self, *keys: int) -> Iterator[None]:
        """Context manager around what drafters of rows do: if they raise, these rows end, and no others."""
        try:
            yield
        except Exception as error:
            for key in keys:
                self.remove(key)
                self._sources[key] = []
                self._errors[key] = error

    def _best_offer(self, key: int, row: Row, room: Callable[[int], int]) -> _Offer | None:
        """That of a drafter that is certain, or else of the one with the most expected tokens, if any has one."""
        offers: list[_Offer] = []
        for source in self._sources[key]:
            claimed = source.drafter.outlook(row, MOST)
            tokens = min(claimed.tokens, room(key)) if claimed.tokens > 0 else 0
            if tokens > 0:
                chance = source.acceptance.chance(claimed.chance, len(row.history))
                offers.append(_Offer(key, source, claimed.chance, claimed._replace(tokens=tokens, chance=chance)))
                if source.drafter.is_certain:
                    return offers[-1]
        return max(offers, key=lambda offer: expected_tokens(offer.outlook), default=None)
