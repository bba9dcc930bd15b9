"""decode_step, row by row: each filter shrinks the list of candidates."""

from __future__ import annotations

import numpy as np

from decodestep import elementary, random


def decode_step(
    logits: np.ndarray,
    history: list[np.ndarray],
    *,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    min_p: np.ndarray,
    penalty: np.ndarray,
    seed: np.ndarray,
    position: np.ndarray,
) -> np.ndarray:
    """The token of every row; -1 where a row has no candidate."""
    real = np.float64 if logits.dtype == np.float64 else np.float32
    tokens = np.empty(len(logits), np.int64)
    for b, row in enumerate(logits):
        scores = penalised(row.astype(real), history[b], real(penalty[b]))
        if temperature[b] == 0:
            best = int(np.argmax(np.where(np.isnan(scores), -np.inf, scores)))
            tokens[b] = best if scores[best] > -np.inf else -1
            continue
        scores = tempered(scores, float(temperature[b]))
        ids = np.flatnonzero(scores > -np.inf)  # NaN is not above anything
        ids = keep_top_k(ids, scores, int(top_k[b]))
        ids = keep_top_p(ids, scores, float(top_p[b]))
        ids = keep_min_p(ids, scores, float(min_p[b]))
        tokens[b] = draw(ids, scores, seed[b], position[b])
    return tokens


def penalised(scores: np.ndarray, history: np.ndarray, penalty: np.floating) -> np.ndarray:
    if penalty != 1 and len(history):
        seen = np.unique(history)
        past = scores[seen]
        scores[seen] = np.where(past < 0, past * penalty, past / penalty)
    return scores


def tempered(scores: np.ndarray, temperature: float) -> np.ndarray:
    """scores / temperature; where the largest is beyond the type, the limit: scores relative to it."""
    top = np.fmax.reduce(scores)
    if np.isinf(top):  # +inf tokens share the draw; a row of -inf has no candidate either way
        return np.where(scores == top, scores.dtype.type(0 if top > 0 else top), scores.dtype.type(-np.inf))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scaled = scores / scores.dtype.type(temperature)
        if np.isfinite(np.fmax.reduce(scaled)):
            return scaled
        return ((scores.astype(np.float64) - top) / temperature).astype(scores.dtype)


def keep_top_k(ids: np.ndarray, scores: np.ndarray, k: int) -> np.ndarray:
    if not 0 < k < len(ids):
        return ids
    values = scores[ids]
    return ids[values >= np.partition(values, len(values) - k)[len(values) - k]]


def probabilities(scores: np.ndarray) -> np.ndarray:
    """softmax in float64."""
    weight = elementary.exp(scores.astype(np.float64) - np.float64(scores.max()))
    return weight / np.add.accumulate(weight)[-1]


def keep_top_p(ids: np.ndarray, scores: np.ndarray, p: float) -> np.ndarray:
    if p >= 1 or len(ids) == 0:
        return ids
    share = probabilities(scores[ids])
    order = np.argsort(-scores[ids], kind="stable")
    before = np.add.accumulate(share[order]) - share[order]
    kept = max(1, int(np.searchsorted(before, p, side="left")))  # the mass before a kept token is below p
    return np.sort(ids[order[:kept]])


def keep_min_p(ids: np.ndarray, scores: np.ndarray, p: float) -> np.ndarray:
    if p <= 0 or len(ids) == 0:
        return ids
    share = probabilities(scores[ids])
    return ids[share >= p * share.max()]


def draw(ids: np.ndarray, scores: np.ndarray, seed: np.uint64, position: np.uint64) -> int:
    if len(ids) == 0:
        return -1
    noise = random.gumbel(int(seed), int(position), ids)
    return int(ids[np.argmax(scores[ids].astype(np.float64) + noise)])
