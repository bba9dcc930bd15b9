"""The legal values of `SamplingParams` fields. A rule is a pair: its text in error messages, and a predicate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from decodestep._base.checks import UINT64, Words, is_finite, is_int, is_real, is_uint64, require

Rule = tuple[str, Callable[[Any], bool]]


def integer(least: int) -> Rule:
    return f"an integer in [{least}, 2^31)", lambda v: is_int(v) and least <= v < 2**31


def number(rule: str, legal: Callable[[Any], bool]) -> Rule:
    """A finite number for which `legal` holds."""
    kind = "a number" if rule.startswith("in ") else "a finite number"  # an interval says that its numbers are finite
    return f"{kind} {rule}", lambda v: is_finite(v) and legal(v)


def or_none(rule: Rule) -> Rule:
    text, legal = rule
    return f"{text} or None", lambda v: v is None or legal(v)


def distinct_names(names: tuple[str, ...]) -> Rule:
    return (
        f"distinct names among {', '.join(names)}",
        lambda v: isinstance(v, tuple) and all(name in names and v.count(name) == 1 for name in v),
    )


def _is_id(value: Any) -> bool:
    return is_int(value) and value >= 0


def _are_ids(value: Any) -> bool:
    if not isinstance(value, tuple):
        return False
    if {int}.issuperset(map(type, value)):  # asked first, since it takes no loop in Python: bad words may have a million ids
        return min(value, default=0) >= 0
    return all(map(_is_id, value))


def _are_sequences(value: Any) -> bool:
    return isinstance(value, tuple) and all(_are_ids(ids) and ids for ids in value)


def _are_strings(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, str) and item for item in value)


def _are_biases(value: Any, is_key: Callable[[Any], bool], is_bias: Callable[[Any], bool]) -> bool:
    return isinstance(value, Mapping) and all(is_key(key) and is_bias(bias) for key, bias in value.items())


def _is_below_infinity(value: Any) -> bool:
    return is_finite(value) or (is_real(value) and value == -math.inf)


def _are_keys(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) > 0 and all(is_int(key) and abs(key) < 2**63 for key in value)


def _is_decay(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and _is_id(value[0]) and is_finite(value[1]) and value[1] > 0


BOOL: Rule = ("a bool", lambda v: isinstance(v, bool))
FINITE: Rule = ("a finite number", is_finite)
POSITIVE = number("> 0", lambda v: v > 0)
NOT_NEGATIVE = number(">= 0", lambda v: v >= 0)
AT_LEAST_1 = number(">= 1", lambda v: v >= 1)
SECONDS = number("of seconds > 0", lambda v: v > 0)
SHARE = number("in [0, 1]", lambda v: 0 <= v <= 1)
POSITIVE_SHARE = number("in (0, 1]", lambda v: 0 < v <= 1)
CUTOFF = number("in [0, 1)", lambda v: 0 <= v < 1)
SEED: Rule = (UINT64, is_uint64)
ID: Rule = ("a token id", _is_id)
IDS: Rule = ("token ids", _are_ids)
SOME_IDS: Rule = ("at least one token id", lambda v: _are_ids(v) and len(v) > 0)
ID_OR_IDS: Rule = ("a token id or several", lambda v: _is_id(v) or (_are_ids(v) and len(v) > 0))
SEQUENCES: Rule = ("non-empty lists of ids", _are_sequences)
TEXT: Rule = ("a non-empty string", lambda v: isinstance(v, str) and bool(v))
SCHEMA: Rule = ("a mapping, a non-empty string", TEXT[1])  # a mapping has become its JSON
STRINGS: Rule = ("non-empty strings", _are_strings)
TOP_K: Rule = ("an integer in [-1, 2^31)", lambda v: is_int(v) and -1 <= v < 2**31)
ID_BIASES: Rule = ("a mapping of ids to numbers below inf", lambda v: _are_biases(v, _is_id, _is_below_infinity))
SEQUENCE_BIASES: Rule = (
    "a mapping of tuples of ids to numbers below inf",
    lambda v: _are_biases(v, lambda key: _are_ids(key) and len(key) > 0, _is_below_infinity),
)
DECAY: Rule = ("a pair of an integer >= 0 and a finite number > 0", _is_decay)
EARLY_STOPPING: Rule = ("True, False or 'never'", lambda v: isinstance(v, bool) or (isinstance(v, str) and v == "never"))
MAPPING: Rule = ("a mapping", lambda v: isinstance(v, Mapping))

# The arguments of the two watermarks; torch's generator takes seeds below 2^63.
_TORCH_SEED: Rule = ("an integer in [0, 2^63)", lambda v: is_int(v) and 0 <= v < 2**63)
_GREEN_LIST: dict[str, Rule] = {
    "greenlist_ratio": number("in (0, 1)", lambda v: 0 < v < 1),
    "bias": FINITE,
    "hashing_key": _TORCH_SEED,
    "seeding_scheme": ("'lefthash' or 'selfhash'", lambda v: v in ("lefthash", "selfhash")),
    "context_width": integer(1),
}
_SYNTHID_REQUIRED: dict[str, Rule] = {
    "ngram_len": integer(1),
    "keys": ("integers, at least one", _are_keys),
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
        require(argument in rules, op, name, f"of {', '.join(rules)}", argument)
        rule, legal = rules[argument]
        require(value is None or legal(value), op, name, f"such that {argument} is {rule}", value)
    if rules is _SYNTHID:
        missing = [argument for argument in _SYNTHID_REQUIRED if config.get(argument) is None]
        require(not missing, op, name, f"given {', '.join(missing)} beside keys", Words("none"))
