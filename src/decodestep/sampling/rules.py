"""The legal values of the fields of `SamplingParams`, and the form in which it holds them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from decodestep._base.checks import UINT64, Phrase, describe, is_finite, is_int, is_real, is_uint64, refuse, require
from decodestep.constraints.grammar import ORDERS
from decodestep.sampling.frozen_mapping import FrozenMapping

# The temperature and the filters in their default order: transformers 5.23's, each of ours after what it resembles.
SAMPLERS = (
    "temperature",
    "top_n_sigma",
    "top_h",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "xtc_probability",
)
# The fields that hold token ids, one or several, and those that hold sequences of ids.
TOKEN_FIELDS = (
    "eos_token_id",
    "stop_token_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "allowed_token_ids",
    "logit_bias",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "xtc_special_tokens",
)
SEQUENCE_FIELDS = ("bad_words_ids", "sequence_bias")


class Rule(NamedTuple):
    """What a value must be.

    text: in error messages. held: from a value to the form in which a field holds it. legal: whether a value in that form is.
    """

    text: str
    legal: Callable[[object], bool]
    held: Callable[[Any], object] = lambda value: value

    def take(self, op: str, name: str, value: object, default: object) -> object:
        """The value as field `name` holds it. None stands for an empty default. Raises RequestError for an illegal value."""
        held = default if value is None and default == () else self.held(value)
        require(self.legal(held), op, name, self.text, held)
        return held


def integer(least: int) -> Rule:
    return Rule(f"an integer in [{least}, 2^31)", lambda v: is_int(v) and least <= v < 2**31)


def number(rule: str, legal: Callable[[float], bool]) -> Rule:
    """A finite number for which `legal` holds."""
    kind = "a number" if rule.startswith("in ") else "a finite number"  # an interval says that its numbers are finite
    return Rule(f"{kind} {rule}", lambda v: is_finite(v) and legal(v))


def or_none(rule: Rule) -> Rule:
    return Rule(f"{rule.text} or None", lambda v: v is None or rule.legal(v), lambda v: None if v is None else rule.held(v))


def distinct_names(names: tuple[str, ...]) -> Rule:
    return Rule(
        f"distinct names among {', '.join(names)}",
        lambda v: isinstance(v, tuple) and all(name in names and v.count(name) == 1 for name in v),
        _as_tuples,
    )


def _is_id(value: object) -> bool:
    return is_int(value) and value >= 0


def _are_ids(value: object) -> bool:
    if not isinstance(value, tuple):
        return False
    if {int}.issuperset(map(type, value)):  # asked first, since it takes no loop in Python: bad words may have a million ids
        return min(value, default=0) >= 0
    return all(map(_is_id, value))


def _are_sequences(value: object) -> bool:
    return isinstance(value, tuple) and all(_are_ids(ids) and ids for ids in value)


def _are_strings(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, str) and item for item in value)


def _are_biases(value: object, is_key: Callable[[object], bool]) -> bool:
    return isinstance(value, Mapping) and all(is_key(key) and _is_below_infinity(bias) for key, bias in value.items())


def _is_below_infinity(value: object) -> bool:
    return is_finite(value) or (is_real(value) and value == -math.inf)


def _are_keys(value: object) -> bool:
    return isinstance(value, tuple) and len(value) > 0 and all(is_int(key) and abs(key) < 2**63 for key in value)


def _is_decay(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and _is_id(value[0]) and is_finite(value[1]) and value[1] > 0


def _as_tuples(value: Any) -> Any:
    """An iterable (not a string or mapping) as a tuple, recursively; arrays as Python numbers; anything else unchanged."""
    if type(value) in (list, tuple) and {int}.issuperset(map(type, value)):  # most are: bad words may have a million ids
        return tuple(value)
    value = value.tolist() if hasattr(value, "tolist") else value
    iterable = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    return tuple(map(_as_tuples, value)) if iterable else value


def _as_strings(value: object) -> Any:
    return (value,) if isinstance(value, str) else _as_tuples(value)


def _frozen(value: object) -> Any:
    return FrozenMapping({key: _as_tuples(item) for key, item in value.items()}) if isinstance(value, Mapping) else value


def _is_unicode(value: object) -> bool:
    """Whether it is a string without lone surrogates, which no tokenizer takes."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _as_json(value: object) -> Any:
    if isinstance(value, type) and hasattr(value, "model_json_schema"):  # a Pydantic class
        value = value.model_json_schema()
    if not isinstance(value, Mapping):
        return value
    try:
        return json.dumps(value, default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        refuse("SamplingParams", "json_schema", "a value that JSON can represent", Phrase(str(error)))


BOOL = Rule("a bool", lambda v: isinstance(v, bool))
FINITE = Rule("a finite number", is_finite)
POSITIVE = number("> 0", lambda v: v > 0)
NOT_NEGATIVE = number(">= 0", lambda v: v >= 0)
AT_LEAST_1 = number(">= 1", lambda v: v >= 1)
SECONDS = number("of seconds > 0", lambda v: v > 0)
SHARE = number("in [0, 1]", lambda v: 0 <= v <= 1)
POSITIVE_SHARE = number("in (0, 1]", lambda v: 0 < v <= 1)
CUTOFF = number("in [0, 1)", lambda v: 0 <= v < 1)
SEED = Rule(UINT64, is_uint64)
ID = Rule("a token id", _is_id)
IDS = Rule("token ids", _are_ids, _as_tuples)
SOME_IDS = Rule("at least one token id", lambda v: _are_ids(v) and v != (), _as_tuples)
ID_OR_IDS = Rule("a token id or several", lambda v: _is_id(v) or (_are_ids(v) and v != ()), _as_tuples)
IDS_OR_STRINGS = Rule(
    "token ids or non-empty strings",
    lambda v: isinstance(v, tuple) and all(_is_id(each) or (isinstance(each, str) and each != "") for each in v),
    lambda v: _as_strings(v),
)
SEQUENCES = Rule("non-empty lists of ids", _are_sequences, _as_tuples)
TEXT = Rule("a non-empty string", lambda v: isinstance(v, str) and bool(v))
UNICODE = Rule("a string of valid Unicode", _is_unicode)
SCHEMA = Rule("a mapping, a non-empty string, a Pydantic class", TEXT.legal, _as_json)
SOME_STRINGS = Rule("at least one non-empty string", lambda v: _are_strings(v) and v != (), _as_tuples)
STRINGS = Rule("non-empty strings", _are_strings, _as_strings)
TOP_K = Rule("an integer in [-1, 2^31)", lambda v: is_int(v) and -1 <= v < 2**31, lambda v: 0 if is_int(v) and v == -1 else v)
BUDGET = Rule("an integer in [-1, 2^31)", lambda v: is_int(v) and -1 <= v < 2**31)
ID_BIASES = Rule("a mapping of ids to numbers below inf", lambda v: _are_biases(v, _is_id), _frozen)
SEQUENCE_BIASES = Rule(
    "a mapping of tuples of ids to numbers below inf",
    lambda v: _are_biases(v, lambda key: _are_ids(key) and key != ()),
    _frozen,
)
DECAY = Rule("a pair of an integer >= 0 and a finite number > 0", _is_decay, _as_tuples)
EARLY_STOPPING = Rule("True, False or 'never'", lambda v: isinstance(v, bool) or (isinstance(v, str) and v == "never"))
MAPPING = Rule("a mapping", lambda v: isinstance(v, Mapping), _frozen)

RULES = {
    "max_new_tokens": or_none(integer(1)),
    "max_length": or_none(integer(1)),
    "min_length": integer(0),
    "min_new_tokens": integer(0),
    "min_tokens": integer(0),
    "eos_token_id": or_none(ID_OR_IDS),
    "ignore_eos": BOOL,
    "stop_token_ids": IDS,
    "stop_strings": STRINGS,
    "max_time": or_none(SECONDS),
    "repetition_penalty": POSITIVE,
    "repetition_range": integer(0),
    "presence_penalty": FINITE,
    "frequency_penalty": FINITE,
    "no_repeat_ngram_size": integer(0),
    "dry_multiplier": NOT_NEGATIVE,
    "dry_base": AT_LEAST_1,
    "dry_allowed_length": integer(1),
    "dry_range": integer(0),
    "dry_sequence_breakers": or_none(IDS_OR_STRINGS),
    "sequence_bias": or_none(SEQUENCE_BIASES),
    "logit_bias": or_none(ID_BIASES),
    "bad_words_ids": SEQUENCES,
    "bad_words": STRINGS,
    "suppress_tokens": IDS,
    "begin_suppress_tokens": IDS,
    "allowed_token_ids": or_none(SOME_IDS),
    "forced_bos_token_id": or_none(ID),
    "forced_eos_token_id": or_none(ID_OR_IDS),
    "exponential_decay_length_penalty": or_none(DECAY),
    "temperature": NOT_NEGATIVE,
    "top_k": TOP_K,
    "top_p": SHARE,
    "min_p": SHARE,
    "top_h": POSITIVE_SHARE,
    "typical_p": POSITIVE_SHARE,
    "epsilon_cutoff": CUTOFF,
    "eta_cutoff": CUTOFF,
    "top_n_sigma": NOT_NEGATIVE,
    "xtc_probability": SHARE,
    "xtc_threshold": SHARE,
    "xtc_special_tokens": IDS,
    "samplers": or_none(distinct_names(SAMPLERS)),
    "remove_invalid_values": BOOL,
    "renormalize_logits": BOOL,
    "watermarking_config": or_none(MAPPING),
    "do_sample": BOOL,
    "seed": or_none(SEED),
    "logprobs": or_none(integer(0)),
    "prompt_logprobs": or_none(integer(0)),
    "num_beams": integer(1),
    "num_beam_groups": integer(1),
    "diversity_penalty": NOT_NEGATIVE,
    "length_penalty": FINITE,
    "early_stopping": EARLY_STOPPING,
    "num_return_sequences": integer(1),
    "json_schema": or_none(SCHEMA),
    "regex": or_none(TEXT),
    "grammar": or_none(TEXT),
    "choice": or_none(SOME_STRINGS),
    "json_property_order": Rule("'schema' or 'any'", lambda v: isinstance(v, str) and v in ORDERS),
    "disable_additional_properties": BOOL,
    "thinking_budget_tokens": or_none(BUDGET),
    "thinking_budget_message": or_none(UNICODE),
    "prediction": or_none(UNICODE),
    "draft": BOOL,
}

# The arguments of the two watermarks; torch's generator takes seeds below 2^63.
_TORCH_SEED = Rule("an integer in [0, 2^63)", lambda v: is_int(v) and 0 <= v < 2**63)
_GREEN_LIST = {
    "greenlist_ratio": number("in (0, 1)", lambda v: 0 < v < 1),
    "bias": FINITE,
    "hashing_key": _TORCH_SEED,
    "seeding_scheme": Rule("'lefthash' or 'selfhash'", lambda v: v in ("lefthash", "selfhash")),
    "context_width": integer(1),
}
_SYNTHID_REQUIRED = {
    "ngram_len": integer(1),
    "keys": Rule("integers, at least one", _are_keys),
    "sampling_table_size": integer(1),
    "sampling_table_seed": _TORCH_SEED,
    "context_history_size": integer(0),
}
_SYNTHID = {**_SYNTHID_REQUIRED, "skip_first_ngram_calls": BOOL, "debug_mode": BOOL}


def check_watermark(op: str, config: Mapping[str, Any]) -> None:
    """Refuses a watermarking_config with unknown, illegal or missing arguments; "keys" tells SynthID from a green list."""
    name = "watermarking_config"
    rules = _SYNTHID if "keys" in config else _GREEN_LIST
    for argument, value in config.items():
        if argument not in rules:
            known = ", ".join(rules)
            refuse(op, name, f"of {known}", argument, sentence=f"{name} has no argument {argument}: it takes {known}")
        if value is not None and not rules[argument].legal(value):
            rule = rules[argument].text
            sentence = f"{argument} of {name} must be {rule}; got {describe(value)}"
            refuse(op, name, f"such that {argument} is {rule}", value, sentence=sentence)
    missing = [argument for argument in _SYNTHID_REQUIRED if config.get(argument) is None] if rules is _SYNTHID else []
    if missing:
        words = f"{', '.join(missing)} beside keys"
        refuse(op, name, f"given {words}", Phrase("none"), sentence=f"{name} must have {words}, as SynthID needs them")
