"""The fusion rules: which processors become typed steps of `decode_step`, and how.

A rule reads a processor's attributes once, where a plan is made. Steps that no history changes are made there too; of the
others there remains what the core looks up in the history, or a function of the history, which costs a few values: no array
of the vocabulary's size. The processors themselves stay the oracle of their rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from decodestep import processors as p
from decodestep.ops.decode_step import steps as s
from decodestep.ops.decode_step.rows import Part
from decodestep.ops.decode_step.steps import Step
from decodestep.sampling.token_history import History, as_ids

Fixed = tuple[Step, ...]
Maker = Callable[[History], Fixed]
# What a processor becomes in a vocabulary of that size.
Bind = Callable[[Any, int], Part]


class Rule(NamedTuple):
    """What a class does ("mask", "filter" ...), and how one of its objects becomes steps; `bind` None: step by step."""

    kind: str
    bind: Bind | None = None


def _always(make: Callable[[Any], Step]) -> Bind:
    return lambda o, vocab: (make(o),)


def _while(first: Callable[[Any], int], last: Callable[[Any], int], bind: Callable[[Any, int], Fixed]) -> Bind:
    """The steps while first <= length of the history < last."""
    return lambda o, vocab: s.While(max(int(first(o)), 0), max(int(last(o)), 0), bind(o, vocab))


def _ban(choose: Callable[[Any], Collection[int]]) -> Callable[[Any, int], Fixed]:
    return lambda o, vocab: _banned(as_ids(choose(o)), vocab)


def _force(choose: Callable[[Any], Collection[int]]) -> Callable[[Any, int], Fixed]:
    return lambda o, vocab: (s.Force(as_ids(choose(o))),)


def _banned(ids: np.ndarray, vocab: int) -> Fixed:
    ids = ids[(ids >= 0) & (ids < vocab)]
    return (s.Ban(ids),) if ids.size else ()


def _repetition(o: Any, vocab: int) -> Part:
    return s.PenaliseSeen(int(o.prompt_ignore_length or 0), float(o.penalty))


def _encoder_repetition(o: Any, vocab: int) -> Fixed:
    return (s.Penalise(np.unique(np.asarray(o.encoder_input_ids)).astype(np.int64), o.penalty),)


def _counted(o: Any, vocab: int) -> Part:
    return s.AddCounted(int(o.prompt_length), float(o.frequency_penalty), float(o.presence_penalty))


def steps_of(part: Part, h: History, vocab: int) -> Fixed:
    """What a part is on this history: the truth of what the core looks up by itself."""
    if isinstance(part, s.While):
        return part.steps if part.first <= len(h) < part.last else ()
    if isinstance(part, s.PenaliseSeen):
        ids = h.tally(part.skipped).ids
        return (s.Penalise(ids[ids < vocab], part.factor),)
    if isinstance(part, s.AddCounted):
        ids, counts = h.tally(part.skipped)
        return (s.Add(ids[ids < vocab], -(part.frequency * counts[ids < vocab] + part.presence)),)
    if isinstance(part, s.BanFollowers):
        return _banned(h.followers(part.n), vocab)
    return part(h) if callable(part) else part


class _Endings:
    """The biases of sequences, found by the tokens that must come before their last: one look-up for each length."""

    def __init__(self, biases: Mapping[tuple[int, ...], float]) -> None:
        self._by_length: dict[int, dict[tuple[int, ...], list[tuple[int, int, float]]]] = {}
        for order, (ids, bias) in enumerate(biases.items()):
            same_length = self._by_length.setdefault(len(ids) - 1, {})
            same_length.setdefault(tuple(ids[:-1]), []).append((order, ids[-1], bias))
        self.longest = max(self._by_length, default=0)

    def totals(self, h: History) -> dict[int, float]:
        """What to add to each token that some sequence ends with here, added up in the order of the sequences."""
        found: list[tuple[int, int, float]] = []
        for length, same_length in self._by_length.items():
            found += same_length.get(tuple(h.tokens[-length:]) if length else (), ())
        totals: dict[int, float] = {}
        for _, token, bias in sorted(found):
            totals[token] = totals.get(token, 0.0) + bias
        return totals


def _sequences(finish: Callable[[dict[int, float], int], Fixed]) -> Bind:
    def bind(o: Any, vocab: int) -> Part:
        endings = _Endings(o.sequence_bias)

        def make(h: History) -> Fixed:
            totals = endings.totals(h)
            return finish(totals, vocab) if totals else ()

        return make if endings.longest else make(History())

    return bind


def _decay(o: Any, vocab: int) -> Maker:
    ends, start, factor = as_ids(dict.fromkeys(o.eos_token_id)), o.regulation_start, o.regulation_factor
    return lambda h: (s.Lift(ends, factor ** (len(h) - start) - 1),) if len(h) > start else ()


def _logit_bias(o: Any, vocab: int) -> Fixed:
    return (s.Add(as_ids(o.logit_bias), np.fromiter(o.logit_bias.values(), np.float64)),)


def _dry(o: Any, vocab: int) -> Maker:
    def make(h: History) -> Fixed:
        amounts = o.penalties(h.tokens[-o.range :], vocab)
        return (s.Add(as_ids(amounts), -np.fromiter(amounts.values(), np.float64)),) if amounts else ()

    return make


# The fusion rules. A class that is not named here, a user's own among them, runs step by step.
RULES: dict[type, Rule] = {
    p.ClassifierFreeGuidanceLogitsProcessor: Rule("guidance"),
    p.UnbatchedClassifierFreeGuidanceLogitsProcessor: Rule("guidance"),
    p.SequenceBiasLogitsProcessor: Rule(
        "patch", _sequences(lambda totals, vocab: (s.Add(as_ids(totals), np.fromiter(totals.values(), np.float32)),))
    ),
    p.RepetitionPenaltyLogitsProcessor: Rule("patch", _repetition),
    p.EncoderRepetitionPenaltyLogitsProcessor: Rule("patch", _encoder_repetition),
    p.ExponentialDecayLengthPenalty: Rule("patch", _decay),
    p.NoRepeatNGramLogitsProcessor: Rule("mask", lambda o, vocab: s.BanFollowers(int(o.ngram_size))),
    p.NoBadWordsLogitsProcessor: Rule("mask", _sequences(lambda totals, vocab: _banned(as_ids(totals), vocab))),
    p.MinLengthLogitsProcessor: Rule("mask", _while(lambda o: 0, lambda o: o.min_length, _ban(lambda o: o.eos_token_id))),
    p.MinNewTokensLengthLogitsProcessor: Rule(
        "mask",
        _while(lambda o: 0, lambda o: o.prompt_length_to_skip + o.min_new_tokens, _ban(lambda o: o.eos_token_id)),
    ),
    p.SuppressTokensLogitsProcessor: Rule("mask", _ban(lambda o: o.suppress_tokens)),
    p.SuppressTokensAtBeginLogitsProcessor: Rule(
        "mask", _while(lambda o: o.begin_index, lambda o: o.begin_index + 1, _ban(lambda o: o.begin_suppress_tokens))
    ),
    p.PrefixConstrainedLogitsProcessor: Rule("force"),
    p.ForcedBOSTokenLogitsProcessor: Rule("force", _while(lambda o: 1, lambda o: 2, _force(lambda o: (o.bos_token_id,)))),
    p.ForcedEOSTokenLogitsProcessor: Rule(
        "force", _while(lambda o: o.max_length - 1, lambda o: o.max_length, _force(lambda o: o.eos_token_id))
    ),
    p.PresenceFrequencyPenaltyLogitsProcessor: Rule("patch", _counted),
    p.LogitBiasLogitsProcessor: Rule("patch", _logit_bias),
    p.DRYLogitsProcessor: Rule("patch", _dry),
    p.AllowedTokenIdsLogitsProcessor: Rule("mask", _always(lambda o: s.Allow(as_ids(o.allowed_token_ids)))),
    p.InfNanRemoveLogitsProcessor: Rule("repair"),
    p.TemperatureLogitsWarper: Rule("scale", _always(lambda o: s.Temperature(o.temperature))),
    p.TopKLogitsWarper: Rule("filter", _always(lambda o: s.TopK(o.top_k))),
    p.TopPLogitsWarper: Rule("filter", _always(lambda o: s.TopP(o.top_p, o.min_tokens_to_keep))),
    p.MinPLogitsWarper: Rule("filter", _always(lambda o: s.MinP(float(o.min_p), o.min_tokens_to_keep))),
    p.TypicalLogitsWarper: Rule("filter", _always(lambda o: s.Typical(o.mass, o.min_tokens_to_keep))),
    p.EpsilonLogitsWarper: Rule("filter", _always(lambda o: s.Epsilon(o.epsilon, o.min_tokens_to_keep))),
    p.EtaLogitsWarper: Rule("filter", _always(lambda o: s.Eta(o.epsilon, o.min_tokens_to_keep))),
    p.TopHLogitsWarper: Rule("filter", _always(lambda o: s.TopH(float(o.top_h), o.top_n))),
    p.TopNSigmaLogitsWarper: Rule("filter", _always(lambda o: s.TopNSigma(float(o.n)))),
    p.XTCLogitsWarper: Rule("filter", _always(lambda o: s.Xtc(float(o.threshold), float(o.probability), o.seed))),
    p.LogitNormalization: Rule("normalise", _always(lambda o: s.Normalise())),
}
_OWN = Rule("own")


def rule_of(processor: Any) -> Rule:
    """The rule of a processor; one with a filter value of its own, or a subclass, is not fused."""
    rule = RULES.get(type(processor), _OWN)
    odd_fill = getattr(processor, "filter_value", -np.inf) != -np.inf
    batched = any(
        not isinstance(getattr(processor, name, 0), int | None) for name in ("prompt_ignore_length", "seed", "padding")
    )
    return Rule(rule.kind) if odd_fill or batched or getattr(processor, "padding", 0) else rule
