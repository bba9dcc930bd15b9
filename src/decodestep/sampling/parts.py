"""The parts of a row, from plain values: what params and the fusion rules make, each in one place.

A part is one of three things (`decodestep.ops.decode_step.rows.Part`):

- a tuple of steps, if nothing depends on the history;
- a `HistoryPart` such as `PenaliseSeen`, which the core looks up in its own indexes of the history;
- a function TokenHistory -> steps, called once per token. It returns a few values, never an array of the vocabulary's size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from decodestep._base.checks import require
from decodestep.ops.decode_step import steps as s
from decodestep.ops.decode_step.rows import Part
from decodestep.ops.decode_step.steps import Step
from decodestep.processors.extra import DRY_LONGEST, dry_penalty
from decodestep.sampling.token_history import SequenceEndings, TokenHistory, as_ids

Ids = Iterable[int]


def build_steps(part: Part, history: TokenHistory, vocab: int) -> tuple[Step, ...]:
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
        return ban(history.followers(part.n), vocab)
    if isinstance(part, s.AddEndings):
        ids, values = history.endings(part.sequences)
        return (s.Add(ids, values),) if ids.size else ()
    if isinstance(part, s.BanEndings):
        return ban(history.endings(part.sequences)[0], vocab)
    if isinstance(part, s.AddContinuations):
        longest = part.shortest + len(part.amounts) - 1
        ids, lengths = history.continuations(part.shortest, longest, part.breakers, part.range)
        inside = ids < vocab
        return (s.Add(ids[inside], part.amounts[lengths[inside] - part.shortest]),)
    return part(history) if callable(part) else part


def add_biases(biases: Mapping[int, float]) -> tuple[Step, ...]:
    return (s.Add(as_ids(biases), np.fromiter(biases.values(), np.float64)),)


def add_sequences(values: Mapping[tuple[int, ...], float], vocab: int) -> Part:
    """Each sequence's value, added to the score of its last token where the history ends with those before."""
    return _where_sequences_end(s.AddEndings(SequenceEndings(values)), values, vocab)


def ban_sequences(sequences: Iterable[tuple[int, ...]], vocab: int) -> Part:
    """No sequence's last token where the history ends with those before."""
    inside = dict.fromkeys((ids for ids in sequences if ids and ids[-1] < vocab), -np.inf)
    return _where_sequences_end(s.BanEndings(SequenceEndings(inside)), inside, vocab)


def _where_sequences_end(part: s.AddEndings | s.BanEndings, sequences: Iterable[tuple[int, ...]], vocab: int) -> Part:
    """The part, or its steps if they do not depend on the history."""
    return part if any(len(ids) > 1 for ids in sequences) else build_steps(part, TokenHistory(), vocab)


def penalise_recent(penalty: float, reach: int, vocab: int) -> Part:
    """The distinct ones of the last `reach` tokens become less likely; 0 for all."""
    if reach == 0:
        return s.PenaliseSeen(0, penalty)
    return lambda history: (s.Penalise(distinct(each for each in history.tokens[-reach:] if each < vocab), penalty),)


def dry(multiplier: float, base: float, allowed_length: int, breakers: Collection[int], reach: int) -> Part:
    if not multiplier or allowed_length > DRY_LONGEST:  # 0 times an infinite power is NaN
        return ()
    amounts = [-dry_penalty(multiplier, base, beyond) for beyond in range(DRY_LONGEST + 1 - allowed_length)]
    return s.AddContinuations(np.array(amounts), allowed_length, as_ids(breakers), reach)


def lift_ends(ends: Ids, start: int, growth: Callable[[int], float]) -> Part:
    """The end tokens rise once the history is longer than `start`. growth: of the number of tokens beyond it."""
    ids = distinct(ends)
    return lambda history: (s.Lift(ids, growth(len(history) - start) - 1),) if len(history) > start else ()


def ban(ids: Ids, vocab: int) -> tuple[Step, ...]:
    """A ban of those ids that are in the vocabulary; no step if there are none."""
    inside = distinct(ids)
    inside = inside[(inside >= 0) & (inside < vocab)]
    if 2 * inside.size < vocab:
        return (s.Ban(inside),) if inside.size else ()
    allowed = np.ones(vocab, np.bool_)
    allowed[inside] = False
    return s.restriction(allowed)


def ban_while(first: int, last: int, ids: Ids, vocab: int) -> Part:
    """A ban while first <= length of the history < last."""
    return during(first, last, ban(ids, vocab))


def allow(op: str, ids: Ids, vocab: int) -> Part:
    inside = distinct(ids)
    require(int(inside.max()) < vocab, op, "allowed_token_ids", f"below {vocab}", int(inside.max()))
    allowed = np.zeros(vocab, np.bool_)
    allowed[inside] = True
    return s.restriction(allowed)


def force_at(length: int, ids: Ids) -> Part:
    """These tokens alone where the history has this length."""
    return during(length, length + 1, (s.Force(distinct(ids)),))


def during(first: int, last: int, steps: tuple[Step, ...]) -> Part:
    """The steps while first <= length of the history < last; no history is shorter than 0."""
    return s.While(max(int(first), 0), max(int(last), 0), steps)


def distinct(ids: Ids) -> np.ndarray:
    """Each id once, in their order: a step has at most one of each."""
    return as_ids(dict.fromkeys(ids))
