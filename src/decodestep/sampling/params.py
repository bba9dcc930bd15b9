"""SamplingParams: the sampling parameters of one request."""

from __future__ import annotations

import functools
import json
import secrets
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from decodestep._base.checks import Words, refuse, require
from decodestep.random import SEED_BITS, sample_seed
from decodestep.sampling import request_formats, rules
from decodestep.sampling.frozen_mapping import FrozenMapping
from decodestep.sampling.rules import Rule, integer, or_none
from decodestep.sampling.spellings import rename_fields

if TYPE_CHECKING:
    from transformers import GenerationConfig

_OP = "SamplingParams"

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

LANGUAGES = ("json_schema", "regex", "grammar")  # the fields with a constraint
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
    "dry_sequence_breakers",
)
SEQUENCE_FIELDS = ("bad_words_ids", "sequence_bias")


def _field(default: Any, rule: Rule, text: str, *, section: str = "", several: bool = False) -> Any:
    """A field with its default, its rule and its description.

    text: one line without a full stop, which includes the value that turns the field off. section: the heading that starts with
    this field. several: the field holds a tuple and accepts any iterable.
    """
    return field(default=default, metadata={"rule": rule, "text": text, "section": section, "several": several})


def _several(default: Any, rule: Rule, text: str) -> Any:
    return _field(default, rule, text, several=True)


