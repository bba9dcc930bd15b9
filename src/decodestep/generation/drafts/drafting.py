"""Drafting: what the rows of a batch draft for their next pass, and what has become of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import NamedTuple

from decodestep.decoding.sequence import CachedSequence
from decodestep.generation.drafts.drafter import Drafter, DrafterFactory, Outlook, count_equal
from decodestep.generation.drafts.forced import ForcedDrafter
from decodestep.generation.drafts.lengths import choose_lengths, expected_tokens
from decodestep.sampling.row import Row

MOST = 32  # tokens of a draft: more take longer than they gain, and hold up the other rows of the pass


class _Offer(NamedTuple):
    """What a drafter offers for a row. claimed: the chance by the drafter; that of the outlook is corrected."""

    key: int
    drafter: Drafter
    claimed: float
    outlook: Outlook


class _Draft(NamedTuple):
    """The draft of a row with `length` tokens. kind: the drafter's."""

    drafter: Drafter
    kind: str
    claimed: float
    length: int
    tokens: list[int]


class Drafting:
    """The drafts of the rows of a batch. Of a row's drafters the one that promises most proposes."""

    def __init__(self) -> None:
        self._drafters: dict[int, list[Drafter]] = {}  # of each row, by the batch's keys
        self._drafts: dict[int, _Draft] = {}  # those that a pass is running, or has run
        self._errors: dict[int, Exception] = {}  # of rows whose drafters have raised

    def add(self, key: int, row: Row, drafters: Sequence[Drafter]) -> None:
        """Adds a row with its drafters. Where its constraint or its budget leaves no choice, it drafts what must follow."""
        forced = [ForcedDrafter(source) for source in (row.budget, row.constraint) if source is not None]
        self._drafters[key] = [*forced, *drafters]

    def attach(self, key: int, sequence: CachedSequence) -> None:
        """Tells a row's drafters its sequence in the model's cache."""
        with self._blaming(key):
            for drafter in self._drafters[key]:
                drafter.attach(sequence)

    def release(self, key: int) -> None:
        """Makes a row's drafters release what they hold, and forgets its draft."""
        self.drop(key)
        for drafter in self._drafters.get(key, ()):
            with suppress(Exception):  # nothing depends on it
                drafter.close()

    def remove(self, key: int) -> None:
        """Removes a row."""
        self.release(key)
        self._drafters.pop(key, None)

    def close(self) -> None:
        """Makes all drafters release what they hold."""
        for key in self._drafters:
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
        certain: list[_Offer] = []
        uncertain: list[_Offer] = []
        for key, row in rows.items():
            self.drop(key)
            with self._blaming(key):
                offers = self._offers(key, row, room, uncertain=seconds is not None)
                certain += offers if offers and offers[0].drafter.is_certain else []
                uncertain += [] if offers and offers[0].drafter.is_certain else _best(offers)
        asked = [(offer, offer.outlook.tokens) for offer in certain]
        if seconds is not None and uncertain:
            run = sum(length for _, length in asked)
            lengths = choose_lengths([offer.outlook for offer in uncertain], len(rows) + run, lambda n: seconds(run + n))
            asked += [(offer, length) for offer, length in zip(uncertain, lengths, strict=True) if length]
            for offer, length in zip(uncertain, lengths, strict=True):
                if not length:
                    offer.drafter.experience.rest()
        for kind in dict.fromkeys(type(offer.drafter) for offer, _ in asked):
            group = [(offer, length) for offer, length in asked if type(offer.drafter) is kind]
            with self._blaming(*(offer.key for offer, _ in group)):
                proposals = kind.propose_all([(offer.drafter, rows[offer.key], length) for offer, length in group])
                for (offer, length), proposal in zip(group, proposals, strict=True):
                    self._take(offer, rows[offer.key], proposal[:length])

    def drop(self, key: int) -> None:
        """Forgets a row's draft."""
        self._drafts.pop(key, None)

    def possible(self, *, uncertain: bool) -> bool:
        """Whether any row has a drafter that may draft. uncertain: also one that is not certain."""
        return any(drafter.is_certain or uncertain for drafters in self._drafters.values() for drafter in drafters)

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
        drafter, kind, claimed, length, tokens = self._drafts.pop(key)
        drawn = row.history.tokens[length:]
        accepted = count_equal(drawn, tokens)
        drafter.experience.learn(claimed, accepted, min(len(drawn), len(tokens)))
        if not drafter.is_certain:
            row.drafted[kind] = row.drafted.get(kind, 0) + len(tokens)
            row.accepted |= dict.fromkeys(range(length, length + accepted), kind)

    def _take(self, offer: _Offer, row: Row, proposal: Sequence[int]) -> None:
        """Takes a proposal as the row's draft, up to what is no token."""
        ids = range(row.plan.vocab_size)
        if tokens := list(takewhile(ids.__contains__, map(int, proposal))):
            drafter = offer.drafter
            self._drafts[offer.key] = _Draft(drafter, drafter.kind, offer.claimed, len(row.history), tokens)

    @contextmanager
    def _blaming(self, *keys: int) -> Iterator[None]:
        """Context manager around what drafters of rows do: if they raise, these rows end, and no others."""
        try:
            yield
        except Exception as error:
            for key in keys:
                self.remove(key)
                self._drafters[key] = []
                self._errors[key] = error

    def _offers(self, key: int, row: Row, room: Callable[[int], int], *, uncertain: bool) -> list[_Offer]:
        """Those of a row's drafters; that of one that is certain alone, if it has one. uncertain: also those of others."""
        offers: list[_Offer] = []
        for drafter in self._drafters[key]:
            if drafter.is_certain or uncertain:
                claimed = drafter.outlook(row, MOST)
                tokens = min(claimed.tokens, room(key)) if claimed.tokens > 0 else 0
                if tokens > 0:
                    outlook = claimed._replace(tokens=tokens, chance=drafter.experience.chance(claimed.chance))
                    offers.append(_Offer(key, drafter, claimed.chance, outlook))
                    if drafter.is_certain:
                        return offers[-1:]
        return offers


def new_drafters(factories: Sequence[DrafterFactory], row: Row) -> list[Drafter]:
    """The drafters of a row, without those of what must follow; none with `params.draft` False."""
    return [factory(row) for factory in factories] if row.params.draft else []


def _best(offers: Sequence[_Offer]) -> list[_Offer]:
    """The one with the most expected tokens, if there is one; the others rest."""
    best = max(offers, key=lambda offer: expected_tokens(offer.outlook), default=None)
    for offer in offers:
        if offer is not best:
            offer.drafter.experience.rest()
    return [] if best is None else [best]
