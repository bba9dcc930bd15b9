"""SamplingParams: what one request asks of the decode loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from decodestep._base.checks import is_finite, is_int, require

_OP = "SamplingParams"

# The filters and the temperature in their default order, transformers 5.23's with ours after what they resemble.
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


@dataclass(frozen=True)
class SamplingParams:
    """The parameters of one row; names are transformers' GenerationConfig's, vLLM's where that has none.

    Length and end
    max_new_tokens: how many tokens at most, >= 1 (default 256); None for as many as the context holds.
    min_length, min_new_tokens: no end token before the whole sequence, or what follows the prompt, is this long; >= 0.
    min_tokens: as min_new_tokens, and no stop token either; >= 0.
    ignore_eos: goes on after an end-of-sequence token. stop_token_ids: further tokens that end the row.
    stop_strings: the row ends where one of these appears in its text, which is cut there.
    max_time: seconds after which the row ends, > 0; None for no limit.

    Penalties and biases
    repetition_penalty: finite, > 0; 1 changes nothing. Over the prompt and what was generated.
    presence_penalty, frequency_penalty: finite; taken once, or for each occurrence, off the score of a generated token.
    no_repeat_ngram_size: >= 0; 0 forbids nothing. dry_multiplier: >= 0; 0 is off; with dry_base >= 1, dry_allowed_length
        >= 1, dry_range >= 0 (0: all) and dry_sequence_breakers, token ids.
    sequence_bias: {(ids): bias}. logit_bias: {id: bias}. bad_words_ids: lists of ids. suppress_tokens, begin_suppress_tokens:
        ids never to be drawn, or not first. allowed_token_ids: no other may be drawn.
    forced_bos_token_id, forced_eos_token_id: transformers' meaning; the latter at the last token that max_new_tokens allows.
    exponential_decay_length_penalty: (start, factor), an integer and a number > 0.

    Shape of the distribution
    temperature: finite, >= 0; 1 leaves it, 0 takes the argmax. top_k: >= 0; 0 keeps all. top_p, min_p: in [0, 1]; 1 and 0
        keep all. top_h, typical_p: in (0, 1]; 1 keeps all. epsilon_cutoff, eta_cutoff: in [0, 1); 0 keeps all.
    top_n_sigma: >= 0; 0 keeps all.
    xtc_probability, xtc_threshold: in [0, 1]; a probability of 0 is off.
    samplers: the order of those of `SAMPLERS` that are to run; None for the default order. All that are set must be named.
    remove_invalid_values, renormalize_logits: transformers' meaning.
    watermarking_config: a mapping of the arguments of WatermarkLogitsProcessor, or of SynthIDTextWatermarkLogitsProcessor where
        it has "keys", each checked; None for no watermark.

    The draw
    do_sample: False takes the argmax at every step, and leaves the shape alone.
    seed: in [0, 2^64). The same seed gives the same text, whatever the batch, the threads or the backend.
    logprobs: None, or how many of the most likely tokens to report at each step beside the one drawn, >= 0.

    Beams
    num_beams: >= 1; num_beam_groups: a divisor of it, above 1 for a greedy row alone; diversity_penalty: > 0 with groups,
    0 without; length_penalty: finite; early_stopping: True, False or "never"; num_return_sequences: in [1, num_beams].

    `SamplingParams()` samples from the whole distribution. Counts are below 2^31. Raises ValueError, naming the legal values.
    """

    max_new_tokens: int | None = 256
    min_length: int = 0
    min_new_tokens: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    max_time: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int = 0
    dry_sequence_breakers: tuple[int, ...] = ()
    sequence_bias: Mapping[tuple[int, ...], float] | None = None
    logit_bias: Mapping[int, float] | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | tuple[int, ...] | None = None
    exponential_decay_length_penalty: tuple[int, float] | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_h: float = 1.0
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    samplers: tuple[str, ...] | None = None
    remove_invalid_values: bool = False
    renormalize_logits: bool = False
    watermarking_config: Mapping[str, Any] | None = None
    do_sample: bool = True
    seed: int = 0
    logprobs: int | None = None
    num_beams: int = 1
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    num_return_sequences: int = 1

    def __post_init__(self) -> None:
        for name in _SEQUENCES:
            given: Any = getattr(self, name)
            if isinstance(given, (str, list, np.ndarray)):
                object.__setattr__(self, name, (given,) if isinstance(given, str) else _tuples(given))
        for field in fields(self):
            rule, legal = _RULES[field.name]
            require(legal(getattr(self, field.name)), _OP, field.name, rule, repr(getattr(self, field.name)))
        require(
            self.num_beams % self.num_beam_groups == 0,
            _OP,
            "num_beam_groups",
            f"a divisor of num_beams {self.num_beams}",
            self.num_beam_groups,
        )
        several = self.num_beam_groups > 1
        rule = "> 0 with several beam groups" if several else "0 without several beam groups"
        require(several == (self.diversity_penalty > 0), _OP, "diversity_penalty", rule, self.diversity_penalty)
        require(self.greedy or not several, _OP, "do_sample", "False with several beam groups", self.do_sample)
        require(
            self.num_return_sequences <= self.num_beams,
            _OP,
            "num_return_sequences",
            f"at most num_beams {self.num_beams}",
            self.num_return_sequences,
        )
        _check_watermark(self.watermarking_config or {})
        marked = "keys" in (self.watermarking_config or {})
        rule = "without keys beside several beams: SynthID keeps the state of one row"
        require(self.num_beams == 1 or not marked, _OP, "watermarking_config", rule, self.num_beams)
        missing = [name for name in self.active_samplers if self.samplers is not None and name not in self.samplers]
        require(not missing, _OP, "samplers", f"one that names {', '.join(missing)}", repr(self.samplers))

    @property
    def greedy(self) -> bool:
        return bool(not self.do_sample or self.temperature == 0)

    @property
    def active_samplers(self) -> tuple[str, ...]:
        """Those of the filters and the temperature that change something, in the order in which they run."""
        if self.greedy:
            return ()
        order = SAMPLERS if self.samplers is None else self.samplers
        active = tuple(name for name in order if getattr(self, name) != _NEUTRAL[name])
        return active + tuple(n for n in SAMPLERS if n not in order and getattr(self, n) != _NEUTRAL[n])

    def without_beams(self) -> SamplingParams:
        """The same with one beam: the processors are those of every beam."""
        return replace(self, num_beams=1, num_beam_groups=1, diversity_penalty=0.0, num_return_sequences=1)

    @classmethod
    def from_generation_config(cls, config: Any, **changes: Any) -> SamplingParams:
        """The parameters of a transformers GenerationConfig, as `generate` would read it; see `sampling.adapters`."""
        from decodestep.sampling.adapters import from_generation_config

        return cls(**{**from_generation_config(config), **changes})

    @classmethod
    def from_openai(cls, body: Mapping[str, Any], **changes: Any) -> SamplingParams:
        """The parameters of an OpenAI completions or chat-completions request; see `decodestep.sampling.adapters`."""
        from decodestep.sampling.adapters import from_openai

        return cls(**{**from_openai(body), **changes})


_NEUTRAL = {field.name: field.default for field in fields(SamplingParams)}
_SEQUENCES = (
    "stop_strings",
    "stop_token_ids",
    "dry_sequence_breakers",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "allowed_token_ids",
    "forced_eos_token_id",
    "exponential_decay_length_penalty",
    "samplers",
)

Rule = tuple[str, Callable[[Any], bool]]


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, (list, tuple, np.ndarray)) else value


def _is_id(value: Any) -> bool:
    return is_int(value) and value >= 0


def _are_ids(value: Any) -> bool:
    return isinstance(value, tuple) and all(_is_id(item) for item in value)


def _integer(least: int) -> Rule:
    return f"an integer in [{least}, 2^31)", lambda v: is_int(v) and least <= v < 2**31


def _number(rule: str, legal: Callable[[Any], bool]) -> Rule:
    return f"a number {rule}", lambda v: is_finite(v) and legal(v)


def _or_none(rule: Rule) -> Rule:
    return f"{rule[0]} or None", lambda v: v is None or rule[1](v)


def _biases(value: Any) -> bool:
    return isinstance(value, Mapping) and all(is_finite(bias) for bias in value.values())


_BOOL: Rule = ("a bool", lambda v: isinstance(v, bool))
_SHARE: Rule = _number("in [0, 1]", lambda v: 0 <= v <= 1)
_CUTOFF: Rule = _number("in [0, 1)", lambda v: 0 <= v < 1)
_POSITIVE_SHARE: Rule = _number("in (0, 1]", lambda v: 0 < v <= 1)
_FACTOR: Rule = _number("> 0", lambda v: v > 0)
_NOT_NEGATIVE: Rule = _number(">= 0", lambda v: v >= 0)
_ANY_NUMBER: Rule = ("a finite number", is_finite)
_IDS: Rule = ("token ids", _are_ids)
_RULES: dict[str, Rule] = {
    "max_new_tokens": _or_none(_integer(1)),
    "min_length": _integer(0),
    "min_new_tokens": _integer(0),
    "min_tokens": _integer(0),
    "ignore_eos": _BOOL,
    "stop_token_ids": _IDS,
    "stop_strings": ("non-empty strings", lambda v: isinstance(v, tuple) and all(isinstance(s, str) and s for s in v)),
    "max_time": _or_none(_number("of seconds > 0", lambda v: v > 0)),
    "repetition_penalty": _FACTOR,
    "presence_penalty": _ANY_NUMBER,
    "frequency_penalty": _ANY_NUMBER,
    "no_repeat_ngram_size": _integer(0),
    "dry_multiplier": _NOT_NEGATIVE,
    "dry_base": _number(">= 1", lambda v: v >= 1),
    "dry_allowed_length": _integer(1),
    "dry_range": _integer(0),
    "dry_sequence_breakers": _IDS,
    "sequence_bias": _or_none(
        ("a mapping of tuples of ids to finite numbers", lambda v: _biases(v) and all(_are_ids(key) and key for key in v))
    ),
    "logit_bias": _or_none(("a mapping of ids to finite numbers", lambda v: _biases(v) and all(map(_is_id, v)))),
    "bad_words_ids": ("non-empty lists of ids", lambda v: isinstance(v, tuple) and all(_are_ids(w) and w for w in v)),
    "suppress_tokens": _IDS,
    "begin_suppress_tokens": _IDS,
    "allowed_token_ids": _or_none(("at least one token id", lambda v: _are_ids(v) and len(v) > 0)),
    "forced_bos_token_id": _or_none(("a token id", _is_id)),
    "forced_eos_token_id": _or_none(("a token id or several", lambda v: _is_id(v) or (_are_ids(v) and len(v) > 0))),
    "exponential_decay_length_penalty": _or_none(
        (
            "a pair of an integer >= 0 and a number > 0",
            lambda v: isinstance(v, tuple) and len(v) == 2 and _is_id(v[0]) and is_finite(v[1]) and v[1] > 0,
        )
    ),
    "temperature": _NOT_NEGATIVE,
    "top_k": _integer(0),
    "top_p": _SHARE,
    "min_p": _SHARE,
    "top_h": _POSITIVE_SHARE,
    "typical_p": _POSITIVE_SHARE,
    "epsilon_cutoff": _CUTOFF,
    "eta_cutoff": _CUTOFF,
    "top_n_sigma": _NOT_NEGATIVE,
    "xtc_probability": _SHARE,
    "xtc_threshold": _SHARE,
    "samplers": _or_none(
        (
            f"distinct names among {', '.join(SAMPLERS)}",
            lambda v: isinstance(v, tuple) and len(set(v)) == len(v) and set(v) <= set(SAMPLERS),
        )
    ),
    "remove_invalid_values": _BOOL,
    "renormalize_logits": _BOOL,
    "watermarking_config": _or_none(("a mapping", lambda v: isinstance(v, Mapping))),
    "do_sample": _BOOL,
    "seed": ("an integer in [0, 2^64)", lambda v: is_int(v) and 0 <= v < 2**64),
    "logprobs": _or_none(_integer(0)),
    "num_beams": _integer(1),
    "num_beam_groups": _integer(1),
    "diversity_penalty": _NOT_NEGATIVE,
    "length_penalty": _ANY_NUMBER,
    "early_stopping": ("True, False or 'never'", lambda v: isinstance(v, bool) or v == "never"),
    "num_return_sequences": _integer(1),
}
_SEED: Rule = ("an integer in [0, 2^63)", lambda v: is_int(v) and 0 <= v < 2**63)
_GREEN_LIST: dict[str, Rule] = {
    "greenlist_ratio": _number("in (0, 1)", lambda v: 0 < v < 1),
    "bias": _ANY_NUMBER,
    "hashing_key": _SEED,
    "seeding_scheme": ("'lefthash' or 'selfhash'", lambda v: v in ("lefthash", "selfhash")),
    "context_width": _integer(1),
}
_SYNTHID: dict[str, Rule] = {
    "ngram_len": _integer(1),
    "keys": ("integers, at least one", lambda v: len(v) > 0 and all(is_int(key) and abs(key) < 2**63 for key in v)),
    "sampling_table_size": _integer(1),
    "sampling_table_seed": _SEED,
    "context_history_size": _integer(0),
    "skip_first_ngram_calls": _BOOL,
    "debug_mode": _BOOL,
}


def _check_watermark(config: Mapping[str, Any]) -> None:
    name = "watermarking_config"
    rules = _SYNTHID if "keys" in config else _GREEN_LIST
    for argument, value in config.items():
        require(argument in rules, _OP, name, f"of {', '.join(rules)}", repr(argument))
        rule, legal = rules[argument]
        require(value is None or legal(value), _OP, name, f"such that {argument} is {rule}", repr(value))
    if rules is _SYNTHID:
        missing = [argument for argument in list(_SYNTHID)[:5] if config.get(argument) is None]
        require(not missing, _OP, name, f"given {', '.join(missing)} beside keys", "none")
