"""Noise in NumPy, and the tokens whose noise is for other things."""

from __future__ import annotations

import numpy as np

from decodestep._base import exact_math

# Token values for streams of randomness other than the draw of a token. No vocabulary reaches them.
XTC_COIN = 0xFFFFFFFF  # decides whether the XTC filter acts on a row at a position
SAMPLE_LOW = 0xFFFFFFFE  # `sample_seed`: the low 32 bits of the seed of a prompt's sample, whose number is the position
SAMPLE_HIGH = 0xFFFFFFFD  # and the rest

_LARGEST_UNIFORM = np.float32(1.0 - 2.0**-24)


def noise(op: str, seed: np.ndarray, position: np.ndarray, token: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The records are uint64, uint32 and uint32, and broadcast to `shape`."""
    bits = _murmur3(*(np.atleast_1d(np.broadcast_to(r, shape)) for r in (seed, position, token))).reshape(shape)
    if op == "noise_bits":
        return bits
    u = np.minimum((bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32), _LARGEST_UNIFORM)
    if op == "uniform":
        return u
    q = (-exact_math.log1p_neg(u)).astype(np.float32)
    return q if op == "exponential" else (-exact_math.log(q)).astype(np.float32)


def _murmur3(seed: np.ndarray, position: np.ndarray, token: np.ndarray) -> np.ndarray:
    low, high = (seed & np.uint64(0xFFFFFFFF)).astype(np.uint32), (seed >> np.uint64(32)).astype(np.uint32)
    h = np.zeros(seed.shape, np.uint32)
    for word in (low, high, position, token):
        k = _rotate_left(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        h = _rotate_left(h ^ k, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    h ^= np.uint32(16)  # the record's length in bytes
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def _rotate_left(x: np.ndarray, by: int) -> np.ndarray:
    return (x << np.uint32(by)) | (x >> np.uint32(32 - by))
