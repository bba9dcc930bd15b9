"""The call of the dense kernel, for which chosen rows of a cache are blocks of one row."""

from __future__ import annotations

import numpy as np

from decodestep.ops.mla_attention import cpu
from decodestep.ops.mla_attention.arguments import Problem as DenseProblem
from decodestep.ops.mla_attention.arguments import Softmax
from decodestep.ops.sparse_mla_attention.arguments import Problem


def obstacle(p: Problem) -> str | None:
    """Why the native kernel cannot serve a call, or None."""
    if p.rounding is not None:
        return "has no roundings of devices"
    return cpu.obstacle(_dense(p, np.arange(0)))


def attend(p: Problem) -> tuple[np.ndarray, Softmax]:
    """(T, N, width) in float32, and its softmax."""
    out, parts = np.zeros(p.arrays.query.shape, np.float32), p.empty_softmax(np.float32)
    attending = np.flatnonzero(p.counts)
    if attending.size:
        own = Softmax(*(np.empty((len(attending), out.shape[1]), np.float32) for _ in parts))
        out[attending], _ = cpu.attention(_dense(p, attending).in_floats(), p.sinks, own)
        parts.largest[attending], parts.sums[attending] = own
    return out, parts


def _dense(p: Problem, tokens: np.ndarray) -> DenseProblem:
    query, rope, rows, rope_keys = p.arrays
    if len(tokens) < len(query):
        query, rope = query[tokens], rope[tokens]
    each, joined = np.arange(len(tokens)), rows if rope_keys is None else None
    indexes = p.slots[tokens], each, p.counts[tokens]
    return DenseProblem(query, rope, *p.caches, *indexes, p.scale, 1, None, joined=joined)
