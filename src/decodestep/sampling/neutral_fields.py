"""Fields of requests to other servers that `SamplingParams.from_openai` takes because what they say changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodestep._base.checks import is_int, is_real, require

_OP = "from_openai"

# Of OpenAI's fields, those about the prompt and the transport.
_OPENAI = {
    *("model", "messages", "prompt", "stream", "stream_options", "user", "metadata", "store", "service_tier"),
    *("safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
}
# Of others', those about the time that an answer takes, about what they drop when a context is full, and about samplers that
# are off, as MUST_BE has them.
_OTHERS = {
    *("cache_prompt", "id_slot", "n_cache_reuse", "n_keep", "n_discard"),
    *("priority", "cache_salt", "request_id", "rid", "num_draft_tokens"),
    *("mirostat_tau", "mirostat_eta", "dynatemp_exponent"),
}
ABOUT_OTHER_THINGS = frozenset(_OPENAI | _OTHERS)
# Those that are not supported, and the one value that means the same as no such field. No text has control tokens, or the stop
# string that ended it; spaces and special tokens are written as the tokenizer writes them.
MUST_BE: Mapping[str, Any] = {
    # OpenAI
    "echo": False,
    "modalities": ["text"],
    "verbosity": "medium",
    "suffix": "",
    # vLLM and SGLang
    "use_beam_search": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "no_stop_trim": False,
    "detokenize": True,
    "return_token_ids": False,
    "return_tokens_as_token_ids": False,
    "return_hidden_states": False,
    "logits_processors": [],
    "bad_words": [],
    # llama-server
    "timings_per_token": False,
    "return_progress": False,
    "return_tokens": False,
    "post_sampling_probs": False,
    "parse_tool_calls": True,
    "n_probs": 0,
    "n_indent": 0,
    "t_max_predict_ms": 0,
    "response_fields": [],
    "image_data": [],
    "lora": [],
    "mirostat": 0,
    "tfs_z": 1,
    "dynatemp_range": 0,
}
# Other servers' names of fields, which are no keywords of SamplingParams, as some of their values mean something else.
NAMES = {"n_predict": "max_new_tokens", "repeat_penalty": "repetition_penalty"}
_LENGTHS = ("max_tokens", "max_completion_tokens", "n_predict")


def read_length(name: str, value: object) -> object:
    """A number of tokens; None, no limit but the context, for the -1 of llama.cpp's clients."""
    return None if name in _LENGTHS and is_int(value) and value == -1 else value


def read_repeat_penalty(body: Mapping[str, Any]) -> float:
    """llama.cpp's penalty as a repetition_penalty, which it is where it looks at all tokens."""
    value, last = body["repeat_penalty"], body.get("repeat_last_n")
    require(is_real(value), _OP, "repeat_penalty", "a number", value)
    if is_int(last) and last == 0:
        return 1.0
    ok = value == 1 or (is_int(last) and last == -1)
    require(ok, _OP, "repeat_penalty", "1, or beside repeat_last_n -1: repetition_penalty looks at all tokens", value)
    return float(value)


def check_repeat_last_n(body: Mapping[str, Any]) -> None:
    """Refuses a number of tokens for penalties, which look at all tokens here, unless there are none."""
    value = body["repeat_last_n"]
    penalties = any(body.get(name) not in (None, 0) for name in ("presence_penalty", "frequency_penalty"))
    ok = is_int(value) and (value == -1 or (value >= 0 and not penalties))
    require(ok, _OP, "repeat_last_n", "-1, or an integer >= 0 without penalties, which look at all tokens", value)
