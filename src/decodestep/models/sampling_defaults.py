"""How a checkpoint says that it is sampled, and what of that a caller keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from decodestep.errors import ModelError, RequestError
from decodestep.sampling.params import SamplingParams

_FILTERS = ("temperature", "top_k", "top_p", "min_p")
FIELDS = (*_FILTERS, "repetition_penalty")  # those that a checkpoint may set, besides do_sample


def default_params(path: Path, given: Mapping[str, Any]) -> SamplingParams:
    """`SamplingParams()` with what a checkpoint says of `FIELDS`; greedy, by do_sample, only where it says that do_sample is
    false or the temperature 0.

    given: by the names of generation_config.json; other names, and values that are None, say nothing. Raises ModelError for a
    value that SamplingParams refuses; path: for its message.
    """
    fields = {name: given[name] for name in FIELDS if given.get(name) is not None}
    if given.get("do_sample") is False:
        fields["do_sample"] = False
    try:
        params = SamplingParams(**fields)
    except RequestError as error:
        raise ModelError(f"{path}: the model's own sampling defaults: {error}") from None
    return params.replace(temperature=1.0, do_sample=False) if params.temperature == 0 else params


def with_defaults(params: SamplingParams, given: Collection[str], defaults: SamplingParams) -> SamplingParams:
    """The params of a caller who has set the fields `given`, with the model's defaults for the others of `FIELDS`.

    A caller who sets do_sample or a filter decides whether the row samples: the model's do_sample is then left out. So are its
    filters that params.samplers does not name.
    """
    left = [name for name in FIELDS if name not in given]
    if params.samplers is not None:
        left = [name for name in left if name not in _FILTERS or name in params.samplers]
    fields: dict[str, Any] = {name: getattr(defaults, name) for name in left}
    if not {"do_sample", *_FILTERS} & set(given):
        fields["do_sample"] = defaults.do_sample
    return params.replace(**fields)
