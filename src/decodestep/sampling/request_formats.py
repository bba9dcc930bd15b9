"""Converts requests in other formats to the fields of `SamplingParams`.

A field that would change the text and is not supported is an error, never ignored. `known` are the names of the fields of
`SamplingParams`, whose classmethods of the same names call these functions; their docstrings are the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from decodestep._base.checks import describe, is_int, is_real, refuse, require, require_choice
from decodestep.sampling.field_aliases import ALIASES
from decodestep.sampling.neutral_fields import (
    ABOUT_OTHER_THINGS,
    MUST_BE,
    NAMES,
    check_repeat_last_n,
    read_length,
    read_repeat_penalty,
)

if TYPE_CHECKING:
    from transformers import GenerationConfig

# Fields of a GenerationConfig that change no token of a decoder's text: the cache, the form of the result, padding, the first
# token of a text without a prompt, and how tokens are drafted, by an assistant model (which no config holds) or by lookup.
_NOT_ABOUT_SAMPLING = {
    "use_cache",
    "cache_implementation",
    "cache_config",
    "max_cache_len",
    "pad_token_id",
    "bos_token_id",
    "decoder_start_token_id",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "output_logits",
    "return_dict_in_generate",
    "compile_config",
    "disable_compile",
    "continuous_batching_config",
    "low_memory",
    "prefill_chunk_size",
    "transformers_version",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "assistant_lookbehind",
    "target_lookbehind",
    "assistant_ensemble_weight",
}
# What requests may call the fields of `SamplingParams`, besides their own names; and all fields that requests may have beside.
OPENAI_NAMES = {**ALIASES, **NAMES}
OPENAI_FIELDS = ABOUT_OTHER_THINGS | {*MUST_BE, *OPENAI_NAMES, "best_of", "repeat_last_n", "top_logprobs", "response_format"}
_OPENAI_RANGES = {"temperature": (0, 2), "top_p": (0, 1), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2)}


def from_generation_config(
    config: GenerationConfig | Mapping[str, Any], changes: Mapping[str, Any], known: Set[str]
) -> dict[str, Any]:
    """The fields of `SamplingParams.from_generation_config`. changes: by the names of fields. known: those names."""
    ok = isinstance(config, Mapping) or (hasattr(config, "to_dict") and not isinstance(config, type))
    require(ok, "from_generation_config", "config", "a GenerationConfig or a mapping of its fields", config)
    given = dict(config) if isinstance(config, Mapping) else config.to_dict()
    for name, value in given.items():
        if not (value is None or _is_understood(name, value, known)):
            _refuse_field("from_generation_config", name, value)
    taken = {name: value for name, value in given.items() if name in known - changes.keys() and value is not None}
    _settle_lengths(taken, changes)
    taken.setdefault("do_sample", False)
    if changes.get("do_sample", taken["do_sample"]) is True:
        taken.setdefault("top_k", 50)
        rule = "below 1, at which transformers keeps 100 tokens and SamplingParams all, or None"
        require(taken.get("top_h") != 1, "from_generation_config", "top_h", rule, taken.get("top_h"))
    watermark = taken.get("watermarking_config")
    if watermark is not None and not isinstance(watermark, Mapping):
        taken["watermarking_config"] = watermark.to_dict()
    if "sequence_bias" in taken:
        taken["sequence_bias"] = _sequence_bias("from_generation_config", taken["sequence_bias"])
    return {**taken, **changes}


def _settle_lengths(taken: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """As in transformers, where the numbers of new tokens decide if they are given. Without a length the default stays."""
    decided = {name for name, value in {**taken, **changes}.items() if value is not None}
    if "max_new_tokens" in decided:
        taken.pop("max_length", None)
    elif "max_length" in decided:
        taken["max_new_tokens"] = None
    if "min_new_tokens" in decided:
        taken.pop("min_length", None)


def _is_understood(name: object, value: object, known: Set[str]) -> bool:
    """Whether a field is one of `known`, or does not change the text."""
    if not isinstance(name, str):
        return False
    return name in _NOT_ABOUT_SAMPLING | known or name.startswith("_") or _is_neutral(name, value)


def _is_neutral(name: str, value: object) -> bool:
    """Whether an unknown field has a value that turns it off; older configuration files hold such values."""
    neutral = {"guidance_scale": 1, "encoder_repetition_penalty": 1, "encoder_no_repeat_ngram_size": 0, "penalty_alpha": 0}
    return value is False or value == neutral.get(name, [])


def _sequence_bias(op: str, value: object) -> Any:
    """A mapping as it is; pairs of ids and a bias, which stand for it in JSON, as one."""
    if not isinstance(value, list):
        return value
    ok = all(_is_list(pair) and len(pair) == 2 and _is_list(pair[0]) and all(map(is_int, pair[0])) for pair in value)
    require(ok, op, "sequence_bias", "a mapping of tuples of ids to numbers, or a list of pairs [ids, number]", value)
    return {tuple(ids): bias for ids, bias in value}


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


def from_openai(body: Mapping[str, Any], known: Set[str]) -> dict[str, Any]:
    """The fields of `SamplingParams.from_openai`. known: the names of all its fields."""
    require(isinstance(body, Mapping), "from_openai", "body", "a mapping of a request's fields", body)
    must_be = {**MUST_BE, "best_of": body.get("n") or 1}  # of as many as are returned, none is left out
    taken: dict[str, Any] = {}
    for name, value in body.items():
        if name in ABOUT_OTHER_THINGS or value is None:
            continue
        if name in must_be:
            require(value == must_be[name], "from_openai", name, repr(must_be[name]), value)
        elif name == "repeat_last_n":
            check_repeat_last_n(body)
        elif name in ("logprobs", "top_logprobs"):
            taken["logprobs"] = _logprobs(body)
        elif name == "response_format":
            schema = schema_of_format("from_openai", value)
            require(
                schema is None or body.get("json_schema") is None,
                "from_openai",
                "json_schema",
                "omitted with response_format",
                body.get("json_schema"),
            )
            taken |= {} if schema is None else {"json_schema": schema}
        elif name in _OPENAI_VALUES:
            taken[name] = _OPENAI_VALUES[name](value)
        elif (field := OPENAI_NAMES.get(name, name)) in known:
            value = read_repeat_penalty(body) if name == "repeat_penalty" else read_length(name, value)
            _check_range(name, value)
            same = field not in taken or taken[field] == value
            require(same, "from_openai", name, f"{taken.get(field)!r}, as another field says", value)
            taken[field] = value
        else:
            _refuse_field("from_openai", name, value)
    return taken


def _refuse_field(op: str, name: object, value: object) -> NoReturn:
    sentence = f"the field {name} is not supported; got {describe(value)}"
    refuse(op, str(name), "a supported field", value, "unknown_field", sentence)


def _check_range(name: str, value: object) -> None:
    """Refuses a value outside the interval of the interface, which may be narrower than that of `SamplingParams`."""
    if name in _OPENAI_RANGES:
        low, high = _OPENAI_RANGES[name]
        require(is_real(value) and low <= value <= high, "from_openai", name, f"in [{low}, {high}]", value)


def schema_of_format(op: str, response_format: object) -> Mapping[str, Any] | None:
    """The JSON schema of a response_format; None for text."""
    given = _mapping(op, "response_format", "an object", response_format)
    kind = given.get("type")
    require_choice(op, "response_format.type", kind, ("text", "json_object", "json_schema"))
    direct = given.get("schema") is not None  # as llama.cpp and Together take it, for both kinds of JSON
    known = {"type"} if kind == "text" else {"type", "schema"} if direct or kind == "json_object" else {"type", "json_schema"}
    _refuse_others(op, "response_format", given, known)
    if kind == "text":
        return None
    if direct:
        return _mapping(op, "response_format.schema", "a JSON schema", given["schema"])
    if kind == "json_object":
        return {"type": "object"}
    place = "response_format.json_schema"
    form = _mapping(op, place, "a schema with its name", given.get("json_schema"))
    schema = _mapping(op, f"{place}.schema", "a JSON schema", form.get("schema"))
    _refuse_others(op, place, form, {"name", "description", "schema", "strict"})
    return schema


def _mapping(op: str, name: str, rule: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        refuse(op, name, rule, value)
    return value


def _refuse_others(op: str, place: str, given: Mapping[str, Any], known: Set[str]) -> None:
    """A schema in the wrong place would not be enforced."""
    for key, value in given.items():
        if value is not None and key not in known:
            _refuse_field(op, f"{place}.{key}", value)


def _prediction(value: object) -> str:
    """The text of {"type": "content", "content": a string or a list of parts of text}."""
    rule = 'an object {"type": "content", "content": text}'
    given = _mapping("from_openai", "prediction", rule, value)
    content = given.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    strings = [text for text in texts if isinstance(text, str)]
    require(given.get("type") == "content" and len(strings) == len(parts), "from_openai", "prediction", rule, value)
    return "".join(strings)


def _seed(value: object) -> object:
    """A negative seed counts from 2^64."""
    return int(value) % 2**64 if is_int(value) and -(2**63) <= value < 0 else value


def _logit_bias(value: object) -> dict[int, float]:
    rule = "a mapping of token ids to numbers in [-100, 100]"
    biases: dict[int, float] = {}
    for token, bias in _mapping("from_openai", "logit_bias", rule, value).items():
        is_id = is_int(token) or (isinstance(token, str) and token.isascii() and token.isdecimal() and len(token) < 20)
        ok = is_id and is_real(bias) and -100 <= bias <= 100
        require(ok, "from_openai", "logit_bias", rule, {token: bias})
        biases[int(token)] = float(bias)
    return biases


def _logprobs(body: Mapping[str, Any]) -> int | None:
    """A chat request has logprobs=true and top_logprobs=n; a completions request has logprobs=n."""
    given, top = body.get("logprobs"), body.get("top_logprobs")
    if top is not None:
        ok = is_int(top) and 0 <= top <= 20 and (given is True or top == 0)
        require(ok, "from_openai", "top_logprobs", "an integer in [0, 20] beside logprobs=true, or 0", top)
        if given is None or given is True:
            return int(top) if given else None
    if isinstance(given, bool):
        return 0 if given else None
    if not is_int(given) or given < 0:
        refuse("from_openai", "logprobs", "a bool or an integer >= 0", given)
    return int(given)


# Fields of an OpenAI request whose values have another form than in `SamplingParams`.
_OPENAI_VALUES: dict[str, Callable[[Any], Any]] = {
    "logit_bias": _logit_bias,
    "prediction": _prediction,
    "seed": _seed,
    "sequence_bias": partial(_sequence_bias, "from_openai"),
}
