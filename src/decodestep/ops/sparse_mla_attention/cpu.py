"""The call of the dense kernel, for which chosen rows of a cache are blocks of one row."""

from __future__ import annotations

import numpy as np

from decodestep.ops.mla_attention import cpu
from decodestep.ops.mla_attention.arguments import Cache
from decodestep.ops.mla_attention.arguments import Problem as DenseProblem
from decodestep.ops.sparse_mla_attention.arguments import Problem


def obstacle(p: Problem) -> str | None:
    """Why the native kernel cannot serve a call, or None."""
    if p.rounding is not None:
        return "has no roundings of devices"
    return cpu.obstacle(_dense(p, np.arange(0)))


def attend(p: Problem) -> np.ndarray:
    """(T, N, width) in float32."""
    out = np.zeros(p.arrays.query.shape, np.float32)
    attending = np.flatnonzero(p.counts)
    if attending.size:
        out[attending], _ = cpu.attention(_dense(p, attending).in_floats())
    return out


def _dense(p: Problem, tokens: np.ndarray) -> DenseProblem:
    query, rope, latents, rope_keys = p.arrays
    if len(tokens) < len(query):
        query, rope = query[tokens], rope[tokens]
    each = np.arange(len(tokens))
    return DenseProblem(
        query, rope, Cache(latents, None), Cache(rope_keys, None), p.slots[tokens], each, p.counts[tokens], p.scale, 1, None
    )
