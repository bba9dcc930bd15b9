"""Decoding of GGUF's block formats, as each format defines it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Block(NamedTuple):
    """values, bytes: the number of values of a block, and its size. read: decodes (blocks, bytes) uint8 to (blocks, values)."""

    values: int
    bytes: int
    read: Callable[[np.ndarray], np.ndarray]


def _f16(blocks: np.ndarray, at: int) -> np.ndarray:
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float64)


def _halves(nibbles: np.ndarray) -> np.ndarray:
    """The low nibbles of the last axis, followed by its high nibbles."""
    return np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks, 0) * (_halves(blocks[:, 2:]).view(np.int8) - 8)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks, 0) * _halves(blocks[:, 4:]) + _f16(blocks, 2)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks, 0) * blocks[:, 2:].view(np.int8)


def _fifth_bits(packed: np.ndarray) -> np.ndarray:
    """Bit i of four bytes for value i, as 16 or 0."""
    return np.unpackbits(packed, axis=-1, bitorder="little") << 4


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    q = _halves(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _f16(blocks, 0) * (q.view(np.int8) - 16)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    q = _halves(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _f16(blocks, 0) * q + _f16(blocks, 2)


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)
_TWICE_MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float64)


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return _f16(blocks, 0) * _IQ4[_halves(blocks[:, 2:])]


def _mxfp4(blocks: np.ndarray) -> np.ndarray:
    return np.ldexp(1.0, blocks[:, :1].astype(np.int32) - 128) * _TWICE_MXFP4[_halves(blocks[:, 1:])]


def _iq4_xs(blocks: np.ndarray) -> np.ndarray:
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=-1).reshape(-1, 8)
    high = (blocks[:, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1, 8)
    scales = _f16(blocks, 0) * ((low | high << 4).astype(np.int8) - 32)
    return (scales[:, :, None] * _IQ4[_halves(blocks[:, 8:].reshape(-1, 8, 16))]).reshape(-1, 256)


def _scales_and_minima(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight scales and minima of six bits from twelve bytes; the first eight bytes hold the upper two bits of the last four."""
    low, middle, mixed = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (mixed & 15) | (low >> 6) << 4], axis=1)
    minima = np.concatenate([middle & 63, (mixed >> 4) | (middle >> 6) << 4], axis=1)
    return scales, minima


def _with_minima(blocks: np.ndarray, q: np.ndarray) -> np.ndarray:
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    values = (_f16(blocks, 0) * scales)[:, :, None] * q.reshape(-1, 8, 32) - (_f16(blocks, 2) * minima)[:, :, None]
    return values.reshape(-1, 256)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    return _with_minima(blocks, _halves(blocks[:, 16:].reshape(-1, 4, 32)))


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    fifth = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _with_minima(blocks, _halves(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | fifth << 4)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    low = _halves(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    q = (low | high << 4).astype(np.int8) - 32
    scales = (_f16(blocks, 208) * blocks[:, 192:208].view(np.int8)).astype(np.float32).astype(np.float64)
    return (scales[:, :, None] * q.reshape(-1, 16, 16)).reshape(-1, 256)


BLOCKS = {
    "Q4_0": Block(32, 18, _q4_0),
    "Q4_1": Block(32, 20, _q4_1),
    "Q8_0": Block(32, 34, _q8_0),
    "Q4_K": Block(256, 144, _q4_k),
    "Q5_K": Block(256, 176, _q5_k),
    "Q6_K": Block(256, 210, _q6_k),
    "Q5_0": Block(32, 22, _q5_0),
    "Q5_1": Block(32, 24, _q5_1),
    "IQ4_NL": Block(32, 18, _iq4_nl),
    "IQ4_XS": Block(256, 136, _iq4_xs),
    "MXFP4": Block(32, 17, _mxfp4),
}
