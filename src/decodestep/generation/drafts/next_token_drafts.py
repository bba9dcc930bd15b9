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
from decodestep.generation.drafts.coupled_row import CoupledRow, draw_each
from decodestep.generation.drafts.drafter import Drafter, Outlook
from decodestep.generation.drafts.lengths import Average
from decodestep.sampling.row import Row

if TYPE_CHECKING:
    from decodestep.models import Model

_CHANCE = 0.6  # of a draft, before any was accepted or not
# Of a drafted token, by the layers that draft: kept from one call of `generate` to the next.
_SECONDS: WeakKeyDictionary[NextTokenLayers, Average] = WeakKeyDictionary()
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
        self.seconds = _SECONDS.setdefault(self.layers, Average())

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
        ends = [(i, end) for i, (drafter, row, _) in enumerate(asked) if (end := drafter.end(row)) is not None]
        ends = ends[: MOST_DRAFTED // max(limits)]
        if not ends:
            return drafts
        tokens = {at: asked[i][1].history.tokens[-1] for at, (i, _) in enumerate(ends)}
        with use_threads(self.model.threads), self.layers.drafting([end for _, end in ends], max(limits), self.pages) as made:
            while tokens:
                began = time.perf_counter()
                logits = made.logits(tokens)
                rows = [asked[ends[at][0]][0].coupled for at in tokens]
                drawn = list(zip(tokens, rows, draw_each(rows, logits), strict=True))
                self.seconds.add((time.perf_counter() - began) / len(rows))
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

    def __init__(self, source: NextTokenDrafts, row: Row) -> None:
        self._source = source
        self.coupled = CoupledRow(row)
        self._sequence: CachedSequence | None = None

    def attach(self, sequence: CachedSequence) -> None:
        self._sequence = sequence

    def outlook(self, row: Row, most: int) -> Outlook:
        known = self._sequence is not None and self._sequence.last_states is not None
        return Outlook(min(most, self._source.most) if known else 0, _CHANCE, self._source.seconds.value)

    def propose(self, row: Row, limit: int) -> Sequence[int]:
        return self._source.propose_all([(self, row, limit)])[0]

    @classmethod
    def propose_all(cls, asked: Sequence[tuple[Drafter, Row, int]]) -> list[Sequence[int]]:
        own = [(drafter, row, limit) for drafter, row, limit in asked if isinstance(drafter, NextTokenDrafter)]
        return list(own[0][0]._source.propose_all(own)) if own else []

    def end(self, row: Row) -> SequenceEnd | None:
        """Where a draft begins; None where it cannot, because a state is not known."""
        sequence = self._sequence
        if sequence is None or (states := sequence.last_states) is None:
            return None
        self.coupled.follow(row.history.tokens)
        return SequenceEnd(len(sequence), sequence.page_numbers, states)

    def close(self) -> None:
        self._sequence = None
