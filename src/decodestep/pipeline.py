"""A list of processors as a plan: what runs fused, what runs step by step, and which orders make no sense.

A processor that a rule of `RULES` knows becomes typed steps of `decode_step`, made from its attributes and the row's history:
a few values, no array of the vocabulary's size. Any other callable (input_ids, scores) -> scores runs as it is, on one row,
between two fused runs. The processors themselves stay the oracle of their rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from decodestep import processors as p
from decodestep.checks import refuse, require
from decodestep.history import History, as_ids
from decodestep.ops.decode_step import reference
from decodestep.ops.decode_step import steps as s
from decodestep.ops.decode_step.steps import Step

_OP = "pipeline"

Make = Callable[[Any, History, int], Iterable[Step]]


class Rule(NamedTuple):
    """What a class does ("mask", "filter" ...), and how one of its objects becomes steps; `make` None: step by step."""

    kind: str
    make: Make | None = None


def _inside(ids: Iterable[Any], vocab: int) -> np.ndarray:
    return as_ids(int(i) for i in ids if 0 <= i < vocab)


def _repetition(o: Any, h: History, vocab: int) -> Iterator[Step]:
    seen = h.distinct(o.prompt_ignore_length or 0)
    yield s.Penalise(seen[seen < vocab], o.penalty)


def _encoder_repetition(o: Any, h: History, vocab: int) -> Iterator[Step]:
    yield s.Penalise(np.unique(np.asarray(o.encoder_input_ids)).astype(np.int64), o.penalty)


def _sequence_bias(o: Any, h: History, vocab: int) -> Iterator[Step]:
    totals: dict[int, float] = {}
    for ids, bias in o.sequence_bias.items():
        if h.ends_with(ids[:-1]):
            totals[ids[-1]] = totals.get(ids[-1], 0.0) + bias
    yield s.Add(as_ids(totals), np.fromiter(totals.values(), np.float32))


def _bans(make: Callable[[Any, History], Iterable[Any]]) -> Make:
    def steps(o: Any, h: History, vocab: int) -> Iterator[Step]:
        ids = _inside(make(o, h), vocab)
        if ids.size:
            yield s.Ban(ids)

    return steps


def _bad_words(o: Any, h: History) -> Iterator[int]:
    return (ids[-1] for ids in o.sequence_bias if h.ends_with(ids[:-1]))


def _forces(make: Callable[[Any, History], Iterable[int] | None]) -> Make:
    def steps(o: Any, h: History, vocab: int) -> Iterator[Step]:
        ids = make(o, h)
        if ids is not None:
            yield s.Force(as_ids(ids))

    return steps


def _decay(o: Any, h: History, vocab: int) -> Iterator[Step]:
    past = len(h) - o.regulation_start
    if past > 0:
        yield s.Lift(as_ids(dict.fromkeys(o.eos_token_id)), o.regulation_factor**past - 1)


def _counted(o: Any, h: History, vocab: int) -> Iterator[Step]:
    counts = {token: count for token, count in h.counts_behind(o.prompt_length).items() if token < vocab}
    amounts = [o.frequency_penalty * count + o.presence_penalty for count in counts.values()]
    yield s.Add(as_ids(counts), -np.array(amounts, np.float64))


def _logit_bias(o: Any, h: History, vocab: int) -> Iterator[Step]:
    yield s.Add(as_ids(o.logit_bias), np.fromiter(o.logit_bias.values(), np.float64))


def _dry(o: Any, h: History, vocab: int) -> Iterator[Step]:
    amounts = o.penalties(h.tokens[-o.range :], vocab)
    yield s.Add(as_ids(amounts), -np.fromiter(amounts.values(), np.float64))


def _always(make: Callable[[Any], Step]) -> Make:
    return lambda o, h, vocab: (make(o),)


# The fusion rules. A class that is not named here, a user's own among them, runs step by step.
RULES: dict[type, Rule] = {
    p.ClassifierFreeGuidanceLogitsProcessor: Rule("guidance"),
    p.UnbatchedClassifierFreeGuidanceLogitsProcessor: Rule("guidance"),
    p.SequenceBiasLogitsProcessor: Rule("patch", _sequence_bias),
    p.RepetitionPenaltyLogitsProcessor: Rule("patch", _repetition),
    p.EncoderRepetitionPenaltyLogitsProcessor: Rule("patch", _encoder_repetition),
    p.ExponentialDecayLengthPenalty: Rule("patch", _decay),
    p.NoRepeatNGramLogitsProcessor: Rule("mask", _bans(lambda o, h: h.followers(o.ngram_size))),
    p.NoBadWordsLogitsProcessor: Rule("mask", _bans(_bad_words)),
    p.MinLengthLogitsProcessor: Rule("mask", _bans(lambda o, h: o.eos_token_id if len(h) < o.min_length else ())),
    p.MinNewTokensLengthLogitsProcessor: Rule(
        "mask", _bans(lambda o, h: o.eos_token_id if len(h) - o.prompt_length_to_skip < o.min_new_tokens else ())
    ),
    p.SuppressTokensLogitsProcessor: Rule("mask", _bans(lambda o, h: o.suppress_tokens)),
    p.SuppressTokensAtBeginLogitsProcessor: Rule(
        "mask", _bans(lambda o, h: o.begin_suppress_tokens if len(h) == o.begin_index else ())
    ),
    p.PrefixConstrainedLogitsProcessor: Rule("force"),
    p.ForcedBOSTokenLogitsProcessor: Rule("force", _forces(lambda o, h: (o.bos_token_id,) if len(h) == 1 else None)),
    p.ForcedEOSTokenLogitsProcessor: Rule(
        "force", _forces(lambda o, h: o.eos_token_id if len(h) == o.max_length - 1 else None)
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

# Pairs of kinds that must not stand in this order, and why.
_ILLEGAL: tuple[tuple[frozenset[str], frozenset[str], str], ...] = (
    (
        frozenset({"patch", "mask", "force", "repair", "scale", "filter", "normalise"}),
        frozenset({"guidance"}),
        "guidance compares the model's own scores and comes first",
    ),
    # transformers' own order has repair behind the masks: what they forbid becomes the lowest finite score.
    (frozenset({"filter"}), frozenset({"repair", "force"}), "it would bring back what was filtered"),
    (
        frozenset({"normalise"}),
        frozenset({"patch", "mask", "force", "repair", "scale", "filter", "normalise"}),
        "log-probabilities are final",
    ),
)


def rule_of(processor: Any) -> Rule:
    """The rule of a processor; one with a filter value of its own, or a subclass, is not fused."""
    rule = RULES.get(type(processor), _OWN)
    odd_fill = getattr(processor, "filter_value", -np.inf) != -np.inf
    batched = any(
        not isinstance(getattr(processor, name, 0), int | None) for name in ("prompt_ignore_length", "seed", "padding")
    )
    return Rule(rule.kind) if odd_fill or batched or getattr(processor, "padding", 0) else rule


@dataclass(frozen=True)
class Plan:
    """The processors of one row, in order: `runs` are fused runs (lists of processors) and single callables."""

    processors: tuple[Any, ...]
    vocab_size: int
    runs: tuple[tuple[Any, ...] | Callable[..., Any], ...] = field(repr=False)

    def steps(self, row: np.ndarray, history: History) -> tuple[np.ndarray, list[Step]]:
        """A row's logits as far as they must be worked out, and the steps that are left to `decode_step`."""
        steps: list[Step] = []
        for run in self.runs:
            if isinstance(run, tuple):
                for processor in run:
                    steps += _made(processor, history, self.vocab_size)
            else:
                row, steps = self._own(run, row, steps, history), []
        return row, steps

    def _own(self, processor: Callable[..., Any], row: np.ndarray, steps: list[Step], history: History) -> np.ndarray:
        scores = reference.processed(reference.candidates(row, steps, len(history)), len(row)) if steps else row
        ids = np.array([history.tokens], np.int64).reshape(1, -1)
        real = np.float64 if scores.dtype == np.float64 else np.float32
        result = np.asarray(processor(ids, scores[None].astype(real)))
        require(
            result.shape == (1, len(row)), _OP, type(processor).__name__, f"a function to scores of shape 1x{len(row)}", result
        )
        return result[0]

    def explain(self) -> str:
        """One line for each processor: whether it runs fused, and what it is."""
        lines = []
        for number, processor in enumerate(self.processors, 1):
            rule = rule_of(processor)
            how = f"fused, {rule.kind}" if rule.make else "step by step"
            lines.append(f"{number:>3}. {how:<18} {_described(processor)}")
        return "\n".join(lines)


