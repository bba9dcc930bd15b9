"""Requests for a text between two others: /infill, and `suffix` of a completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from decodestep.errors import RequestError
from decodestep.generation.infill import File, infill_ids
from decodestep.serving.errors import http_error, refusal
from decodestep.serving.request_fields import require_short

if TYPE_CHECKING:
    from decodestep.models import Model
    from decodestep.sampling.params import SamplingParams


def read_infill(
    model: Model,
    prefix: str,
    suffix: str,
    most_characters: int,
    *,
    files: Sequence[File] = (),
    begun: str = "",
    names: tuple[str, str] = ("prompt", "suffix"),
) -> list[int]:
    """`infill_ids` of a request. Raises HttpError. names: what it calls prefix and suffix."""
    require_short([prefix, suffix, begun, *(text for file in files for text in file)], most_characters, names[0])
    try:
        return infill_ids(model, prefix, suffix, files, begun)
    except RequestError as error:
        raise http_error(error, {"suffix": names[1]}) from None
    except UnicodeEncodeError:
        raise refusal(names[0], "valid Unicode, without lone surrogates") from None


def ending_infill(model: Model, params: SamplingParams) -> SamplingParams:
    """The params with which a row also ends where the model goes on to other files."""
    tokenizer = model.tokenizer
    if tokenizer.infill is None:
        return params
    ends = tokenizer.infill.ends
    written = [tokenizer.token(i) for i in ends if i not in tokenizer.special]  # which would be in the text
    return params.replace(
        stop_token_ids=(*params.stop_token_ids, *ends),
        stop_strings=(*params.stop_strings, *written),
    )
