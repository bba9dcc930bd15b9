"""Drafts by a smaller model of the same vocabulary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from decodestep._base.checks import Phrase, refuse, require
from decodestep.decoding.sequence import CachedSequence
from decodestep.errors import CacheFullError
from decodestep.generation.drafts.coupled_row import CoupledRow, draw_each
from decodestep.generation.drafts.drafter import Drafter, Outlook, count_equal
from decodestep.generation.drafts.experience import Experience
from decodestep.sampling.row import Row

if TYPE_CHECKING:
    from decodestep.models import Model

_OP = "draft"  # the argument by which users know it
_CHANCE = 0.6  # of a draft, before any was accepted or not


class DraftModel:
    """Makes the drafters of a smaller model for the rows of a larger one: a DrafterFactory.

    model: drafts. target: the model whose rows they are. Both have the same tokens under the same ids.
    experience: of all rows of the target that the model has drafted for.

    Raises ValueError for a model with others, which names the first of them.
    """

    def __init__(self, model: Model, target: Model) -> None:
        self.model = model
        targets = _KNOWN.setdefault(model, WeakKeyDictionary())
        if target not in targets:
            _require_same_tokens(model, target)
        self.experience = targets.setdefault(target, Experience())

    def __call__(self, row: Row) -> ModelDrafter:
        return ModelDrafter(self, row)

    def propose_all(self, asked: Sequence[tuple[ModelDrafter, Row, int]]) -> list[list[int]]:
        """The proposals of drafters of this model, each for its row with its limit: one pass for the next token of each.

            run what each row's sequence lacks of its tokens
            while a row wants more, and has not drawn its end:  draw its next token; run it

        A row for which the model's cache has no pages proposes what it has.
        """
        drafts: list[list[int]] = [[] for _ in asked]
        unread = {i: drafter.catch_up(row) for i, (drafter, row, _) in enumerate(asked)}
        limits = [min(limit, drafter.room(row)) for drafter, row, limit in asked]
        while batch := {i: tokens for i, tokens in unread.items() if tokens and len(drafts[i]) < limits[i]}:
            began = time.perf_counter()
            logits = self._forward([drafter for drafter, _, _ in asked], batch)
            if not any(drafts):
                for i in batch:  # from here on they are drafts
                    asked[i][0].sequence.mark()
            rows = [asked[i][0].coupled for i in batch]
            drawn = draw_each(rows, logits) if rows else []
            self.experience.time(time.perf_counter() - began, len(batch), sum(map(len, batch.values())))
            unread = {}
            for i, row, token in zip(batch, rows, drawn, strict=True):
                drafts[i] += [token] * (token >= 0)
                unread[i] = [] if row.is_end(token) else [token]
        return drafts

    def _forward(self, drafters: Sequence[ModelDrafter], batch: dict[int, list[int]]) -> np.ndarray:
        """Runs tokens of drafters, by their indices; takes the last ones out of the batch until the cache has room for it."""
        while batch:
            try:
                return self.model.forward([(drafters[i].sequence, tokens) for i, tokens in batch.items()])
            except CacheFullError:
                i, _ = batch.popitem()
                drafters[i].close()
        return np.zeros((0, self.model.config.vocab_size), np.float32)


class ModelDrafter(Drafter):
    """Proposes what a smaller model draws for a row, with the row's own params and noise: see `CoupledRow`.

    Its sequence in that model's cache has the row's tokens, and drafts, which it takes back when the row has drawn others.
    """

    kind = "model"

    def __init__(self, source: DraftModel, row: Row) -> None:
        self._source = source
        self.experience = source.experience
        self.coupled = CoupledRow(row)
        self._sequence: CachedSequence | None = None
        self._same = 0  # how many tokens of the sequence are certainly the row's

    @property
    def sequence(self) -> CachedSequence:
        if self._sequence is None:
            self._sequence = CachedSequence(self._source.model.cache, admitted=True)  # which ends with its row
        return self._sequence

    def room(self, row: Row) -> int:
        """How many tokens it can draft within the model's context: the last of them is not run."""
        return max(0, self._source.model.config.context + 1 - len(row.history))

    def outlook(self, row: Row, most: int) -> Outlook:
        length, drawn = len(row.history), len(row.history) - row.history.prompt_length
        remaining = (row.params.max_new_tokens or drawn + most) - drawn
        return Outlook(min(most, self.room(row)), _CHANCE, self.experience.seconds(length - self._same, remaining))

    def propose(self, row: Row, limit: int) -> Sequence[int]:
        return self._source.propose_all([(self, row, limit)])[0]

    @classmethod
    def propose_all(cls, asked: Sequence[tuple[Drafter, Row, int]]) -> list[Sequence[int]]:
        own = [(drafter, row, limit) for drafter, row, limit in asked if isinstance(drafter, ModelDrafter)]
        proposals: dict[ModelDrafter, Sequence[int]] = {}
        for source in dict.fromkeys(drafter._source for drafter, _, _ in own):
            group = [each for each in own if each[0]._source is source]
            proposals.update(zip((drafter for drafter, _, _ in group), source.propose_all(group), strict=True))
        return [proposals[drafter] for drafter, _, _ in own]

    def catch_up(self, row: Row) -> list[int]:
        """Takes back the drafts that the row has not drawn. Returns the row's tokens that are to be run, the last one at least;
        none if context or cache are too small for them."""
        tokens = row.history.tokens
        if not self.room(row):
            return []
        self.coupled.follow(tokens)
        try:
            sequence = self.sequence
            if not len(sequence):
                sequence.reuse(tokens)
            same = min(count_equal(sequence.tokens, tokens, self._same), len(tokens) - 1)
            if same < len(sequence):
                sequence.truncate(same)
        except CacheFullError:
            self.close()
            return []
        self._same = len(tokens)
        return tokens[same:]

    def close(self) -> None:
        if self._sequence is not None:
            self._sequence.close()
        self._sequence, self._same = None, 0


# By the model that drafts and its targets: kept from one call of `generate` to the next, since comparing two vocabularies takes
# tens of milliseconds.
_KNOWN: WeakKeyDictionary[Model, WeakKeyDictionary[Model, Experience]] = WeakKeyDictionary()


def _require_same_tokens(model: Model, target: Model) -> None:
    size, other = target.config.vocab_size, model.config.vocab_size
    require(size == other, _OP, "model", f"one of the target's {size} tokens", Phrase(f"one of {other}"))
    ours, theirs = (each.tokenizer.token for each in (model, target))
    for token in range(size):
        if ours(token) != theirs(token):
            rule = f"one with the target's tokens, of which {token} is {theirs(token)!r}"
            refuse(_OP, "model", rule, Phrase(f"one with {ours(token)!r}"))