def plan(processors: Sequence[Any], vocab_size: int) -> Plan:
    """Builds the plan of a list of processors; ValueError, naming both neighbours, for an order that makes no sense."""
    kinds = [rule_of(processor).kind for processor in processors]
    for j, later in enumerate(kinds):
        for i in range(j):
            for before, after, reason in _ILLEGAL:
                if kinds[i] in before and later in after:
                    refuse(
                        _OP,
                        "processors",
                        f"in an order that makes sense: {reason}",
                        f"{type(processors[i]).__name__} before {type(processors[j]).__name__}",
                    )
    runs: list[Any] = []
    for processor in processors:
        require(callable(processor), _OP, "processors", "callables (input_ids, scores) -> scores", processor)
        if rule_of(processor).make is None:
            runs.append(processor)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(processor)
        else:
            runs.append([processor])
    return Plan(tuple(processors), vocab_size, tuple(tuple(run) if isinstance(run, list) else run for run in runs))


def _made(processor: Any, history: History, vocab: int) -> list[Step]:
    make = RULES[type(processor)].make
    return list(make(processor, history, vocab)) if make else []


def _described(processor: Any) -> str:
    named = getattr(processor, "__dict__", {}).items()
    shown = [f"{name}={value}" for name, value in named if not name.startswith("_") and name not in _USUAL and _is_plain(value)]
    return f"{getattr(processor, '__name__', type(processor).__name__)}({', '.join(shown)})"


# What every filter has, and what says nothing about the numbers.
_USUAL = ("filter_value", "min_tokens_to_keep", "padding")


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, (list, tuple, dict)) and len(value) <= 4)
