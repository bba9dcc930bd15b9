"""Drafts by the checkpoint's own layers for next-token prediction (multi-token prediction, "mtp")."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from decodestep._base.checks import Phrase, refuse
from decodestep._base.threads import use_threads
from decodestep.decoding.kv_cache import PairedPages
from decodestep.decoding.next_tokens import MOST_DRAFTED, NextTokenLayers, SequenceEnd
from decodestep.decoding.sequence import CachedSequence
from decodestep.decoding.slot_feed import SlotFeed, fill_slots
from decodestep.generation.drafts.coupled_row import CoupledRow, draw_each
from decodestep.generation.drafts.drafter import Drafter, Outlook
from decodestep.generation.drafts.experience import Experience
from decodestep.sampling.row import Row

if TYPE_CHECKING:
    from decodestep.models import Model

_CHANCE = 0.6  # of a draft, before any was accepted or not
# Of the rows that layers have drafted for: kept from one call of `generate` to the next.
_KNOWN: WeakKeyDictionary[NextTokenLayers, Experience] = WeakKeyDictionary()
_MOST_OF_ONE = 4  # tokens of a layer that reads its own outputs, which it was not trained for


class NextTokenDrafts:
    """Makes the drafters of a model's own layers for next-token prediction: a DrafterFactory.

    Raises ValueError for a model that has none.
    """

    def __init__(self, model: Model) -> None:
        layers, storage = model.decoder.next_tokens, model.cache.storage
        if layers is None or not isinstance(storage, PairedPages):
            rule = 'another than "mtp" for a model without layers for next-token prediction'
            refuse("generate", "draft", rule, Phrase(f'"mtp" for {model.config.name}'))
        self.model, self.layers, self.pages = model, layers, storage.next_tokens
        self.experience = _KNOWN.setdefault(self.layers, Experience())

    def __call__(self, row: Row) -> NextTokenDrafter:
        return NextTokenDrafter(self, row)

    @property
    def most(self) -> int:
        """The largest number of tokens of a draft."""
        return _MOST_OF_ONE if self.layers.count == 1 else self.layers.count

    def propose_all(self, asked: Sequence[tuple[NextTokenDrafter, Row, int]]) -> list[list[int]]:
        """The proposals of drafters of this model, each for its row with its limit: one pass for the next token of each."""
        drafts: list[list[int]] = [[] for _ in asked]
        limits = [min(limit, self.most) for _, _, limit in asked]
        began, filled = time.perf_counter(), 0
        with use_threads(self.model.threads):
            filled = fill_slots(drafter.sequence for drafter, _, _ in asked if drafter.sequence is not None)
        ends = [(i, end) for i, (drafter, row, _) in enumerate(asked) if (end := drafter.end(row)) is not None]
        ends = ends[: MOST_DRAFTED // max(limits)]
        if not ends:
            return drafts
        tokens = {at: asked[i][1].history.tokens[-1] for at, (i, _) in enumerate(ends)}
        with use_threads(self.model.threads), self.layers.drafting([end for _, end in ends], max(limits), self.pages) as made:
            while tokens:
                logits = made.logits(tokens)
                rows = [asked[ends[at][0]][0].coupled for at in tokens]
                drawn = list(zip(tokens, rows, draw_each(rows, logits), strict=True))
                now = time.perf_counter()
                self.experience.time(now - began, len(rows), len(rows) + filled)
                began, filled = now, 0
                tokens = {}
                for at, row, token in drawn:
                    i = ends[at][0]
                    drafts[i] += [token] * (token >= 0)
                    if len(drafts[i]) < limits[i] and not row.is_end(token):
                        tokens[at] = token
        return drafts


class NextTokenDrafter(Drafter):
    """Proposes what the model's layers for next-token prediction draw for a row, with the row's own params and noise: see
    `CoupledRow`."""

    kind = "mtp"

    def __init__(self, source: NextTokenDrafts, row: Row) -> None:
        self._source = source
        self.experience = source.experience
        self.coupled = CoupledRow(row)
        self.sequence: CachedSequence | None = None

    def attach(self, sequence: CachedSequence) -> None:
        self.sequence = sequence
        sequence.feed = SlotFeed(self._source.layers, self._source.pages)

    def outlook(self, row: Row, most: int) -> Outlook:
        feed = None if self.sequence is None else self.sequence.feed
        known = feed is not None and feed.known
        return Outlook(min(most, self._source.most) if known else 0, _CHANCE, self.experience.seconds())

    def propose(self, row: Row, limit: int) -> Sequence[int]:
        return self._source.propose_all([(self, row, limit)])[0]

    @classmethod
    def propose_all(cls, asked: Sequence[tuple[Drafter, Row, int]]) -> list[Sequence[int]]:
        own = [(drafter, row, limit) for drafter, row, limit in asked if isinstance(drafter, NextTokenDrafter)]
        return list(own[0][0]._source.propose_all(own)) if own else []

    def end(self, row: Row) -> SequenceEnd | None:
        """Where a draft begins; None where it cannot, because a state is not known."""
        sequence = self.sequence
        states = None if sequence is None or sequence.feed is None else sequence.feed.states(len(sequence) - 1)
        if sequence is None or states is None:
            return None
        self.coupled.follow(row.history.tokens)
        return SequenceEnd(len(sequence), sequence.page_numbers, states)

    def close(self) -> None:
        sequence, self.sequence = self.sequence, None
        if sequence is not None:  # so that what follows the row's text finds all of its slots
            with use_threads(self._source.model.threads):
                fill_slots([sequence])
