"""Prompts for a text between two others, as code editors ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from decodestep._base.checks import Phrase, refuse
from decodestep.tokenizers.infill_tokens import InfillTokens

if TYPE_CHECKING:
    from decodestep.models import Model

_BETWEEN = "\n\n--- snippet ---\n\n"  # files, of a vocabulary without a token for that, as llama.cpp has it
_REPOSITORY, _FILE = "myproject", "filename"  # llama.cpp's names of what has none


class File(NamedTuple):
    """Another file of the same project."""

    name: str
    text: str


def require_infill(model: Model, field: str) -> InfillTokens:
    """The tokens of a model for a text between two others. Raises RequestError, about `field`, if it has none."""
    found = model.tokenizer.infill
    if found is None:
        refuse("infill", field, "left out: the model has no tokens for what stands between two texts", Phrase("a text"))
    return found


def infill_ids(model: Model, prefix: str, suffix: str, files: Sequence[File] = (), begun: str = "") -> list[int]:
    """The token ids of a prompt for what stands between `prefix` and `suffix`.

    files: others of the project, the most important last. begun: what the answer begins with, which it does not repeat.
    Control tokens spelled in them are text. Raises RequestError if the model has no tokens for that.
    """
    tokens, tokenizer = require_infill(model, "suffix"), model.tokenizer
    ids = [tokenizer.bos_token_id] if tokenizer.add_bos and tokenizer.bos_token_id is not None else []
    if files and tokens.repository is not None:
        ids += [tokens.repository, *tokenizer.encode_plain(f"{_REPOSITORY}\n")]
    for file in files:
        ids += _file_head(model, tokens, file.name) or tokenizer.encode_plain(_BETWEEN)
        ids += tokenizer.encode_plain(file.text)
    if files:
        ids += _file_head(model, tokens, _FILE)
    ids += [tokens.prefix, *tokenizer.encode_plain(prefix), *tokenizer.encode_plain(begun)]
    return [*ids, tokens.suffix, *tokenizer.encode_plain(suffix), tokens.middle]


def _file_head(model: Model, tokens: InfillTokens, name: str) -> list[int]:
    return [] if tokens.file is None else [tokens.file, *model.tokenizer.encode_plain(f"{name}\n")]
