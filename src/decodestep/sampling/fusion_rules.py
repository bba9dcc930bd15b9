"""The fusion rules: which processors become typed steps of `decode_step`, and how.

A rule is a function (processor, vocab_size) -> part. It reads the processor's attributes once, when a plan is built. A part is
one of three things (`decodestep.ops.decode_step.rows.Part`):

- a tuple of steps, if nothing depends on the history;
- a `HistoryPart` such as `PenaliseSeen`, which the core looks up in its own indexes of the history;
- a function TokenHistory -> steps, called once per token. It returns a few values, never an array of the vocabulary's size.

The rules are tested against the processor classes. A class without a rule, such as a user's own, runs unfused, as a plain
callable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from decodestep import processors as p
from decodestep._base.checks import require
from decodestep.constraints.processor import ConstraintLogitsProcessor
from decodestep.ops.decode_step import steps as s
from decodestep.ops.decode_step.rows import Part
from decodestep.ops.decode_step.steps import Step
from decodestep.processors.extra import DRY_LONGEST
from decodestep.sampling.token_history import SequenceEndings, TokenHistory, as_ids

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
_NO_RULE = Rule("own")


def rule(processor_class: type, kind: str) -> Callable[[MakePartT], MakePartT]:
    """Registers the decorated function as the rule of a class."""

    def register(make_part: MakePartT) -> MakePartT:
        RULES[processor_class] = Rule(kind, make_part)
        return make_part

    return register


def rule_of(processor: Any) -> Rule:
    """The rule of a processor; without `make_part` for an object that the rule of its class does not cover.

    Not covered: subclasses (the table is by exact type), a `filter_value` other than -inf, leading padding, and arguments that
    hold one value for each row of a batch.
    """
    found = RULES.get(type(processor), _NO_RULE)
    fills_otherwise = getattr(processor, "filter_value", -np.inf) != -np.inf
    per_row = any(
        not isinstance(getattr(processor, name, 0), int | None) for name in ("prompt_ignore_length", "seed", "padding")
    )
    return Rule(found.kind) if fills_otherwise or per_row or getattr(processor, "padding", 0) else found


def steps_of(part: Part, history: TokenHistory, vocab: int) -> tuple[Step, ...]:
    """The steps of a part for this history; the oracle for the core, which does the same for the parts that it keeps."""
    if isinstance(part, s.While):
        return part.steps if part.first <= len(history) < part.last else ()
    if isinstance(part, s.PenaliseSeen):
        ids = history.tally(part.skipped).ids
        return (s.Penalise(ids[ids < vocab], part.factor),)
    if isinstance(part, s.AddCounted):
        ids, counts = history.tally(part.skipped)
        return (s.Add(ids[ids < vocab], -(part.frequency * counts[ids < vocab] + part.presence)),)
    if isinstance(part, s.BanFollowers):
        return _ban(history.followers(part.n), vocab)
    if isinstance(part, s.AddEndings):
        ids, values = history.endings(part.sequences)
        return (s.Add(ids, values),) if ids.size else ()
    if isinstance(part, s.BanEndings):
        return _ban(history.endings(part.sequences)[0], vocab)
    if isinstance(part, s.AddContinuations):
        longest = part.shortest + len(part.amounts) - 1
        ids, lengths = history.continuations(part.shortest, longest, part.breakers, part.range)
        inside = ids < vocab
        return (s.Add(ids[inside], part.amounts[lengths[inside] - part.shortest]),)
    return part(history) if callable(part) else part


# Penalties and biases: the scores of some tokens change.


@rule(p.SequenceBiasLogitsProcessor, "patch")
def sequence_bias(processor: p.SequenceBiasLogitsProcessor, vocab: int) -> Part:
    return _where_sequences_end(s.AddEndings(SequenceEndings(processor.sequence_bias)), processor.sequence_bias, vocab)


@rule(p.LogitBiasLogitsProcessor, "patch")
def logit_bias(processor: p.LogitBiasLogitsProcessor, vocab: int) -> Part:
    biases = processor.logit_bias
    return (s.Add(as_ids(biases), np.fromiter(biases.values(), np.float64)),)


@rule(p.RepetitionPenaltyLogitsProcessor, "patch")
def repetition_penalty(processor: p.RepetitionPenaltyLogitsProcessor, vocab: int) -> Part:
    return s.PenaliseSeen(int(processor.prompt_ignore_length or 0), float(processor.penalty))


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
    ends, start = _distinct(processor.eos_token_id), processor.regulation_start
    return lambda history: (s.Lift(ends, processor.growth(len(history) - start) - 1),) if len(history) > start else ()


@rule(p.DRYLogitsProcessor, "patch")
def dry(processor: p.DRYLogitsProcessor, vocab: int) -> Part:
    lengths = range(processor.allowed_length, DRY_LONGEST + 1)
    if not processor.multiplier or not lengths:  # 0 times an infinite power is NaN
        return ()
    amounts = -np.array([processor.penalty(length) for length in lengths])
    return s.AddContinuations(amounts, lengths[0], as_ids(processor.breakers), int(processor.range))


# Masks: some tokens are forbidden.


@rule(p.NoRepeatNGramLogitsProcessor, "mask")
def no_repeat_ngram(processor: p.NoRepeatNGramLogitsProcessor, vocab: int) -> Part:
    return s.BanFollowers(int(processor.ngram_size))


@rule(p.NoBadWordsLogitsProcessor, "mask")
def bad_words(processor: p.NoBadWordsLogitsProcessor, vocab: int) -> Part:
    inside = {ids: bias for ids, bias in processor.sequence_bias.items() if ids and ids[-1] < vocab}
    return _where_sequences_end(s.BanEndings(SequenceEndings(inside)), inside, vocab)


@rule(p.MinLengthLogitsProcessor, "mask")
def min_length(processor: p.MinLengthLogitsProcessor, vocab: int) -> Part:
    return _while(0, processor.min_length, _ban(processor.eos_token_id, vocab))


@rule(p.MinNewTokensLengthLogitsProcessor, "mask")
def min_new_tokens(processor: p.MinNewTokensLengthLogitsProcessor, vocab: int) -> Part:
    length = processor.prompt_length_to_skip + processor.min_new_tokens
    return _while(0, length, _ban(processor.eos_token_id, vocab))


@rule(p.SuppressTokensLogitsProcessor, "mask")
def suppress_tokens(processor: p.SuppressTokensLogitsProcessor, vocab: int) -> Part:
    return _ban(processor.suppress_tokens, vocab)


@rule(p.SuppressTokensAtBeginLogitsProcessor, "mask")
def suppress_tokens_at_begin(processor: p.SuppressTokensAtBeginLogitsProcessor, vocab: int) -> Part:
    begin = processor.begin_index
    return _while(begin, begin + 1, _ban(processor.begin_suppress_tokens, vocab))


@rule(p.AllowedTokenIdsLogitsProcessor, "mask")
def allowed_token_ids(processor: p.AllowedTokenIdsLogitsProcessor, vocab: int) -> Part:
    ids = _distinct(processor.allowed_token_ids)
    require(int(ids.max()) < vocab, type(processor).__name__, "allowed_token_ids", f"below {vocab}", int(ids.max()))
    allowed = np.zeros(vocab, np.bool_)
    allowed[ids] = True
    return s.restriction(allowed)


@rule(ConstraintLogitsProcessor, "mask")
def constraint(processor: ConstraintLogitsProcessor, vocab: int) -> Part:
    def steps(history: TokenHistory) -> tuple[Step, ...]:
        return processor.steps(history.tokens)

    return steps


# Forced tokens.


@rule(p.ForcedBOSTokenLogitsProcessor, "force")
def forced_bos(processor: p.ForcedBOSTokenLogitsProcessor, vocab: int) -> Part:
    return _while(1, 2, (s.Force(as_ids([processor.bos_token_id])),))


@rule(p.ForcedEOSTokenLogitsProcessor, "force")
def forced_eos(processor: p.ForcedEOSTokenLogitsProcessor, vocab: int) -> Part:
    ends = _distinct(processor.eos_token_id)
    return _while(processor.max_length - 1, processor.max_length, (s.Force(ends),))


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
    return (s.Xtc(float(processor.threshold), float(processor.probability), processor.seed),)


@rule(p.LogitNormalization, "normalise")
def normalisation(processor: p.LogitNormalization, vocab: int) -> Part:
    return (s.Normalise(),)


# What several rules share.


def _distinct(ids: Iterable[int]) -> np.ndarray:
    """Each id once, in their order: a step has at most one of each."""
    return as_ids(dict.fromkeys(ids))


def _ban(ids: Iterable[int], vocab: int) -> tuple[Step, ...]:
    """A ban of those ids that are in the vocabulary; no step if there are none."""
    inside = _distinct(ids)
    inside = inside[(inside >= 0) & (inside < vocab)]
    if 2 * inside.size < vocab:
        return (s.Ban(inside),) if inside.size else ()
    allowed = np.ones(vocab, np.bool_)
    allowed[inside] = False
    return s.restriction(allowed)


def _while(first: int, last: int, steps: tuple[Step, ...]) -> Part:
    """The steps while first <= length of the history < last; no history is shorter than 0."""
    return s.While(max(int(first), 0), max(int(last), 0), steps)


def _where_sequences_end(part: s.AddEndings | s.BanEndings, sequences: Iterable[tuple[int, ...]], vocab: int) -> Part:
    """The part, or its steps if they do not depend on the history."""
    return part if any(len(ids) > 1 for ids in sequences) else steps_of(part, TokenHistory(), vocab)
