"""Other libraries' names for the fields of `SamplingParams`: accepted synonyms, and suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Set
from typing import Any

from decodestep._base.checks import RequestError, Words, refuse

# Names with exactly the meaning of a field: OpenAI's and vLLM's.
SAME = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "stop": "stop_strings",
    "n": "num_return_sequences",
}
# Names that mean something else, or nearly the same, and what to look at.
_NEAR = {
    "repeat_penalty": "repetition_penalty, which looks at the whole row and not at its last tokens only",
    "repeat_last_n": "dry_range; repetition_penalty has no range",
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
    "bad_words": "bad_words_ids, with token ids",
    "temp": "temperature",
    "typical": "typical_p",
    "stop_sequences": "stop_strings",
    "top_logprobs": "logprobs",
    "random_seed": "seed",
}


class UnknownFieldError(RequestError, TypeError):
    """A keyword that is not a field of `SamplingParams`: a RequestError and, as for any function, a TypeError."""


def rename_fields(given: Mapping[str, Any], known: Set[str]) -> dict[str, Any]:
    """The keywords with the names of fields. known: those names. Raises UnknownFieldError for an unknown name."""
    taken: dict[str, Any] = {}
    for name, value in given.items():
        field = SAME.get(name, name)
        if field not in known:
            raise UnknownFieldError("SamplingParams", "the keywords", "fields", f"{name}{_meant(name, known)}")
        if field in taken or (field != name and field in given):
            refuse("SamplingParams", field, "given once", Words(f"{name} too"))
        taken[field] = value
    return taken


def _meant(name: str, known: Set[str]) -> str:
    close = difflib.get_close_matches(name.lower(), sorted(known), 1)
    meant = _NEAR.get(name) or (close[0] if close else "")
    return f": did you mean {meant}?" if meant else ""
