"""SamplingParams: the sampling parameters of one request."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from decodestep.random import SEED_BITS, sample_seed
from decodestep.sampling import request_formats, rules
from decodestep.sampling.contradictions import refuse_contradictions
from decodestep.sampling.field_aliases import rename_fields
from decodestep.sampling.keyword_fields import read_defaults, sets_fields, takes_fields, with_defaults

if TYPE_CHECKING:
    from transformers import GenerationConfig

_OP = "SamplingParams"

SAMPLERS = rules.SAMPLERS


@dataclass(frozen=True, init=False, repr=False)
@with_defaults
class SamplingParams:
    """The parameters of one row; the names are those of transformers' GenerationConfig, or else vLLM's.

    `SamplingParams()` samples from the whole distribution. A field of several items accepts any iterable except strings and
    mappings, and holds a tuple; stop_strings may also be one string, and None is an empty tuple where that is the default.
    Mappings are copied. Objects are immutable (`replace` makes another) and hashable, equal if their fields are, and shown
    with those that differ from their defaults. Of the constraints, json_schema, regex, grammar and choice, at most one is
    given; the text is valid where the row ends with "eos", else it is cut.

    Args:
        max_new_tokens: an integer in [1, 2^31) or None. Ends the row after this many tokens; None: when the context
            is full.
        max_length: an integer in [1, 2^31) or None. Ends the row when prompt and generated tokens together are this
            many; None is off.
        min_length: an integer in [0, 2^31). No end token before prompt and generated tokens together are this many; 0
            is off.
        min_new_tokens: an integer in [0, 2^31). No end token before this many generated tokens; 0 is off.
        min_tokens: an integer in [0, 2^31). As min_new_tokens, and for stop tokens and stop strings too; 0 is off.
        eos_token_id: a token id or several or None. The end tokens of the row; None: those of the model.
        ignore_eos: a bool. Whether end tokens do not end the row.
        stop_token_ids: token ids. Further tokens that end the row.
        stop_strings: non-empty strings. Ends the row where one of these is in its text, also as a control token's
            name; it is cut before it.
        max_time: a finite number of seconds > 0 or None. Ends the row after this long; None is off.
        repetition_penalty: a finite number > 0. Divides the positive and multiplies the negative scores of all tokens
            of the row, prompt included; 1 is off.
        repetition_range: an integer in [0, 2^31). How many of the last tokens the repetition_penalty is for; 0 for all.
        presence_penalty: a finite number. Subtracted once from the score of a generated token; 0 is off.
        frequency_penalty: a finite number. Subtracted from the score of a generated token for each time it occurs; 0
            is off.
        no_repeat_ngram_size: an integer in [0, 2^31). No sequence of this many tokens occurs twice; 0 is off.
        dry_multiplier: a finite number >= 0. DRY: the penalty of a token that would continue a repetition of
            dry_allowed_length; 0 is off.
        dry_base: a finite number >= 1. DRY: the factor of the penalty for each further token of the repetition.
        dry_allowed_length: an integer in [1, 2^31). DRY: the length from which a repetition is penalised.
        dry_range: an integer in [0, 2^31). DRY: how many of the last tokens are searched for repetitions; 0 for all.
        dry_sequence_breakers: token ids or non-empty strings or None. DRY: tokens that end a repetition, or whose text has
            one of these; None: llama.cpp's usual ones, a line end, a colon, a double quote and an asterisk.
        sequence_bias: a mapping of tuples of ids to numbers below inf or None. Added to the score of the last of
            these tokens where the row ends with those before it; -inf forbids it; None is off.
        logit_bias: a mapping of ids to numbers below inf or None. Added to the scores of tokens; -inf forbids a
            token; None is off.
        bad_words_ids: non-empty lists of ids. Sequences of tokens that must not occur.
        bad_words: non-empty strings. Not drawn in the tokens of these texts, alone or after a blank.
        suppress_tokens: token ids. Tokens that are never drawn.
        begin_suppress_tokens: token ids. Tokens that are not drawn first, or first after a forced_bos_token_id that
            applies.
        allowed_token_ids: at least one token id or None. No other token is drawn; None allows all.
        forced_bos_token_id: a token id or None. The first generated token after a prompt of one token; None is off.
        forced_eos_token_id: a token id or several or None. What the last token that max_new_tokens allows must be;
            None is off.
        exponential_decay_length_penalty: a pair of an integer >= 0 and a finite number > 0 or None. (start, factor):
            n tokens after start generated ones, end scores rise by |score| * (factor^n - 1); None is off.
        temperature: a finite number >= 0. Scores are divided by it; 1 is off, 0 takes the most likely token.
        top_k: an integer in [-1, 2^31). Keeps the k most likely tokens; 0 and -1 are off.
        top_p: a number in [0, 1]. Keeps the most likely tokens until their probabilities sum to p; 1 is off.
        min_p: a number in [0, 1]. Keeps tokens of at least this share of the largest probability; 0 is off.
        top_h: a number in (0, 1]. Keeps the most likely tokens up to this share of the entropy; 1 is off.
        typical_p: a number in (0, 1]. Keeps the tokens of most typical surprise until their probabilities sum to it;
            1 is off.
        epsilon_cutoff: a number in [0, 1). Drops tokens of a smaller probability; 0 is off.
        eta_cutoff: a number in [0, 1). As epsilon_cutoff, with a bound that falls with the entropy; 0 is off.
        top_n_sigma: a finite number >= 0. Keeps scores within this many standard deviations of the largest; 0 is off.
        xtc_probability: a number in [0, 1]. XTC: how often all likely tokens but the least likely of them are
            dropped; 0 is off.
        xtc_threshold: a number in [0, 1]. XTC: the probability from which a token counts as likely.
        xtc_special_tokens: token ids. XTC: tokens that are not dropped, such as end tokens and line ends.
        samplers: distinct names among temperature, top_n_sigma, top_h, top_k, top_p, min_p, typical_p,
            epsilon_cutoff, eta_cutoff, xtc_probability or None. The order of those that are to run, all that are set
            among them; None for the order given here.
        remove_invalid_values: a bool. Whether NaN becomes 0 and an infinity the largest finite score, before
            temperature and filters.
        renormalize_logits: a bool. Whether the processed scores are log-probabilities.
        watermarking_config: a mapping or None. Arguments of WatermarkLogitsProcessor, with "keys" of
            SynthIDTextWatermarkLogitsProcessor; None is off.
        do_sample: a bool. False takes the most likely token, without temperature and filters.
        seed: an integer in [0, 2^64) or None. The same seed gives the same text in any batch, on any threads; rows of
            one seed share their noise; None: a new seed for each row, which its Completion reports.
        logprobs: an integer in [0, 2^31) or None. Reports log-probabilities, of the drawn and of this many most
            likely tokens; None is off.
        prompt_logprobs: an integer in [0, 2^31) or None. `generate` reports log-probabilities of the prompt's tokens
            and of this many most likely, before any processor; None is off.
        num_beams: an integer in [1, 2^31). Beam search with this many beams; 1 is off.
        num_beam_groups: an integer in [1, 2^31). Diverse beam search with this many groups, a divisor of num_beams,
            for greedy rows; 1 is off.
        diversity_penalty: a finite number >= 0. Subtracted for each beam of an earlier group that took the token; > 0
            with groups, else 0.
        length_penalty: a finite number. The power of the length by which the sum of a beam is divided; > 0 prefers
            long text, < 0 short.
        early_stopping: True, False or 'never'. When a search that has num_beams finished beams ends; see
            `beam_search`.
        num_return_sequences: an integer in [1, 2^31). How many completions a prompt has: beams, at most num_beams, or
            samples with a seed each; greedy ones are equal.
        json_schema: a mapping, a non-empty string, a Pydantic class or None. The text is JSON of this schema, a mapping
            or its JSON, in the form of json.dumps; None is off.
        regex: a non-empty string or None. The text matches this expression as a whole; None is off.
        grammar: a non-empty string or None. The text is of this grammar, in llguidance's kind of Lark or llama.cpp's
            GBNF; None is off.
        choice: at least one non-empty string or None. The text is one of these; None is off.
        json_property_order: 'schema' or 'any'. The order of an object's properties, also in a grammar's schemas: that of
            the schema, or any, where an object has at most 32.
        disable_additional_properties: a bool. Whether objects with properties and without additionalProperties have no other
            members, also in a grammar's schemas; False is the letter of JSON Schema.
        thinking_budget_tokens: an integer in [-1, 2^31) or None. How many tokens the reasoning in the answer to a
            conversation may have, from its opening mark on; then its closing mark is forced. 0 closes it at once; None
            and -1 are off.
        thinking_budget_message: a string of valid Unicode or None. Text that is put before a closing mark that is
            forced; None is off.
        prediction: a string of valid Unicode or None. Text that the answer will probably repeat: faster, never other text;
            None is off.
        draft: a bool. Whether tokens may be drafted ahead, where `generate` or `Engine` drafts: faster, never other text.
        max_tokens: max_new_tokens by the name that OpenAI and vLLM give it.
        max_completion_tokens: max_new_tokens by the name that OpenAI gives it.
        stop: stop_strings by the name that OpenAI and vLLM give it.
        n: num_return_sequences by the name that OpenAI and vLLM give it.
        thinking_token_budget: thinking_budget_tokens by the name that vLLM gives it.

    Raises:
        RequestError: A value is outside its rule, fields contradict each other, or one is given twice. It is a ValueError.
        UnknownFieldError: A keyword is no field. It is a RequestError, and a TypeError too.
    """

    max_new_tokens: int | None
    max_length: int | None
    min_length: int
    min_new_tokens: int
    min_tokens: int
    eos_token_id: int | tuple[int, ...] | None
    ignore_eos: bool
    stop_token_ids: tuple[int, ...]
    stop_strings: tuple[str, ...]
    max_time: float | None

    repetition_penalty: float
    repetition_range: int
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_range: int
    dry_sequence_breakers: tuple[int | str, ...] | None
    sequence_bias: Mapping[tuple[int, ...], float] | None
    logit_bias: Mapping[int, float] | None
    bad_words_ids: tuple[tuple[int, ...], ...]
    bad_words: tuple[str, ...]
    suppress_tokens: tuple[int, ...]
    begin_suppress_tokens: tuple[int, ...]
    allowed_token_ids: tuple[int, ...] | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | tuple[int, ...] | None
    exponential_decay_length_penalty: tuple[int, float] | None

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    top_h: float
    typical_p: float
    epsilon_cutoff: float
    eta_cutoff: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    xtc_special_tokens: tuple[int, ...]
    samplers: tuple[str, ...] | None
    remove_invalid_values: bool
    renormalize_logits: bool
    watermarking_config: Mapping[str, Any] | None

    do_sample: bool
    seed: int | None
    logprobs: int | None
    prompt_logprobs: int | None

    num_beams: int
    num_beam_groups: int
    diversity_penalty: float
    length_penalty: float
    early_stopping: bool | Literal["never"]
    num_return_sequences: int

    json_schema: str | None
    regex: str | None
    grammar: str | None
    choice: tuple[str, ...] | None
    json_property_order: Literal["schema", "any"]
    disable_additional_properties: bool

    thinking_budget_tokens: int | None
    thinking_budget_message: str | None
    prediction: str | None
    draft: bool

    @sets_fields(_OP, refuse_contradictions)
    def __init__(
        self,
        *,
        max_new_tokens: int | None = 256,
        max_length: int | None = None,
        min_length: int = 0,
        min_new_tokens: int = 0,
        min_tokens: int = 0,
        eos_token_id: int | Iterable[int] | None = None,
        ignore_eos: bool = False,
        stop_token_ids: Iterable[int] | None = (),
        stop_strings: str | Iterable[str] | None = (),
        max_time: float | None = None,
        repetition_penalty: float = 1.0,
        repetition_range: int = 0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        no_repeat_ngram_size: int = 0,
        dry_multiplier: float = 0.0,
        dry_base: float = 1.75,
        dry_allowed_length: int = 2,
        dry_range: int = 0,
        dry_sequence_breakers: str | Iterable[int | str] | None = None,
        sequence_bias: Mapping[tuple[int, ...], float] | None = None,
        logit_bias: Mapping[int, float] | None = None,
        bad_words_ids: Iterable[Iterable[int]] | None = (),
        bad_words: str | Iterable[str] | None = (),
        suppress_tokens: Iterable[int] | None = (),
        begin_suppress_tokens: Iterable[int] | None = (),
        allowed_token_ids: Iterable[int] | None = None,
        forced_bos_token_id: int | None = None,
        forced_eos_token_id: int | Iterable[int] | None = None,
        exponential_decay_length_penalty: Iterable[float] | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        top_h: float = 1.0,
        typical_p: float = 1.0,
        epsilon_cutoff: float = 0.0,
        eta_cutoff: float = 0.0,
        top_n_sigma: float = 0.0,
        xtc_probability: float = 0.0,
        xtc_threshold: float = 0.1,
        xtc_special_tokens: Iterable[int] | None = (),
        samplers: Iterable[str] | None = None,
        remove_invalid_values: bool = False,
        renormalize_logits: bool = False,
        watermarking_config: Mapping[str, Any] | None = None,
        do_sample: bool = True,
        seed: int | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        num_beams: int = 1,
        num_beam_groups: int = 1,
        diversity_penalty: float = 0.0,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        num_return_sequences: int = 1,
        json_schema: str | Mapping[str, Any] | type | None = None,
        regex: str | None = None,
        grammar: str | None = None,
        choice: Iterable[str] | None = None,
        json_property_order: Literal["schema", "any"] = "schema",
        disable_additional_properties: bool = True,
        thinking_budget_tokens: int | None = None,
        thinking_budget_message: str | None = None,
        prediction: str | None = None,
        draft: bool = True,
        max_tokens: int | None = 256,
        max_completion_tokens: int | None = 256,
        stop: str | Iterable[str] | None = (),
        n: int = 1,
        thinking_token_budget: int | None = None,
    ) -> None: ...

    def __repr__(self) -> str:
        set_ = ((name, getattr(self, name)) for name in DEFAULTS)
        return f"SamplingParams({', '.join(f'{name}={value!r}' for name, value in set_ if value != DEFAULTS[name])})"

    @property
    def greedy(self) -> bool:
        """Whether the row takes the most likely token at every step."""
        return bool(not self.do_sample or self.temperature == 0)

    @property
    def thinking_budget(self) -> int | None:
        """thinking_budget_tokens; None for -1."""
        return None if self.thinking_budget_tokens == -1 else self.thinking_budget_tokens

    @property
    def active_samplers(self) -> tuple[str, ...]:
        """Those of `SAMPLERS` that change something, in the order in which they run."""
        if self.greedy:
            return ()
        order = SAMPLERS if self.samplers is None else self.samplers
        ordered = (*order, *(name for name in SAMPLERS if name not in order))
        return tuple(name for name in ordered if getattr(self, name) != DEFAULTS[name])

    @takes_fields(__init__)
    def replace(self, **changes: Any) -> SamplingParams:
        """The same parameters with other values of some fields, given as to `SamplingParams`, by any name of a field."""
        return replace(self, **changes)

    def without_beams(self) -> SamplingParams:
        """The same with one beam; the processors of a beam search are built from it."""
        return self.replace(num_beams=1, num_beam_groups=1, diversity_penalty=0.0, num_return_sequences=1)

    def samples(self) -> list[SamplingParams]:
        """The parameters of each of num_return_sequences samples: the same, each with its own seed.

        If seed is None, it is drawn from the system's entropy; sample k has `random.sample_seed(seed, k)`. Greedy ones keep it.
        """
        count = self.num_return_sequences
        if count == 1 and (self.greedy or self.seed is not None):
            return [self]
        if self.greedy:
            return [self.replace(num_return_sequences=1)] * count
        seed = secrets.randbits(SEED_BITS) if self.seed is None else self.seed
        return [self.replace(seed=sample_seed(seed, k), num_return_sequences=1) for k in range(count)]

    @classmethod
    def from_generation_config(cls, config: GenerationConfig | Mapping[str, Any], **changes: object) -> SamplingParams:
        """The parameters of a transformers GenerationConfig, as `generate` would read it.

        Args:
            config: a GenerationConfig, or a mapping of its fields. Without do_sample it is greedy; if it samples, top_k is 50
                by default. max_length is used if there is no max_new_tokens, min_length if there is no min_new_tokens. Without
                either length, max_new_tokens is 256, the default here, and not the 20 of `generate`. Fields that change no
                token are ignored: about the cache, the form of the result, padding and the speed of assisted generation.
            changes: fields of SamplingParams that replace those of the config, before it is read: with do_sample=True it
                samples, and with max_new_tokens its max_length is not used.

        Raises:
            ValueError: for a field whose value is not supported.
        """
        names = DEFAULTS.keys()
        return cls(**request_formats.from_generation_config(config, rename_fields(changes, names), names))

    @classmethod
    def from_openai(cls, body: Mapping[str, Any], **changes: object) -> SamplingParams:
        """The parameters of an OpenAI completions or chat-completions request.

        Args:
            body: the request. max_tokens, max_completion_tokens and n_predict -> max_new_tokens, None for -1; stop ->
                stop_strings; n -> num_return_sequences; logit_bias with its string keys; sequence_bias also as a list of pairs
                [ids, bias]; logprobs and top_logprobs, or logprobs as a number, -> logprobs, and top_logprobs 0 alone ->
                none; response_format -> json_schema, {"type": "object"} for a json_object without a schema; the text of
                prediction; a negative seed counts from 2^64; repeat_penalty beside repeat_last_n -1 -> repetition_penalty.
                Other names of SamplingParams are accepted unchanged. Model, messages, prompt, stream, user ... are left to the
                caller.
            changes: fields of SamplingParams that replace those of the request.

        Raises:
            ValueError: for every other field, for two fields that contradict each other, and outside the intervals of the
                interface. Of best_of, echo, suffix, modalities, verbosity and of what vLLM, SGLang and llama-server have
                beyond it, such as use_beam_search, mirostat or skip_special_tokens, only the value that changes nothing is
                accepted.
        """
        names = DEFAULTS.keys()
        return cls(**{**request_formats.from_openai(body, names), **rename_fields(changes, names)})


DEFAULTS = read_defaults(SamplingParams)
