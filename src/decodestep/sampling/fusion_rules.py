"""The fusion rules: which processors of a caller's list become typed steps of `decode_step`, and how.

A rule is a function (processor, vocab_size) -> part (see `parts`). It reads the processor's attributes once, when a plan is
built.

The rules are tested against the processor classes. A class without a rule, such as a user's own, runs unfused, as a plain
callable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from decodestep import processors as p
from decodestep._base.checks import require
from decodestep.constraints.processor import ConstraintLogitsProcessor
from decodestep.ops.decode_step import steps as s
from decodestep.ops.decode_step.rows import Part
from decodestep.sampling import parts
from decodestep.sampling.thinking_budget import ThinkingBudget
from decodestep.sampling.token_history import TokenHistory

MakePart = Callable[[Any, int], Part]
MakePartT = TypeVar("MakePartT", bound=MakePart)


class Rule(NamedTuple):
    """What a processor class does to scores, and how one of its objects becomes a part; `make_part` None: it runs unfused.

    kind: "guidance", "patch" (changes the scores of some tokens), "mask" (forbids tokens), "force" (allows only some, whatever
        came before), "repair", "scale", "filter", "normalise", or "own" for a class without a rule. `plan` refuses some orders
        of kinds.
    """

    kind: str
    make_part: MakePart | None = None


RULES: dict[type, Rule] = {
    # Of these only the kind is known: they run unfused.
    p.ClassifierFreeGuidanceLogitsProcessor: Rule("guidance"),
    p.UnbatchedClassifierFreeGuidanceLogitsProcessor: Rule("guidance"),
    p.PrefixConstrainedLogitsProcessor: Rule("force"),
    p.InfNanRemoveLogitsProcessor: Rule("repair"),
}
NO_RULE = Rule("own")


def rule(processor_class: type, kind: str) -> Callable[[MakePartT], MakePartT]:
    """Registers the decorated function as the rule of a class."""

    def register(make_part: MakePartT) -> MakePartT:
        RULES[processor_class] = Rule(kind, make_part)
        return make_part

    return register


def find_rule(processor: object) -> Rule:
    """The rule of a processor; without `make_part` for an object that the rule of its class does not cover.

    Not covered: subclasses (the table is by exact type), a `filter_value` other than -inf, leading padding, and arguments that
    hold one value for each row of a batch.
    """
    found = RULES.get(type(processor), NO_RULE)
    fills_otherwise = getattr(processor, "filter_value", -np.inf) != -np.inf
    per_row = any(
        not isinstance(getattr(processor, name, 0), int | None) for name in ("prompt_ignore_length", "seed", "padding")
    )
    return Rule(found.kind) if fills_otherwise or per_row or getattr(processor, "padding", 0) else found


# Penalties and biases: the scores of some tokens change.


@rule(p.SequenceBiasLogitsProcessor, "patch")
def sequence_bias(processor: p.SequenceBiasLogitsProcessor, vocab: int) -> Part:
    return parts.add_sequences(processor.sequence_bias, vocab)


@rule(p.LogitBiasLogitsProcessor, "patch")
def logit_bias(processor: p.LogitBiasLogitsProcessor, vocab: int) -> Part:
    return parts.add_biases(processor.logit_bias)


@rule(p.RepetitionPenaltyLogitsProcessor, "patch")
def repetition_penalty(processor: p.RepetitionPenaltyLogitsProcessor, vocab: int) -> Part:
    return s.PenaliseSeen(int(processor.prompt_ignore_length or 0), float(processor.penalty))


@rule(p.RecentRepetitionPenaltyLogitsProcessor, "patch")
def recent_repetition_penalty(processor: p.RecentRepetitionPenaltyLogitsProcessor, vocab: int) -> Part:
    return parts.penalise_recent(float(processor.penalty), processor.range, vocab)


@rule(p.EncoderRepetitionPenaltyLogitsProcessor, "patch")
def encoder_repetition_penalty(processor: p.EncoderRepetitionPenaltyLogitsProcessor, vocab: int) -> Part:
    ids = np.asarray(processor.encoder_input_ids)
    ok = ids.ndim == 2 and len(ids) == 1
    require(ok, "plan", "encoder_input_ids", "one row: those of the row that the processor serves", ids)
    return (s.Penalise(np.unique(ids).astype(np.int64), processor.penalty),)


@rule(p.PresenceFrequencyPenaltyLogitsProcessor, "patch")
def presence_frequency_penalty(processor: p.PresenceFrequencyPenaltyLogitsProcessor, vocab: int) -> Part:
    return s.AddCounted(int(processor.prompt_length), float(processor.frequency_penalty), float(processor.presence_penalty))


@rule(p.ExponentialDecayLengthPenalty, "patch")
def exponential_decay(processor: p.ExponentialDecayLengthPenalty, vocab: int) -> Part:
    return parts.lift_ends(processor.eos_token_id, processor.regulation_start, lambda past: processor.growth(past))


@rule(p.DRYLogitsProcessor, "patch")
def dry(processor: p.DRYLogitsProcessor, vocab: int) -> Part:
    length, reach = int(processor.allowed_length), int(processor.range)
    return parts.dry(processor.multiplier, processor.base, length, processor.breakers, reach)


# Masks: some tokens are forbidden.


@rule(p.NoRepeatNGramLogitsProcessor, "mask")
def no_repeat_ngram(processor: p.NoRepeatNGramLogitsProcessor, vocab: int) -> Part:
    return s.BanFollowers(int(processor.ngram_size))


@rule(p.NoBadWordsLogitsProcessor, "mask")
def bad_words(processor: p.NoBadWordsLogitsProcessor, vocab: int) -> Part:
    return parts.ban_sequences(processor.sequence_bias, vocab)


@rule(p.MinLengthLogitsProcessor, "mask")
def min_length(processor: p.MinLengthLogitsProcessor, vocab: int) -> Part:
    return parts.ban_while(0, processor.min_length, processor.eos_token_id, vocab)


@rule(p.MinNewTokensLengthLogitsProcessor, "mask")
def min_new_tokens(processor: p.MinNewTokensLengthLogitsProcessor, vocab: int) -> Part:
    length = processor.prompt_length_to_skip + processor.min_new_tokens
    return parts.ban_while(0, length, processor.eos_token_id, vocab)


@rule(p.SuppressTokensLogitsProcessor, "mask")
def suppress_tokens(processor: p.SuppressTokensLogitsProcessor, vocab: int) -> Part:
    return parts.ban(processor.suppress_tokens, vocab)


@rule(p.SuppressTokensAtBeginLogitsProcessor, "mask")
def suppress_tokens_at_begin(processor: p.SuppressTokensAtBeginLogitsProcessor, vocab: int) -> Part:
    begin = processor.begin_index
    return parts.ban_while(begin, begin + 1, processor.begin_suppress_tokens, vocab)


@rule(p.AllowedTokenIdsLogitsProcessor, "mask")
def allowed_token_ids(processor: p.AllowedTokenIdsLogitsProcessor, vocab: int) -> Part:
    return parts.allow(type(processor).__name__, processor.allowed_token_ids, vocab)


@rule(p.AllowedBitsLogitsProcessor, "mask")
def allowed_bits(processor: p.AllowedBitsLogitsProcessor, vocab: int) -> Part:
    def steps(history: TokenHistory) -> tuple[s.Step, ...]:
        bits = processor.next_bits(history.tokens)
        return () if bits is None else (s.AllowBits(bits),)

    return steps


@rule(ConstraintLogitsProcessor, "mask")
def constraint(processor: ConstraintLogitsProcessor, vocab: int) -> Part:
    return lambda history: processor.steps(history.tokens)


# Forced tokens.


@rule(p.ForcedBOSTokenLogitsProcessor, "force")
def forced_bos(processor: p.ForcedBOSTokenLogitsProcessor, vocab: int) -> Part:
    return parts.force_at(1, [processor.bos_token_id])


@rule(p.ForcedEOSTokenLogitsProcessor, "force")
def forced_eos(processor: p.ForcedEOSTokenLogitsProcessor, vocab: int) -> Part:
    return parts.force_at(processor.max_length - 1, processor.eos_token_id)


@rule(ThinkingBudget, "force")
def thinking_budget(processor: ThinkingBudget, vocab: int) -> Part:
    return lambda history: processor.steps(history.tokens)


# Temperature, filters, normalisation: they depend on the scores alone.


@rule(p.TemperatureLogitsWarper, "scale")
def temperature(processor: p.TemperatureLogitsWarper, vocab: int) -> Part:
    return (s.Temperature(processor.temperature),)


@rule(p.TopKLogitsWarper, "filter")
def top_k(processor: p.TopKLogitsWarper, vocab: int) -> Part:
    return (s.TopK(processor.top_k),)


@rule(p.TopPLogitsWarper, "filter")
def top_p(processor: p.TopPLogitsWarper, vocab: int) -> Part:
    return (s.TopP(processor.top_p, processor.min_tokens_to_keep),)


@rule(p.MinPLogitsWarper, "filter")
def min_p(processor: p.MinPLogitsWarper, vocab: int) -> Part:
    return (s.MinP(float(processor.min_p), processor.min_tokens_to_keep),)


@rule(p.TypicalLogitsWarper, "filter")
def typical(processor: p.TypicalLogitsWarper, vocab: int) -> Part:
    return (s.Typical(processor.mass, processor.min_tokens_to_keep),)


@rule(p.EpsilonLogitsWarper, "filter")
def epsilon(processor: p.EpsilonLogitsWarper, vocab: int) -> Part:
    return (s.Epsilon(processor.epsilon, processor.min_tokens_to_keep),)


@rule(p.EtaLogitsWarper, "filter")
def eta(processor: p.EtaLogitsWarper, vocab: int) -> Part:
    return (s.Eta(processor.epsilon, processor.min_tokens_to_keep),)


@rule(p.TopHLogitsWarper, "filter")
def top_h(processor: p.TopHLogitsWarper, vocab: int) -> Part:
    return (s.TopH(float(processor.top_h), processor.top_n),)


@rule(p.TopNSigmaLogitsWarper, "filter")
def top_n_sigma(processor: p.TopNSigmaLogitsWarper, vocab: int) -> Part:
    return (s.TopNSigma(float(processor.n)),)


@rule(p.XTCLogitsWarper, "filter")
def xtc(processor: p.XTCLogitsWarper, vocab: int) -> Part:
    return (s.Xtc(float(processor.threshold), float(processor.probability), processor.seed, processor.special_tokens),)


@rule(p.LogitNormalization, "normalise")
def normalisation(processor: p.LogitNormalization, vocab: int) -> Part:
    return (s.Normalise(),)
