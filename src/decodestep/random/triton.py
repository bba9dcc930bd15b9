"""The noise of `decodestep.random` in Triton: functions that kernels call."""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import log, log1p_neg

LARGEST_UNIFORM = tl.constexpr(1.0 - 2.0**-24)


@triton.jit
def mix(h, word):
    k = word * 0xCC9E2D51
    k = ((k << 15) | (k >> 17)) * 0x1B873593
    h = h ^ k
    return ((h << 13) | (h >> 19)) * 5 + 0xE6546B64


@triton.jit
def noise_state(seed, position):
    """The hash after the uint64 seed and the uint32 position, which all tokens of a row share."""
    low = (seed & 0xFFFFFFFF).to(tl.uint32)
    high = (seed >> 32).to(tl.uint32)
    return mix(mix(mix(low * 0, low), high), position)


@triton.jit
def noise_bits(state, token):
    """Of uint32 tokens."""
    h = mix(state, token) ^ 16
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def uniform(bits):
    return tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, LARGEST_UNIFORM)


@triton.jit
def exponential(bits):
    return (-log1p_neg(uniform(bits).to(tl.float64))).to(tl.float32)


@triton.jit
def gumbel(bits):
    return (-log(exponential(bits).to(tl.float64))).to(tl.float32)
