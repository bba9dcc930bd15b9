"""decode_step, row by row: each step shrinks or changes the list of candidates.

The candidates are the tokens with a score above -inf. A token that is not among them stays at -inf, so each step sees only what
the steps before it left. Noise comes from the reference of `decodestep.random`: nothing here calls a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from decodestep._base import exact_math
from decodestep.ops.decode_step.steps import (
    Add,
    Allow,
    AllowBits,
    Ban,
    Epsilon,
    Eta,
    Force,
    Lift,
    MinP,
    Normalise,
    Penalise,
    Step,
    Steps,
    Temperature,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Xtc,
)
from decodestep.random import reference as random
from decodestep.random.reference import XTC_COIN

Pairs: TypeAlias = tuple[tuple[int, float], ...]  # (token id, log-probability)
_PARTS = 16  # partial sums of a row


class Candidates(NamedTuple):
    """The candidates of a row, and the position of the token that is being drawn."""

    ids: np.ndarray  # int64, ascending
    scores: np.ndarray  # float32 or float64
    position: int

    def keep(self, kept: np.ndarray) -> Candidates:
        """The candidates in a mask or at these places."""
        return self._replace(ids=self.ids[kept], scores=self.scores[kept])


def decode_step(
    rows: np.ndarray,
    steps: Sequence[Steps],
    greedy: Sequence[bool],
    seeds: Sequence[int],
    positions: Sequence[int],
    top_logprobs: Sequence[int | None],
    need_processed: bool,
) -> tuple[np.ndarray, np.ndarray | None, list[Any]]:
    """(tokens, processed scores or None, log-probabilities per row), of arguments in the form of `normalise_arguments`."""
    batch, vocab = rows.shape
    tokens = np.empty(batch, np.int64)
    scores = np.empty(rows.shape, np.float64 if rows.dtype == np.float64 else np.float32) if need_processed else None
    logprobs: list[Any] = []
    for b in range(batch):
        row = candidates(rows[b], steps[b], positions[b])
        tokens[b] = first_maximum(row) if greedy[b] else draw(row, seeds[b])
        if scores is not None:
            scores[b] = processed(row, vocab)
        count = top_logprobs[b]
        logprobs.append(None if count is None or tokens[b] < 0 else _report(rows[b], row, int(tokens[b]), count))
    return tokens, scores, logprobs


def _report(logits: np.ndarray, row: Candidates, token: int, count: int) -> tuple[float, float, Pairs, Pairs]:
    """The fields of a `TokenLogprobs` for the drawn token; `row` is what the steps left of the logits."""
    raw, top_raw = logprobs_of(candidates(logits, (), 0), token, count)
    processed, top_processed = logprobs_of(row, token, count)
    return raw, processed, top_raw, top_processed


def logprobs_of(row: Candidates, token: int, count: int) -> tuple[float, Pairs]:
    """The log-probability of a token, and the `count` highest with their tokens, lowest id first among equals."""
    values = log_probabilities(row)
    best = np.argsort(-values, kind="stable")[:count]
    at = np.flatnonzero(row.ids == token)
    drawn = float(values[at[0]]) if len(at) else -math.inf  # a forced token may have been at -inf
    return drawn, tuple((int(row.ids[i]), float(values[i])) for i in best)


def candidates(logits: np.ndarray, steps: Sequence[Step], position: int) -> Candidates:
    """The candidates that the steps leave of a row of logits (V,); NaN counts as -inf."""
    scores = logits.astype(np.float64 if logits.dtype == np.float64 else np.float32)
    row = _drop_forbidden(Candidates(np.arange(len(scores)), scores, position))
    for step in steps:
        row = _RULES[type(step)](row, step)
    return row


def first_maximum(row: Candidates) -> int:
    """The token with the highest score, the lowest id among equals; -1 where there is no candidate."""
    return int(row.ids[np.argmax(row.scores)]) if len(row.ids) else -1


def draw(row: Candidates, seed: int) -> int:
    """The first maximum of score + noise; +inf scores share the draw equally. -1 where there is no candidate."""
    if not len(row.ids):
        return -1
    top = row.scores.max()
    if top == np.inf:
        row = row.keep(row.scores == top)._replace(scores=np.zeros(int((row.scores == top).sum())))
    noise = _noise("gumbel", seed, row.position, row.ids)
    return int(row.ids[np.argmax(row.scores.astype(np.float64) + noise)])


def _noise(kind: str, seed: int, position: int, token: int | np.ndarray) -> np.ndarray:
    tokens = np.asarray(token).astype(np.uint32)
    return random.noise(kind, np.array(seed, np.uint64), np.array(position, np.uint32), tokens, tokens.shape)


def processed(row: Candidates, vocab: int) -> np.ndarray:
    """The row's scores over the whole vocabulary, -inf for all but the candidates."""
    scores = np.full(vocab, -np.inf, row.scores.dtype)
    scores[row.ids] = row.scores
    return scores


