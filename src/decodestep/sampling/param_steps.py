"""What each field of `SamplingParams` does to a row's scores, in the order in which it is done.

A field becomes a part at once (see `parts`). Beside it stands the processor class that defines it: the oracle of the tests,
what explanations show, and what beam search calls. Where there is no part, the processor runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from decodestep import processors as p
from decodestep._base.checks import Phrase, is_int, refuse
from decodestep._base.extras import extra
from decodestep.ops.decode_step import steps as s
from decodestep.ops.decode_step.rows import Part
from decodestep.ops.decode_step.steps import Step
from decodestep.processors.lengths import decay_growth
from decodestep.sampling import parts
from decodestep.sampling.fusion_rules import RULES
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.stage import Stage, build_stage


class Setting(NamedTuple):
    """A row's params, and what else its steps depend on.

    ends: its end tokens, ascending. keep: how many tokens a filter leaves at least.
    """

    params: SamplingParams
    prompt_length: int
    vocab_size: int
    ends: list[int]
    keep: int

    @property
    def seed(self) -> int:
        if self.params.seed is None:
            refuse("build_processors", "params", "those of a row, whose seed has been drawn", Phrase("seed None"))
        return int(self.params.seed)

    @property
    def ends_and_stops(self) -> list[int]:
        return sorted({*self.ends, *self.params.stop_token_ids})

    @property
    def first(self) -> int:
        """The length of the history at the first token that is free: after a forced one, if that applies."""
        return self.prompt_length + (self.prompt_length <= 1 and self.params.forced_bos_token_id is not None)


class ParamStep(NamedTuple):
    """One thing that params do to scores.

    fields: those of SamplingParams that it reads; the first is its own. processor: the class that defines it.
    arguments: those of the class, by position. part: what runs in its place; None: the processor itself.
    applies: whether a row has it; of filters and the temperature, `SamplingParams.active_samplers` tells.
    """

    fields: tuple[str, ...]
    processor: Callable[..., Any]
    arguments: Callable[[Setting], tuple[Any, ...]]
    part: Callable[[Setting], Part] | None = None
    applies: Callable[[Setting], bool] = lambda row: True

    def stage(self, row: Setting) -> Stage:
        if self.part is None:
            return build_stage(self.build(row), row.vocab_size)
        kind = RULES[cast(type, self.processor)].kind
        return Stage(self.processor.__name__, kind, self.part(row), partial(self.build, row))

    def build(self, row: Setting) -> Any:
        return self.processor(*self.arguments(row))


def as_several(ids: object) -> Any:
    """No id for None, one for an id, also as an array of rank 0; several as they are."""
    plain = ids.tolist() if hasattr(ids, "tolist") else ids
    return () if plain is None else [plain] if is_int(plain) else plain


def _dry(params: SamplingParams) -> tuple[float, float, int, tuple[int, ...], int]:
    """The arguments of the class and of the part."""
    breakers = tuple(each for each in params.dry_sequence_breakers or () if not isinstance(each, str))  # texts are ids by now
    shape = float(params.dry_multiplier), float(params.dry_base), int(params.dry_allowed_length)
    return (*shape, breakers, int(params.dry_range))


def _without_ends(words: Iterable[tuple[int, ...]], ends: Collection[int]) -> list[tuple[int, ...]]:
    """Those that are no single end token: a bad word does not forbid one."""
    return [word for word in words if len(word) != 1 or word[0] not in ends]


def _decay(row: Setting) -> Part:
    start, factor = row.params.exponential_decay_length_penalty or (0, 1.0)
    return parts.lift_ends(row.ends, start + row.prompt_length, partial(decay_growth, factor))


def _xtc(row: Setting) -> s.Xtc:
    params = row.params
    return s.Xtc(float(params.xtc_threshold), float(params.xtc_probability), row.seed, params.xtc_special_tokens)


def _watermark(config: Mapping[str, Any], vocab_size: int) -> Any:
    arguments: dict[str, Any] = {name: value for name, value in config.items() if value is not None}
    with extra("torch"):
        if "keys" in arguments:
            return p.SynthIDTextWatermarkLogitsProcessor(device="cpu", **arguments)
        return p.WatermarkLogitsProcessor(vocab_size=vocab_size, device="cpu", **arguments)


# Biases and penalties; bans; minimum lengths; forced tokens; repair; length decay; suppressed and allowed tokens.
BEFORE_OWN = (
    ParamStep(
        ("sequence_bias",),
        p.SequenceBiasLogitsProcessor,
        lambda row: ({ids: float(bias) for ids, bias in (row.params.sequence_bias or {}).items()},),
        lambda row: parts.add_sequences(row.params.sequence_bias or {}, row.vocab_size),
        lambda row: bool(row.params.sequence_bias),
    ),
    ParamStep(
        ("logit_bias",),
        p.LogitBiasLogitsProcessor,
        lambda row: (row.params.logit_bias,),
        lambda row: parts.add_biases(row.params.logit_bias or {}),
        lambda row: bool(row.params.logit_bias),
    ),
    ParamStep(
        ("repetition_penalty",),
        p.RepetitionPenaltyLogitsProcessor,
        lambda row: (float(row.params.repetition_penalty),),
        lambda row: s.PenaliseSeen(0, float(row.params.repetition_penalty)),
        lambda row: row.params.repetition_penalty != 1 and not row.params.repetition_range,
    ),
    ParamStep(
        ("repetition_range", "repetition_penalty"),
        p.RecentRepetitionPenaltyLogitsProcessor,
        lambda row: (float(row.params.repetition_penalty), int(row.params.repetition_range)),
        lambda row: parts.penalise_recent(
            float(row.params.repetition_penalty), int(row.params.repetition_range), row.vocab_size
        ),
        lambda row: row.params.repetition_penalty != 1 and bool(row.params.repetition_range),
    ),
    ParamStep(
        ("presence_penalty", "frequency_penalty"),
        p.PresenceFrequencyPenaltyLogitsProcessor,
        lambda row: (float(row.params.presence_penalty), float(row.params.frequency_penalty), row.prompt_length),
        lambda row: s.AddCounted(row.prompt_length, float(row.params.frequency_penalty), float(row.params.presence_penalty)),
        lambda row: bool(row.params.presence_penalty or row.params.frequency_penalty),
    ),
    ParamStep(
        ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_sequence_breakers", "dry_range"),
        p.DRYLogitsProcessor,
        lambda row: _dry(row.params),
        lambda row: parts.dry(*_dry(row.params)),
        lambda row: bool(row.params.dry_multiplier),
    ),
    ParamStep(
        ("no_repeat_ngram_size",),
        p.NoRepeatNGramLogitsProcessor,
        lambda row: (int(row.params.no_repeat_ngram_size),),
        lambda row: s.BanFollowers(int(row.params.no_repeat_ngram_size)),
        lambda row: bool(row.params.no_repeat_ngram_size),
    ),
    ParamStep(
        ("bad_words_ids",),
        p.NoBadWordsLogitsProcessor,
        lambda row: ([list(word) for word in row.params.bad_words_ids], row.ends or None),
        lambda row: parts.ban_sequences(_without_ends(row.params.bad_words_ids, row.ends), row.vocab_size),
        lambda row: bool(row.params.bad_words_ids),
    ),
    ParamStep(
        ("min_length",),
        p.MinLengthLogitsProcessor,
        lambda row: (int(row.params.min_length), row.ends),
        lambda row: parts.ban_while(0, row.params.min_length, row.ends, row.vocab_size),
        lambda row: bool(row.params.min_length and row.ends),
    ),
    ParamStep(
        ("min_new_tokens",),
        p.MinNewTokensLengthLogitsProcessor,
        lambda row: (row.prompt_length, int(row.params.min_new_tokens), row.ends),
        lambda row: parts.ban_while(0, row.prompt_length + row.params.min_new_tokens, row.ends, row.vocab_size),
        lambda row: bool(row.params.min_new_tokens and row.ends),
    ),
    ParamStep(
        ("min_tokens", "stop_token_ids"),
        p.MinNewTokensLengthLogitsProcessor,
        lambda row: (row.prompt_length, int(row.params.min_tokens), row.ends_and_stops),
        lambda row: parts.ban_while(0, row.prompt_length + row.params.min_tokens, row.ends_and_stops, row.vocab_size),
        lambda row: bool(row.params.min_tokens and row.ends_and_stops),
    ),
    ParamStep(
        ("forced_bos_token_id",),
        p.ForcedBOSTokenLogitsProcessor,
        lambda row: (row.params.forced_bos_token_id,),
        lambda row: parts.force_at(1, as_several(row.params.forced_bos_token_id)),
        lambda row: row.params.forced_bos_token_id is not None,
    ),
    ParamStep(
        ("forced_eos_token_id", "max_new_tokens"),
        p.ForcedEOSTokenLogitsProcessor,
        lambda row: (row.prompt_length + (row.params.max_new_tokens or 0), row.params.forced_eos_token_id),
        lambda row: parts.force_at(
            row.prompt_length + (row.params.max_new_tokens or 0) - 1, as_several(row.params.forced_eos_token_id)
        ),
        lambda row: row.params.forced_eos_token_id is not None and bool(row.params.max_new_tokens),
    ),
    ParamStep(
        ("remove_invalid_values",),
        p.InfNanRemoveLogitsProcessor,
        lambda row: (),
        applies=lambda row: bool(row.params.remove_invalid_values),
    ),
    ParamStep(
        ("exponential_decay_length_penalty",),
        p.ExponentialDecayLengthPenalty,
        lambda row: (row.params.exponential_decay_length_penalty, row.ends, row.prompt_length),
        _decay,
        lambda row: bool(row.params.exponential_decay_length_penalty and row.ends),
    ),
    ParamStep(
        ("suppress_tokens",),
        p.SuppressTokensLogitsProcessor,
        lambda row: (row.params.suppress_tokens,),
        lambda row: parts.ban(row.params.suppress_tokens, row.vocab_size),
        lambda row: bool(row.params.suppress_tokens),
    ),
    ParamStep(
        ("begin_suppress_tokens", "forced_bos_token_id"),
        p.SuppressTokensAtBeginLogitsProcessor,
        lambda row: (row.params.begin_suppress_tokens, row.first),
        lambda row: parts.ban_while(row.first, row.first + 1, row.params.begin_suppress_tokens, row.vocab_size),
        lambda row: bool(row.params.begin_suppress_tokens),
    ),
    ParamStep(
        ("allowed_token_ids",),
        p.AllowedTokenIdsLogitsProcessor,
        lambda row: (row.params.allowed_token_ids,),
        lambda row: parts.allow("AllowedTokenIdsLogitsProcessor", row.params.allowed_token_ids or (), row.vocab_size),
        lambda row: row.params.allowed_token_ids is not None,
    ),
)


def _scaled(field: str, processor: type, step: Callable[[float], Step]) -> ParamStep:
    """A step of one number."""

    def value(row: Setting) -> float:
        return float(getattr(row.params, field))

    return ParamStep((field,), processor, lambda row: (value(row),), lambda row: (step(value(row)),))


def _cut(field: str, processor: type, step: Callable[[Any, int], Step], whole: bool = False) -> ParamStep:
    """A filter of one number that leaves at least so many tokens."""

    def value(row: Setting) -> float:
        number = getattr(row.params, field)
        return int(number) if whole else float(number)

    return ParamStep(
        (field,), processor, lambda row: (value(row), -math.inf, row.keep), lambda row: (step(value(row), row.keep),)
    )


# The temperature and the filters, by the names in `params.SAMPLERS`; `SamplingParams.active_samplers` has their order.
SAMPLER_STEPS = {
    step.fields[0]: step
    for step in (
        _scaled("temperature", p.TemperatureLogitsWarper, s.Temperature),
        _scaled("top_n_sigma", p.TopNSigmaLogitsWarper, s.TopNSigma),
        _scaled("top_h", p.TopHLogitsWarper, s.TopH),
        _cut("top_k", p.TopKLogitsWarper, lambda k, keep: s.TopK(max(k, keep)), whole=True),
        _cut("top_p", p.TopPLogitsWarper, s.TopP),
        _cut("min_p", p.MinPLogitsWarper, s.MinP),
        _cut("typical_p", p.TypicalLogitsWarper, s.Typical),
        _cut("epsilon_cutoff", p.EpsilonLogitsWarper, s.Epsilon),
        _cut("eta_cutoff", p.EtaLogitsWarper, s.Eta),
        ParamStep(
            ("xtc_probability", "xtc_threshold", "xtc_special_tokens", "seed"),
            p.XTCLogitsWarper,
            lambda row: (*reversed(_xtc(row)[:2]), row.seed, 0, -math.inf, row.params.xtc_special_tokens),
            lambda row: (_xtc(row),),
        ),
    )
}

# What comes after them.
LAST = (
    ParamStep(
        ("watermarking_config",),
        _watermark,
        lambda row: (row.params.watermarking_config, row.vocab_size),
        applies=lambda row: row.params.watermarking_config is not None,
    ),
    ParamStep(
        ("renormalize_logits",),
        p.LogitNormalization,
        lambda row: (),
        lambda row: (s.Normalise(),),
        lambda row: bool(row.params.renormalize_logits),
    ),
)


def build_stages(
    params: SamplingParams,
    *,
    prompt_length: int,
    vocab_size: int,
    eos_token_ids: Collection[int] = (),
    own: Sequence[Any] = (),
    num_beams: int = 1,
) -> list[Stage]:
    """The stages of a row, in transformers 5.23's order; additional ones are next to the one that they resemble.

    Those of `BEFORE_OWN`; the processors in `own`, which are not built from params; then, if the row samples, temperature and
    filters in the order of `params.samplers`; the watermark; normalisation. What would change nothing is left out.

    num_beams: of the search that they serve. With several, filters keep one token more than there are end tokens, at least two,
        so that a beam can go on; all but top_h, top_n_sigma and XTC.
    """
    ends = sorted(eos_token_ids)
    row = Setting(params, prompt_length, vocab_size, ends, 1 if num_beams == 1 else max(2, 1 + len(ends)))
    return [
        *(step.stage(row) for step in BEFORE_OWN if step.applies(row)),
        *(build_stage(processor, vocab_size) for processor in own),
        *(SAMPLER_STEPS[name].stage(row) for name in params.active_samplers),
        *(step.stage(row) for step in LAST if step.applies(row)),
    ]


def build_processors(params: SamplingParams, **where: Any) -> list[Any]:
    """The processors that define the stages of a row, by the arguments of `build_stages`."""
    return [stage.processor for stage in build_stages(params, **where)]