@dataclass(frozen=True)
class SamplingParams:
    """The parameters of one row; the names are those of transformers' GenerationConfig, or else vLLM's.

    Each line says: field = default: legal values. What it does.

    {fields}

    `SamplingParams()` samples from the whole distribution. A field of several items accepts any iterable except strings and
    mappings, and holds a tuple; stop_strings may also be one string. Mappings are copied. Objects are hashable, and equal if
    their fields are. The names of OpenAI and vLLM are accepted too: max_tokens and max_completion_tokens for max_new_tokens,
    stop for stop_strings, n for num_return_sequences. Raises ValueError for a value outside the rules and for fields that
    contradict each other; an error that is both a ValueError and a TypeError for an unknown keyword.
    """

    max_new_tokens: int | None = _field(
        256,
        or_none(integer(1)),
        "ends the row after this many tokens; None: when the context is full",
        section="Length and end",
    )
    max_length: int | None = _field(
        None, or_none(integer(1)), "ends the row when prompt and generated tokens together are this many; None is off"
    )
    min_length: int = _field(0, integer(0), "no end token before prompt and generated tokens together are this many; 0 is off")
    min_new_tokens: int = _field(0, integer(0), "no end token before this many generated tokens; 0 is off")
    min_tokens: int = _field(0, integer(0), "as min_new_tokens, and for stop tokens and stop strings too; 0 is off")
    eos_token_id: int | tuple[int, ...] | None = _several(
        None, or_none(rules.ID_OR_IDS), "the end tokens of the row; None: those of the model"
    )
    ignore_eos: bool = _field(False, rules.BOOL, "whether end tokens do not end the row")
    stop_token_ids: tuple[int, ...] = _several((), rules.IDS, "further tokens that end the row")
    stop_strings: tuple[str, ...] = _several(
        (), rules.STRINGS, "ends the row where one of these is in its text, also as a control token's name; it is cut before it"
    )
    max_time: float | None = _field(None, or_none(rules.SECONDS), "ends the row after this long; None is off")

    repetition_penalty: float = _field(
        1.0,
        rules.POSITIVE,
        "divides the positive and multiplies the negative scores of all tokens of the row, prompt included; 1 is off",
        section="Penalties and biases",
    )
    presence_penalty: float = _field(0.0, rules.FINITE, "subtracted once from the score of a generated token; 0 is off")
    frequency_penalty: float = _field(
        0.0, rules.FINITE, "subtracted from the score of a generated token for each time it occurs; 0 is off"
    )
    no_repeat_ngram_size: int = _field(0, integer(0), "no sequence of this many tokens occurs twice; 0 is off")
    dry_multiplier: float = _field(
        0.0, rules.NOT_NEGATIVE, "DRY: the penalty of a token that would continue a repetition of dry_allowed_length; 0 is off"
    )
    dry_base: float = _field(1.75, rules.AT_LEAST_1, "DRY: the factor of the penalty for each further token of the repetition")
    dry_allowed_length: int = _field(2, integer(1), "DRY: the length from which a repetition is penalised")
    dry_range: int = _field(0, integer(0), "DRY: how many of the last tokens are searched for repetitions; 0 for all")
    dry_sequence_breakers: tuple[int, ...] = _several((), rules.IDS, "DRY: tokens that end a repetition")
    sequence_bias: Mapping[tuple[int, ...], float] | None = _field(
        None,
        or_none(rules.SEQUENCE_BIASES),
        "added to the score of the last of these tokens where the row ends with those before it; -inf forbids it; None is off",
    )
    logit_bias: Mapping[int, float] | None = _field(
        None, or_none(rules.ID_BIASES), "added to the scores of tokens; -inf forbids a token; None is off"
    )
    bad_words_ids: tuple[tuple[int, ...], ...] = _several((), rules.SEQUENCES, "sequences of tokens that must not occur")
    suppress_tokens: tuple[int, ...] = _several((), rules.IDS, "tokens that are never drawn")
    begin_suppress_tokens: tuple[int, ...] = _several(
        (), rules.IDS, "tokens that are not drawn first, or first after a forced_bos_token_id that applies"
    )
    allowed_token_ids: tuple[int, ...] | None = _several(
        None, or_none(rules.SOME_IDS), "no other token is drawn; None allows all"
    )
    forced_bos_token_id: int | None = _field(
        None, or_none(rules.ID), "the first generated token after a prompt of one token; None is off"
    )
    forced_eos_token_id: int | tuple[int, ...] | None = _several(
        None, or_none(rules.ID_OR_IDS), "what the last token that max_new_tokens allows must be; None is off"
    )
    exponential_decay_length_penalty: tuple[int, float] | None = _several(
        None,
        or_none(rules.DECAY),
        "(start, factor): n tokens after start generated ones, end scores rise by |score| * (factor^n - 1); None is off",
    )

    temperature: float = _field(
        1.0,
        rules.NOT_NEGATIVE,
        "scores are divided by it; 1 is off, 0 takes the most likely token",
        section="Shape of the distribution",
    )
    top_k: int = _field(0, rules.TOP_K, "keeps the k most likely tokens; 0 and -1 are off")
    top_p: float = _field(1.0, rules.SHARE, "keeps the most likely tokens until their probabilities sum to p; 1 is off")
    min_p: float = _field(0.0, rules.SHARE, "keeps tokens of at least this share of the largest probability; 0 is off")
    top_h: float = _field(1.0, rules.POSITIVE_SHARE, "keeps the most likely tokens up to this share of the entropy; 1 is off")
    typical_p: float = _field(
        1.0, rules.POSITIVE_SHARE, "keeps the tokens of most typical surprise until their probabilities sum to it; 1 is off"
    )
    epsilon_cutoff: float = _field(0.0, rules.CUTOFF, "drops tokens of a smaller probability; 0 is off")
    eta_cutoff: float = _field(0.0, rules.CUTOFF, "as epsilon_cutoff, with a bound that falls with the entropy; 0 is off")
    top_n_sigma: float = _field(
        0.0, rules.NOT_NEGATIVE, "keeps scores within this many standard deviations of the largest; 0 is off"
    )
    xtc_probability: float = _field(
        0.0, rules.SHARE, "XTC: how often all likely tokens but the least likely of them are dropped; 0 is off"
    )
    xtc_threshold: float = _field(0.1, rules.SHARE, "XTC: the probability from which a token counts as likely")
    samplers: tuple[str, ...] | None = _several(
        None,
        or_none(rules.distinct_names(SAMPLERS)),
        "the order of those that are to run, all that are set among them; None for the order given here",
    )
    remove_invalid_values: bool = _field(
        False, rules.BOOL, "whether NaN becomes 0 and an infinity the largest finite score, before temperature and filters"
    )
    renormalize_logits: bool = _field(False, rules.BOOL, "whether the processed scores are log-probabilities")
    watermarking_config: Mapping[str, Any] | None = _field(
        None,
        or_none(rules.MAPPING),
        'arguments of WatermarkLogitsProcessor, with "keys" of SynthIDTextWatermarkLogitsProcessor; None is off',
    )

    do_sample: bool = _field(
        True, rules.BOOL, "False takes the most likely token, without temperature and filters", section="The draw"
    )
    seed: int | None = _field(
        None,
        or_none(rules.SEED),
        "the same seed gives the same text in any batch, on any threads; rows of one seed share their noise; None: a new seed "
        "for each row, which its Completion reports",
    )
    logprobs: int | None = _field(
        None, or_none(integer(0)), "reports log-probabilities, of the drawn and of this many most likely tokens; None is off"
    )
    prompt_logprobs: int | None = _field(
        None,
        or_none(integer(0)),
        "`generate` reports log-probabilities of the prompt's tokens and of this many most likely, before any processor; None "
        "is off",
    )

    num_beams: int = _field(1, integer(1), "beam search with this many beams; 1 is off", section="Beams")
    num_beam_groups: int = _field(
        1, integer(1), "diverse beam search with this many groups, a divisor of num_beams, for greedy rows; 1 is off"
    )
    diversity_penalty: float = _field(
        0.0, rules.NOT_NEGATIVE, "subtracted for each beam of an earlier group that took the token; > 0 with groups, else 0"
    )
    length_penalty: float = _field(
        1.0, rules.FINITE, "the power of the length by which the sum of a beam is divided; > 0 prefers long text, < 0 short"
    )
    early_stopping: bool | str = _field(
        False, rules.EARLY_STOPPING, "when a search that has num_beams finished beams ends; see `beam_search`"
    )
    num_return_sequences: int = _field(
        1,
        integer(1),
        "how many completions a prompt has: beams, at most num_beams, or samples with a seed each; greedy ones are equal",
    )

    json_schema: str | Mapping[str, Any] | None = _field(
        None,
        or_none(rules.SCHEMA),
        "the text is JSON of this schema, a mapping or its JSON, in the form of json.dumps; None is off",
        section='Constraints: at most one; the text is valid where the row ends with "eos", else it is cut',
    )
    regex: str | None = _field(None, or_none(rules.TEXT), "the text matches this expression as a whole; None is off")
    grammar: str | None = _field(
        None, or_none(rules.TEXT), "the text is of this grammar, in llguidance's kind of Lark or llama.cpp's GBNF; None is off"
    )

    def __post_init__(self) -> None:
        if isinstance(self.json_schema, Mapping):
            object.__setattr__(self, "json_schema", _as_json(self.json_schema))
        for each in fields(self):
            value = getattr(self, each.name)
            if each.metadata["several"]:
                value = (value,) if each.name == "stop_strings" and isinstance(value, str) else _as_tuples(value)
                object.__setattr__(self, each.name, value)
            rule, legal = each.metadata["rule"]
            require(legal(value), _OP, each.name, rule, value)
            if isinstance(value, Mapping):
                items = {key: _as_tuples(item) for key, item in value.items()}
                object.__setattr__(self, each.name, FrozenMapping(items))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        self._check_beams()
        self._check_watermark()
        self._check_constraints()
        missing = [name for name in self.active_samplers if self.samplers is not None and name not in self.samplers]
        require(not missing, _OP, "samplers", f"one that names {', '.join(missing)}", self.samplers)

    def _check_beams(self) -> None:
        beams, groups, grouped = self.num_beams, self.num_beam_groups, self.num_beam_groups > 1
        require(beams % groups == 0, _OP, "num_beam_groups", f"a divisor of num_beams {beams}", groups)
        rule = "> 0 with several beam groups" if grouped else "0 without several beam groups"
        require(grouped == (self.diversity_penalty > 0), _OP, "diversity_penalty", rule, self.diversity_penalty)
        asked = self.prompt_logprobs
        require(beams == 1 or asked is None, _OP, "prompt_logprobs", "None beside several beams", asked)
        require(self.greedy or not grouped, _OP, "do_sample", "False with several beam groups", self.do_sample)
        self._check_returned()

    def _check_returned(self) -> None:
        beams, count = self.num_beams, self.num_return_sequences
        require(beams == 1 or count <= beams, _OP, "num_return_sequences", f"at most num_beams {beams}", count)

    def _check_watermark(self) -> None:
        config = self.watermarking_config or {}
        rules.check_watermark(_OP, config)
        rule = "without keys beside several beams: SynthID keeps the state of one row"
        require(self.num_beams == 1 or "keys" not in config, _OP, "watermarking_config", rule, self.num_beams)

    def _check_constraints(self) -> None:
        asked = languages_of(self)
        if asked:
            require(len(asked) == 1, _OP, asked[-1], f"None beside {asked[0]}", getattr(self, asked[-1]))
            require(self.num_beams == 1, _OP, asked[0], "None beside several beams", getattr(self, asked[0]))
            require(not self.ignore_eos, _OP, "ignore_eos", f"False beside {asked[0]}, which ends the row", self.ignore_eos)

    @property
    def greedy(self) -> bool:
        """Whether the row takes the most likely token at every step."""
        return bool(not self.do_sample or self.temperature == 0)

    @property
    def active_samplers(self) -> tuple[str, ...]:
        """Those of `SAMPLERS` that change something, in the order in which they run."""
        if self.greedy:
            return ()
        order = SAMPLERS if self.samplers is None else self.samplers
        ordered = (*order, *(name for name in SAMPLERS if name not in order))
        return tuple(name for name in ordered if getattr(self, name) != DEFAULTS[name])

    def without_beams(self) -> SamplingParams:
        """The same with one beam; the processors of a beam search are built from it."""
        return replace(self, num_beams=1, num_beam_groups=1, diversity_penalty=0.0, num_return_sequences=1)

    def samples(self) -> list[SamplingParams]:
        """The parameters of each of num_return_sequences samples: the same, each with its own seed.

        If seed is None, it is drawn from the system's entropy; sample k has `random.sample_seed(seed, k)`. Greedy samples are
        equal, and keep the seed or None.
        """
        count = self.num_return_sequences
        if count == 1 and (self.greedy or self.seed is not None):
            return [self]
        if self.greedy:
            return [replace(self, num_return_sequences=1)] * count
        seed = secrets.randbits(SEED_BITS) if self.seed is None else self.seed
        return [replace(self, seed=sample_seed(seed, k), num_return_sequences=1) for k in range(count)]

    @classmethod
    def from_generation_config(cls, config: GenerationConfig | Mapping[str, Any], **changes: Any) -> SamplingParams:
        """The parameters of a transformers GenerationConfig, as `generate` would read it.

        config: a GenerationConfig, or a mapping of its fields. Without do_sample it is greedy; if it samples, top_k is 50 by
            default. max_length is used if there is no max_new_tokens, min_length if there is no min_new_tokens. Without either
            length, max_new_tokens is 256, the default here, and not the 20 of `generate`. Fields about the cache, the form of
            the result, padding and the speed of assisted generation are ignored, because they do not change any token.
        changes: fields of SamplingParams that replace those of the config, before it is read: with do_sample=True it samples,
            and with max_new_tokens its max_length is not used.

        Raises ValueError for a field whose value is not supported.
        """
        names = DEFAULTS.keys()
        return cls(**request_formats.from_generation_config(config, rename_fields(changes, names), names))

    @classmethod
    def from_openai(cls, body: Mapping[str, Any], **changes: Any) -> SamplingParams:
        """The parameters of an OpenAI completions or chat-completions request.

        body: the request. max_tokens and max_completion_tokens -> max_new_tokens; stop -> stop_strings; n ->
            num_return_sequences; logit_bias with its string keys; sequence_bias also as a list of pairs [ids, bias]; logprobs
            and top_logprobs, or logprobs as a number, -> logprobs; a negative seed counts from 2^64. Other names of
            SamplingParams are accepted unchanged. The prompt and the transport (model, messages, prompt, stream, user ...) are
            left to the caller.
        changes: fields of SamplingParams that replace those of the request.

        Raises ValueError for every other field, for two fields that contradict each other, and outside the intervals of the
        interface. Of best_of, echo, suffix, modalities, response_format and verbosity, and of vLLM's use_beam_search and its
        fields about control tokens and stop strings in the text, only the value that changes nothing is accepted.
        """
        names = DEFAULTS.keys()
        return cls(**{**request_formats.from_openai(body, names), **rename_fields(changes, names)})