def total(ids: np.ndarray, values: np.ndarray) -> float:
    """The sum of the tokens' values: token i goes to partial sum i mod 16, in vocabulary order; these are folded in halves.

    A token that is not a candidate would add 0, so this is the sum over the whole vocabulary.
    """
    rows = np.zeros((ids[-1] // _PARTS + 1, _PARTS))
    rows.reshape(-1)[ids] = values
    parts = np.add.accumulate(rows)[-1]
    while len(parts) > 1:
        parts = parts[: len(parts) // 2] + parts[len(parts) // 2 :]
    return float(parts[0])


def weights(scores: np.ndarray) -> np.ndarray:
    """exp(score - largest) in float64; where some scores are +inf, 1 for these and 0 for the others."""
    top = scores.max()
    return (scores == top).astype(np.float64) if np.isinf(top) else exact_math.exp(_below(scores, float(top)))


def probabilities(row: Candidates) -> np.ndarray:
    """softmax in float64; +inf scores share the mass."""
    weight = weights(row.scores)
    return weight / total(row.ids, weight)


def _below(scores: np.ndarray, top: float) -> np.ndarray:
    """scores - top in float64; -inf where the difference overflows."""
    with np.errstate(over="ignore"):
        return scores.astype(np.float64) - top


def log_probabilities(row: Candidates) -> np.ndarray:
    """log softmax in float64."""
    if not len(row.ids):
        return np.zeros(0)
    top = float(row.scores.max())
    mass = exact_math.log(np.float64(total(row.ids, weights(row.scores))))
    return np.where(row.scores == top, -mass, -np.inf) if np.isinf(top) else _below(row.scores, top) - mass


def _drop_forbidden(row: Candidates) -> Candidates:
    return row.keep(row.scores > -np.inf)


def _places(row: Candidates, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For those of `ids` that are candidates: their places in the row, and their places in `ids`."""
    if not len(row.ids):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    at = np.minimum(np.searchsorted(row.ids, ids), len(row.ids) - 1)
    found = np.flatnonzero(row.ids[at] == ids)
    return at[found], found


def _change(row: Candidates, ids: np.ndarray, change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Candidates:
    """The row with the scores of `ids` replaced by change(scores, places in ids), id by id; a score of -inf is dropped.

    An id that occurs n times in `ids` is changed n times, so occurrence 0 of every id goes first, then occurrence 1, and so on.
    """
    at, which = _places(row, ids)
    occurrence = _occurrences(at)
    scores = row.scores.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for n in range(occurrence.max(initial=-1) + 1):
            these = at[occurrence == n]
            scores[these] = change(scores[these], which[occurrence == n])
    return _drop_forbidden(row._replace(scores=scores))


def _occurrences(places: np.ndarray) -> np.ndarray:
    """For each item, how many equal items come before it."""
    order = np.argsort(places, kind="stable")
    earlier = np.empty(len(places), np.int64)
    earlier[order] = np.arange(len(places)) - np.searchsorted(places[order], places[order])
    return earlier


def _penalise(row: Candidates, step: Penalise) -> Candidates:
    factor = row.scores.dtype.type(step.factor)
    return _change(row, step.ids, lambda s, _: np.where(s < 0, s * factor, s / factor))


def _add(row: Candidates, step: Add) -> Candidates:
    return _change(row, step.ids, lambda s, which: s + step.values[which].astype(s.dtype))


def _lift(row: Candidates, step: Lift) -> Candidates:
    factor = row.scores.dtype.type(step.factor)
    return _change(row, step.ids, lambda s, _: np.where(np.isfinite(s), s + np.abs(s) * factor, s))


def _ban(row: Candidates, step: Ban) -> Candidates:
    return row.keep(~np.isin(row.ids, step.ids))


def _allow_bits(row: Candidates, step: AllowBits) -> Candidates:
    return row.keep((step.bits[row.ids // 32] >> (row.ids % 32).astype(np.int32) & 1).astype(bool))


def _allow(row: Candidates, step: Allow) -> Candidates:
    return row.keep(np.isin(row.ids, step.ids))


def _force(row: Candidates, step: Force) -> Candidates:
    ids = np.unique(step.ids)
    return row._replace(ids=ids, scores=np.zeros(len(ids), row.scores.dtype))


def _temperature(row: Candidates, step: Temperature) -> Candidates:
    if not len(row.ids):
        return row
    top = row.scores.max()
    if top == np.inf:  # a quotient of +inf is +inf, and every other score is negligible beside it
        return row.keep(row.scores == top)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scores = row.scores / row.scores.dtype.type(step.temperature)
        if not np.isfinite(scores.max()):
            scores = ((row.scores.astype(np.float64) - float(top)) / step.temperature).astype(scores.dtype)
    return _drop_forbidden(row._replace(scores=scores))


def kth_largest(scores: np.ndarray, k: int) -> np.floating[Any]:
    return np.partition(scores, len(scores) - k)[len(scores) - k]


def _top_k(row: Candidates, step: TopK) -> Candidates:
    k = max(step.k, step.keep)
    return row if k >= len(row.ids) else row.keep(row.scores >= kth_largest(row.scores, k))


def _top_p(row: Candidates, step: TopP) -> Candidates:
    if not len(row.ids) or step.p == 1:
        return row
    order = np.argsort(-row.scores, kind="stable")
    weight = weights(row.scores)
    before = np.concatenate(([0.0], np.add.accumulate(weight[order])[:-1]))
    count = max(step.keep, int(np.searchsorted(before, step.p * total(row.ids, weight), side="left")))
    return row.keep(np.sort(order[:count]))


def _highest(row: Candidates, count: int) -> np.ndarray:
    """The `count` highest scores, lowest ids first among equals."""
    mask = np.zeros(len(row.ids), bool)
    mask[np.argsort(-row.scores, kind="stable")[:count]] = True
    return mask


def _min_p(row: Candidates, step: MinP) -> Candidates:
    if not len(row.ids):
        return row
    return row.keep((weights(row.scores) >= step.p) | _highest(row, step.keep))


def _typical(row: Candidates, step: Typical) -> Candidates:
    if not len(row.ids):
        return row
    log_p = log_probabilities(row)
    share = exact_math.exp(log_p)
    distance = np.abs(-log_p - _entropy(row.ids, share, log_p))
    order = np.argsort(distance, kind="stable")
    last = min(int(np.searchsorted(np.add.accumulate(share[order]), step.mass, side="left")), len(order) - 1)
    kept = distance <= distance[order[last]]
    kept[order[: step.keep]] = True
    return row.keep(kept)


def _entropy(ids: np.ndarray, share: np.ndarray, log_p: np.ndarray) -> float:
    return -total(ids, share * np.where(share > 0, log_p, 0.0))


def _floor(row: Candidates, least: float, keep: int) -> Candidates:
    """Keep probabilities >= least, and scores >= the keep-th largest."""
    kept = probabilities(row) >= least
    return row.keep(kept | (row.scores >= kth_largest(row.scores, min(keep, len(row.ids)))))


def _epsilon(row: Candidates, step: Epsilon) -> Candidates:
    return _floor(row, step.epsilon, step.keep) if len(row.ids) else row


def _eta(row: Candidates, step: Eta) -> Candidates:
    if not len(row.ids):
        return row
    log_p = log_probabilities(row)
    falling = math.sqrt(step.epsilon) * float(exact_math.exp(-_entropy(row.ids, exact_math.exp(log_p), log_p)))
    return _floor(row, min(step.epsilon, falling), step.keep)


def _top_h(row: Candidates, step: TopH) -> Candidates:
    if not len(row.ids):
        return row
    order = np.argsort(-row.scores, kind="stable")[: step.top]
    log_p = log_probabilities(row.keep(np.sort(order)))[np.argsort(np.argsort(order))]
    terms = -exact_math.exp(log_p) * np.where(log_p > -np.inf, log_p, 0.0)
    within = (terms > 0) & (np.add.accumulate(terms) <= step.share * np.add.accumulate(terms)[-1])
    count = max(1, int(within[1:].sum()) + 1)
    return row.keep(np.sort(order[:count]))


def _top_n_sigma(row: Candidates, step: TopNSigma) -> Candidates:
    if not len(row.ids) or row.scores.max() == np.inf:
        return row.keep(row.scores == np.inf)
    scores = row.scores.astype(np.float64)
    with np.errstate(over="ignore"):
        apart = scores - total(row.ids, scores) / len(scores)
        deviation = math.sqrt(total(row.ids, apart * apart) / len(scores))
    return row.keep(scores >= scores.max() - step.n * deviation)


def xtc_acts(step: Xtc, position: int) -> bool:
    """Whether XTC's coin fell so that it excludes tokens at this position."""
    return bool(_noise("uniform", step.seed, position, XTC_COIN) < step.probability)


def _xtc(row: Candidates, step: Xtc) -> Candidates:
    if not len(row.ids) or not xtc_acts(step, row.position):
        return row
    above = np.flatnonzero(probabilities(row) >= step.threshold)
    if len(above) < 2:
        return row
    kept = np.ones(len(row.ids), bool)
    kept[above] = False
    kept[above[np.argsort(-row.scores[above], kind="stable")[-1]]] = True
    return row.keep(kept | np.isin(row.ids, step.special_tokens))


def _normalise(row: Candidates, _: Normalise) -> Candidates:
    with np.errstate(over="ignore"):  # a log-probability below the range of float32 becomes -inf
        scores = log_probabilities(row).astype(row.scores.dtype)
    return _drop_forbidden(row._replace(scores=scores))


_RULES: dict[type, Callable[[Candidates, Any], Candidates]] = {
    Penalise: _penalise,
    Add: _add,
    Lift: _lift,
    Ban: _ban,
    AllowBits: _allow_bits,
    Allow: _allow,
    Force: _force,
    Temperature: _temperature,
    TopK: _top_k,
    TopP: _top_p,
    MinP: _min_p,
    Typical: _typical,
    Epsilon: _epsilon,
    Eta: _eta,
    TopH: _top_h,
    TopNSigma: _top_n_sigma,
    Xtc: _xtc,
    Normalise: _normalise,
}
