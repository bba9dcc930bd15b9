"""Drafts: tokens that are run before they are drawn, so that a forward pass may give several. They change no text.

- `drafter`: the interface; `lookup`, `next_token_drafts`, `draft_model`, `forced`: the drafters, one a module;
- `coupled_row`: how a drafter draws with the params and the noise of its row; `experience`: what became of its drafts;
- `lengths`: how long a draft is; `drafting`: the drafts of the rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias
from weakref import ref

from decodestep._base.checks import Phrase, refuse, require
from decodestep.errors import ModelError
from decodestep.generation.drafts.draft_model import DraftModel
from decodestep.generation.drafts.drafter import Drafter as Drafter
from decodestep.generation.drafts.drafter import DrafterFactory
from decodestep.generation.drafts.drafter import Outlook as Outlook
from decodestep.generation.drafts.lookup import LookupDrafter, PairIndex
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
    """Makes the lookup drafters of rows; several threads may call it.

    The samples of a request come in turn, and share what is known of their prompt and prediction.
    """

    def __init__(self, model: Model) -> None:
        self._tokenizer = model.tokenizer
        self._prediction: tuple[str, list[int]] = "", []  # of the last row, and its ids
        self._recent: Callable[[], PairIndex | None] = lambda: None  # that of the last row, while a row has it

    def __call__(self, row: Row) -> LookupDrafter:
        text, ids = self._prediction
        if text != (row.params.prediction or ""):
            text, ids = row.params.prediction or "", []
            with suppress(ModelError):  # a text without tokens is no text that the answer will repeat
                ids = self._tokenizer.encode(text)
            self._prediction = text, ids
        index = self._recent()
        if index is None or not index.begins(row.history, ids):
            index = PairIndex(row.history, ids)
            self._recent = ref(index)
        return LookupDrafter(index)
