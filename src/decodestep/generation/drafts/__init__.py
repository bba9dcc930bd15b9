"""Drafts: tokens that are run before they are drawn, so that a forward pass may give several. They change no text.

- `drafter`: the interface; `lookup`, `next_token_drafts`, `draft_model`, `forced`: the drafters, one a module;
- `coupled_row`: how a drafter draws with the params and the noise of its row;
- `lengths`: how long a draft is; `drafting`: the drafts of the rows of a batch.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from decodestep._base.checks import Phrase, refuse, require
from decodestep.errors import ModelError
from decodestep.generation.drafts.draft_model import DraftModel
from decodestep.generation.drafts.drafter import Drafter as Drafter
from decodestep.generation.drafts.drafter import DrafterFactory
from decodestep.generation.drafts.drafter import Outlook as Outlook
from decodestep.generation.drafts.lookup import LookupDrafter
from decodestep.generation.drafts.next_token_drafts import NextTokenDrafts
from decodestep.sampling.row import Row

if TYPE_CHECKING:
    from decodestep.models import Model

Draft: TypeAlias = "str | Model | DrafterFactory | None"

_RULE = '"auto", "lookup", "mtp", a smaller model, a function that makes a Drafter for a row, or None'


def drafters_of(model: Model, draft: Draft) -> list[DrafterFactory]:
    """What makes the drafters of each row of a model, for the argument `draft` of `generate`.

    Raises ValueError for anything else, for a model with other tokens, and for "mtp" where the model has no such layers.
    """
    from decodestep.models.model import Model  # which takes long to import: a program that has a model has it already

    if draft is None:
        return []
    if isinstance(draft, Model):
        require(draft is not model, "generate", "draft", "another model than the one that draws", Phrase("the same"))
        return [DraftModel(draft, model)]
    if draft == "auto":
        return [_Lookup(model), *([] if model.decoder.next_tokens is None else [NextTokenDrafts(model)])]
    if draft == "lookup":
        return [_Lookup(model)]
    if draft == "mtp":
        return [NextTokenDrafts(model)]
    if callable(draft):
        return [draft]
    refuse("generate", "draft", _RULE, draft)


class _Lookup:
    """Makes the lookup drafters of rows. The samples of a request come in turn, and share the ids of its prediction."""

    def __init__(self, model: Model) -> None:
        self._tokenizer, self._prediction, self._ids = model.tokenizer, "", list[int]()

    def __call__(self, row: Row) -> LookupDrafter:
        text = row.params.prediction or ""
        if text != self._prediction:
            self._prediction, self._ids = text, []
            with suppress(ModelError):  # a text without tokens is no text that the answer will repeat
                self._ids = self._tokenizer.encode(text)
        return LookupDrafter(self._ids)
