"""Beam search: the likeliest continuations of a prompt, several at a time; diverse groups of beams; sampled beams."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decodestep._base.checks import is_finite, is_int, refuse, require, require_dtype, require_shape
from decodestep.ops.decode_step import TokenLogprobs
from decodestep.processors import HammingDiversityLogitsProcessor, LogitsProcessorList
from decodestep.processors.base import quiet
from decodestep.random import gumbel

_OP = "beam_search"


class NoBeamError(ValueError):
    """Every token of every beam was at -inf before one beam was collected."""


NextLogits = Callable[[list[list[int]], list[int]], np.ndarray]


@dataclass(frozen=True)
class Beam:
    """One continuation.

    token_ids: what follows the prompt, an end token included. score: the sum of its processed log-probabilities over
    len(token_ids) ** length_penalty. finished: whether it ends itself, by an end token or by `stop`; False where
    max_new_tokens cut it. logprobs: a `TokenLogprobs` for each of token_ids, or None where they were not asked for.
    """

    token_ids: list[int]
    score: float
    finished: bool
    logprobs: list[TokenLogprobs] | None = None


def beam_search(
    next_logits: NextLogits,
    prompt: Sequence[int],
    *,
    vocab_size: int,
    max_new_tokens: int,
    num_beams: int,
    eos_token_ids: Collection[int] = (),
    num_beam_groups: int = 1,
    diversity_penalty: float = 0.0,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    num_return_sequences: int = 1,
    processors: Sequence[Any] | None = None,
    do_sample: bool = False,
    seed: int = 0,
    stop: Callable[[list[int]], bool] | None = None,
    top_logprobs: int | None = None,
) -> list[Beam]:
    """Searches for the continuations of a prompt with the highest scores, keeping `num_beams` of them alive.

        a group of n = num_beams / num_beam_groups beams starts from the prompt alone, with sum 0; at each step, for each group:
            p = processors(ids, log_softmax(logits) - diversity_penalty * #{beams of earlier groups that took t at this step})
            candidates = the n * max(2, 1 + end tokens) highest sum[beam] + p[beam, t]
            collect those of the first n candidates that end; of all that it has collected a group keeps the n best by
                sum / length ** length_penalty, length being the number of generated tokens, the end token included
            the n best candidates that do not end live on; at step max_new_tokens the first n candidates all end

    next_logits: next_logits(sequences, parents) gives logits (len(sequences), V), float32 or float64. `sequences` are the token
        ids of the live beams, prompt included; parents[i] is the index, among the sequences of the call before, of the one
        that sequences[i] continues by a token. The first call is ([prompt], [0]).
    prompt: integers in [0, V). vocab_size: V >= 1. max_new_tokens: >= 1. num_beams: >= 1.
    eos_token_ids: integers in [0, V), none or several: the tokens that end a beam.
    num_beam_groups: >= 1, a divisor of num_beams. diversity_penalty: finite, >= 0; 0 with one group.
    length_penalty: finite. Above 0 it favours long beams, below 0 short ones, for sums are negative.
    early_stopping: when a group that has collected n beams ends. True: at once. False: when its best live beam, at its present
        length, scores no more than the worst collected. "never": likewise, but at the length max_new_tokens where
        length_penalty > 0.
    num_return_sequences: in [1, num_beams].
    processors: called in order, as by `LogitsProcessorList`, with the ids (beams, length) and log-probabilities (beams, V) of a
        group, both NumPy; temperature and the filters of a sampler count among them.
    do_sample: draws the candidates without replacement, in the order drawn, from the softmax of the sums: they are the
        highest sum + gumbel(seed, length of the sequence, beam * V + t). With one group only.
    seed: in [0, 2^64).
    stop: stop(generated token ids) says whether a candidate ends for another reason; None for never.
    top_logprobs: how many of the most likely tokens to report for each token of a beam, >= 0; None for no log-probabilities.
        `raw` is log_softmax(logits)[t], in the precision of the logits; `processed` is p[beam, t], what the sum took on, so
        that the `processed` of a beam add up to its sum. The lists hold the highest of both, in the beam's row.

    Returns the best collected beams of all groups, best first: num_return_sequences of them, fewer where there are no more.
    Raises ValueError, before any work, for an argument out of its range; for logits of another shape or dtype; and, as a
    NoBeamError, where no beam was collected because every token of every live beam is at -inf.

    Ties: the lowest beam first, then the lowest token; of equal scores the one collected first, the earlier group first.
    NaN counts as -inf; what is at -inf is no candidate, so that fewer beams may live. Equal +inf logits share.

    Source: transformers 5.23's beam search; with groups, Vijayakumar et al., "Diverse beam search", 2016, as in transformers
    4.41, where it is the best candidate, ended or not, whose score is held against the worst collected, and where a group that
    ends at step max_new_tokens collects no unfinished beam. Deviations: beams that do not exist yet are not stood in for by
    copies at -1e9; a group that has ended adds no padding tokens to the penalty; noise is a function of the seed.
    """
    _check_sizes(num_beams, num_beam_groups, num_return_sequences, vocab_size, max_new_tokens)
    for name, ids in (("prompt", prompt), ("eos_token_ids", eos_token_ids)):
        ok = all(is_int(i) and 0 <= i < vocab_size for i in ids)
        require(ok, _OP, name, f"integers in [0, {vocab_size})", str(ids) if len(ids) < 9 else f"{len(ids)} ids")
    _check_scoring(num_beam_groups, diversity_penalty, length_penalty, early_stopping)
    require(isinstance(do_sample, bool), _OP, "do_sample", "a bool", repr(do_sample))
    require(not do_sample or num_beam_groups == 1, _OP, "do_sample", "False with several groups", do_sample)
    require(is_int(seed) and 0 <= seed < 2**64, _OP, "seed", "an integer in [0, 2^64)", repr(seed))
    ok = top_logprobs is None or (is_int(top_logprobs) and top_logprobs >= 0)
    require(ok, _OP, "top_logprobs", "None or an integer >= 0", repr(top_logprobs))
    size, chain = num_beams // num_beam_groups, LogitsProcessorList(processors or ())
    ends, start = frozenset(int(i) for i in eos_token_ids), [int(i) for i in prompt]
    rules = _Rules(
        size,
        size * max(2, 1 + len(ends)),
        ends,
        stop,
        max_new_tokens,
        float(length_penalty),
        early_stopping,
        num_beam_groups > 1,
        int(seed) if do_sample else None,
    )
    groups = [_Group(rules) for _ in range(num_beam_groups)]
    sequences, parents = [start], [0]
    for length in range(1, max_new_tokens + 1):
        log_probs = _log_softmax(next_logits(sequences, parents), len(sequences), vocab_size)
        taken: list[int] = []
        for group in (group for group in groups if group.live):
            scores = log_probs[group.rows]
            ids = np.array([sequences[row] for row in group.rows], np.int64)
            if taken and diversity_penalty:
                scores = _diversified(ids, scores, taken, float(diversity_penalty))
            processed = np.asarray(chain(ids, scores))
            require_shape(_OP, "the processors' result", processed, scores.shape)
            report = None if top_logprobs is None else _reporter(log_probs[group.rows], processed, int(top_logprobs))
            taken += group.advance(processed, length, len(start) + length - 1, report)
        parents = [path.parent for group in groups for path in group.live]
        sequences = [start + path.tokens for group in groups for path in group.live]
        if not sequences:
            break
        first = 0
        for group in groups:
            group.rows = list(range(first, first + len(group.live)))
            first += len(group.live)
    collected = [beam for group in groups for beam in group.collected]
    if not collected:
        rule = "next_logits must be such that some beam can go on"
        raise NoBeamError(f"{_OP}: {rule}; got no token above -inf at step {length}")
    return sorted(collected, key=lambda beam: -beam.score)[:num_return_sequences]


@dataclass(frozen=True)
class _Rules:
    size: int  # beams of a group
    candidates: int
    ends: frozenset[int]
    stop: Callable[[list[int]], bool] | None
    max_new_tokens: int
    length_penalty: float
    early_stopping: bool | str
    grouped: bool
    seed: int | None  # of the draws; None for the highest

    def score(self, total: float, length: int) -> float:
        with quiet():  # an enormous penalty: the limit, where it has one
            return float(np.float64(total) / np.float64(length) ** self.length_penalty) if total else 0.0


@dataclass(frozen=True)
class _Path:
    tokens: list[int]
    total: float  # the sum of its log-probabilities
    parent: int  # the row of the logits that its last token came from
    ended: bool = False
    logprobs: tuple[TokenLogprobs, ...] = ()


# What is reported of a token taken by a beam.
_Report = Callable[[int, int], TokenLogprobs]


def _root() -> list[_Path]:
    return [_Path([], 0.0, 0)]


@dataclass
class _Group:
    """The beams of a group: those alive, the rows of the next logits that are theirs, and those collected, best first."""

    rules: _Rules
    live: list[_Path] = field(default_factory=_root)
    rows: list[int] = field(default_factory=lambda: [0])
    collected: list[Beam] = field(default_factory=list)

    def advance(self, log_probs: np.ndarray, length: int, position: int, report: _Report | None) -> list[int]:
        """One step; returns the tokens that the beams which do not end have taken."""
        rules = self.rules
        candidates = self._candidates(log_probs, position, report)
        going = sorted((path for path in candidates if not path.ended), key=lambda path: -path.total)[: rules.size]
        last = length == rules.max_new_tokens
        self._collect([path for path in candidates[: rules.size] if path.ended or (last and not rules.grouped)], length)
        if last and rules.grouped and not self._done(candidates, length):
            self._collect(going, length)
        best = candidates if rules.grouped else going
        self.live = [] if last or self._done(best, length) else going
        return [path.tokens[-1] for path in going]

    def _candidates(self, log_probs: np.ndarray, position: int, report: _Report | None) -> list[_Path]:
        """What may follow, best first; the order drawn where it is drawn."""
        rules, vocab = self.rules, log_probs.shape[-1]
        totals = (np.array([path.total for path in self.live])[:, None] + log_probs).ravel()
        totals[np.isnan(totals)] = -np.inf
        keys = totals if rules.seed is None else totals + gumbel(rules.seed, position, np.arange(totals.size))
        found = []
        for index in _highest(keys, rules.candidates):
            beam, token = divmod(int(index), vocab)
            parent = self.live[beam]
            tokens = [*parent.tokens, token]
            ended = token in rules.ends or (rules.stop is not None and rules.stop(tokens))
            logprobs = (*parent.logprobs, report(beam, token)) if report else ()
            found.append(_Path(tokens, float(totals[index]), self.rows[beam], ended, logprobs))
        return found

    def _collect(self, paths: list[_Path], length: int) -> None:
        new = [
            Beam(path.tokens, self.rules.score(path.total, length), path.ended, list(path.logprobs) or None) for path in paths
        ]
        self.collected = sorted(self.collected + new, key=lambda beam: -beam.score)[: self.rules.size]

    def _done(self, paths: list[_Path], length: int) -> bool:
        """Whether the collected beams are enough, `paths`, best first, being what could still do better."""
        rules = self.rules
        if not paths:
            return True
        if len(self.collected) < rules.size or rules.early_stopping is True:
            return len(self.collected) == rules.size
        hoped = rules.max_new_tokens if rules.early_stopping == "never" and rules.length_penalty > 0 else length
        return rules.score(paths[0].total, hoped) <= self.collected[-1].score


def _highest(keys: np.ndarray, count: int) -> np.ndarray:
    """Indices of the highest keys above -inf, highest first, the lowest index first among equals."""
    least = np.partition(keys, keys.size - count)[keys.size - count] if 0 < count < keys.size else -np.inf
    inside = np.flatnonzero((keys >= least) & (keys > -np.inf))
    return inside[np.argsort(-keys[inside], kind="stable")][:count]


def _reporter(raw: np.ndarray, processed: np.ndarray, count: int) -> _Report:
    def top(rows: np.ndarray) -> list[tuple[tuple[int, float], ...]]:
        return [tuple((int(i), float(row[i])) for i in _highest(row, count)) for row in rows]

    processed = np.where(np.isnan(processed), -np.inf, processed)
    top_raw, top_processed = top(raw), top(processed)
    return lambda beam, token: TokenLogprobs(
        float(raw[beam, token]), float(processed[beam, token]), top_raw[beam], top_processed[beam]
    )


def _log_softmax(logits: Any, beams: int, vocab: int) -> np.ndarray:
    x = np.asarray(logits)
    require_dtype(_OP, "next_logits' result", x, (np.float32, np.float64))
    require_shape(_OP, "next_logits' result", x, (beams, vocab))
    x = np.where(np.isnan(x), x.dtype.type(-np.inf), x)
    top = x.max(axis=1, keepdims=True)
    with quiet():
        shifted = np.where((x == top) & (top > -np.inf), x.dtype.type(0), x - top)
        result = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    result[np.isnan(result)] = -np.inf  # a row without a token
    return result


def _diversified(ids: np.ndarray, scores: np.ndarray, taken: list[int], penalty: float) -> Any:
    """The Hamming penalty of the tokens taken; to the class, each beam is a prompt of which they are the earlier groups."""
    count = len(taken)
    processor = HammingDiversityLogitsProcessor(penalty, count + 1, count + 1)
    return processor(ids, scores, np.tile([*taken, 0], len(scores)), count)


def _check_sizes(beams: Any, groups: Any, returned: Any, vocab: Any, length: Any) -> None:
    for name, value in (("num_beams", beams), ("vocab_size", vocab), ("max_new_tokens", length)):
        require(is_int(value) and value >= 1, _OP, name, "an integer >= 1", repr(value))
    require(beams * vocab < 2**32, _OP, "num_beams", f"such that num_beams * {vocab} < 2^32", beams)
    ok = is_int(groups) and groups >= 1 and beams % groups == 0
    require(ok, _OP, "num_beam_groups", f"a divisor of num_beams = {beams}", repr(groups))
    ok = is_int(returned) and 1 <= returned <= beams
    require(ok, _OP, "num_return_sequences", f"an integer in [1, num_beams = {beams}]", repr(returned))


def _check_scoring(groups: int, diversity_penalty: Any, length_penalty: Any, early_stopping: Any) -> None:
    ok = is_finite(diversity_penalty) and diversity_penalty >= 0
    require(ok, _OP, "diversity_penalty", "a finite number >= 0", repr(diversity_penalty))
    require(groups > 1 or diversity_penalty == 0, _OP, "diversity_penalty", "0 with one group", repr(diversity_penalty))
    ok = is_finite(length_penalty)
    require(ok, _OP, "length_penalty", "a finite number", repr(length_penalty))
    if not (isinstance(early_stopping, bool) or (isinstance(early_stopping, str) and early_stopping == "never")):
        refuse(_OP, "early_stopping", "True, False or 'never'", repr(early_stopping))