def languages_of(params: SamplingParams) -> list[str]:
    """Those of `LANGUAGES` that the params have."""
    return [name for name in LANGUAGES if getattr(params, name) is not None]


def _as_tuples(value: Any) -> Any:
    """An iterable (not a string or mapping) as a tuple, recursively; arrays as Python numbers; anything else unchanged."""
    if type(value) in (list, tuple) and {int}.issuperset(map(type, value)):  # most are: bad words may have a million ids
        return tuple(value)
    value = value.tolist() if hasattr(value, "tolist") else value
    iterable = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    return tuple(map(_as_tuples, value)) if iterable else value


def _as_json(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        refuse(_OP, "json_schema", "a value that JSON can represent", Words(str(error)))


def _field_lines() -> str:
    """The fields of SamplingParams for its docstring."""
    lines = []
    for each in fields(SamplingParams):
        if each.metadata["section"]:
            lines += ["", each.metadata["section"]]
        line = f"{each.name} = {each.default!r}: {each.metadata['rule'][0]}. {_sentence(each.metadata['text'])}"
        lines += textwrap.wrap(line, 124, subsequent_indent="    ")
    return "\n".join(f"    {line}".rstrip() for line in lines).strip()


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _accept_other_spellings(init: Any) -> Any:
    @functools.wraps(init)
    def take(self: SamplingParams, *arguments: Any, **given: Any) -> None:
        init(self, *arguments, **rename_fields(given, DEFAULTS.keys()))

    return take


DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(SamplingParams)}
SamplingParams.__init__ = _accept_other_spellings(SamplingParams.__init__)  # type: ignore[method-assign]
SamplingParams.__doc__ = (SamplingParams.__doc__ or "").replace("{fields}", _field_lines())
