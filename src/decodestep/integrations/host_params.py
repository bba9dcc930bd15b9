"""The parameters of a request in a serving engine: some are the engine's own fields, the others come in one extra argument."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from decodestep._base.checks import Phrase, refuse, require
from decodestep.sampling.params import SamplingParams

KEY = "decodestep"  # of the extra argument
# Fields that engines lack, or apply elsewhere in their pipeline. The other fields of SamplingParams are the engine's, or name
# tokens, which could not be checked before the request is admitted.
FIELDS = (
    "repetition_penalty",
    "repetition_range",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_range",
    "dry_sequence_breakers",
    "top_n_sigma",
    "top_h",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "xtc_probability",
    "xtc_threshold",
    "xtc_special_tokens",
    "samplers",
)


def host_params(op: str, given: Any, own: Mapping[str, Any]) -> SamplingParams:
    """The params of a row.

    Args:
        given: the extra argument, a mapping of `FIELDS` or its JSON.
        own: the engine's fields, named as in `SamplingParams`.

    Raises:
        ValueError: if `given` is not a mapping, for names that are not in `FIELDS`, and for values as `SamplingParams` does.
    """
    rule = "a mapping of fields of SamplingParams, or its JSON"
    fields = given
    if isinstance(given, str):
        try:
            fields = json.loads(given)
        except (ValueError, RecursionError) as error:
            refuse(op, KEY, rule, Phrase(str(error)))
    require(isinstance(fields, Mapping), op, KEY, rule, given)
    for name in fields:
        if name in own:
            refuse(op, KEY, f"without {name}, which is a field of the request itself", fields[name])
        require(name in FIELDS, op, KEY, f"of the fields {', '.join(FIELDS)}", name)
    return SamplingParams(**own, **fields)


def seed_from_name(name: str) -> int:
    """The seed for a name: the first 64 bits of its BLAKE2b hash, little-endian."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def in_vocabulary(params: SamplingParams, vocab_size: int) -> SamplingParams:
    """The params without the tokens outside the vocabulary, which never occur."""
    special = tuple(each for each in params.xtc_special_tokens if each < vocab_size)
    breakers = params.dry_sequence_breakers
    if breakers is not None:
        breakers = tuple(each for each in breakers if isinstance(each, str) or each < vocab_size)
    return params.replace(dry_sequence_breakers=breakers, xtc_special_tokens=special)
