"""Other libraries' names for the fields of `SamplingParams`: accepted synonyms, and suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Set
from typing import Any

from decodestep._base.checks import Phrase, describe, refuse
from decodestep.errors import UnknownFieldError as UnknownFieldError

_OP = "SamplingParams"

# Names with exactly the meaning of a field: OpenAI's and vLLM's.
ALIASES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "stop": "stop_strings",
    "n": "num_return_sequences",
    "thinking_token_budget": "thinking_budget_tokens",
}
# Names that mean something else, or nearly the same, and what to look at.
_NEAR = {
    "repeat_penalty": "repetition_penalty, which looks at the whole row unless repetition_range says otherwise",
    "repeat_last_n": "repetition_range and dry_range, 0 in place of -1",
    "num_predict": "max_new_tokens, None in place of -1",
    "n_predict": "max_new_tokens, None in place of -1",
    "best_of": "num_return_sequences, and choose among them by Completion.logprobs; or num_beams",
    "use_beam_search": "num_beams",
    "beam_width": "num_beams",
    "tfs_z": "min_p or typical_p",
    "mirostat": "top_h or typical_p",
    "guidance_scale": "processors=[UnbatchedClassifierFreeGuidanceLogitsProcessor(...)] of generate",
    "prefix_allowed_tokens_fn": "processors=[PrefixConstrainedLogitsProcessor(...)] of generate",
    "logits_processor": "processors of generate",
    "logits_processors": "processors of generate",
    "stopping_criteria": "stop_strings, stop_token_ids or max_time",
    "streamer": "stream of generate, or decodestep.stream",
    "temp": "temperature",
    "typical": "typical_p",
    "stop_sequences": "stop_strings",
    "top_logprobs": "logprobs",
    "random_seed": "seed",
}


def rename_fields(given: Mapping[str, Any], known: Set[str]) -> dict[str, Any]:
    """The keywords with the names of fields. known: those names. Raises UnknownFieldError for an unknown name."""
    for name, value in given.items():
        if name not in known and name not in ALIASES:
            sentence = f"there is no field {name}{_meant(name, known)}"
            raise UnknownFieldError(_OP, name, "a field", describe(value), "unknown_field", sentence)
    # `dataclasses.replace` calls with a value for each field, and with the changes: they count, by whatever name.
    is_replaced = known <= given.keys()
    renamed: dict[str, Any] = {}
    for name in given.keys() & ALIASES.keys():
        field = ALIASES[name]
        if field in renamed or (field in given and not is_replaced):
            refuse(_OP, field, "given once", Phrase(f"{name} too"))
        renamed[field] = given[name]
    return {**{name: value for name, value in given.items() if name in known}, **renamed}


def _meant(name: str, known: Set[str]) -> str:
    close = difflib.get_close_matches(name.lower(), sorted(known), 1)
    meant = _NEAR.get(name) or (close[0] if close else "")
    return f": did you mean {meant}?" if meant else ""
