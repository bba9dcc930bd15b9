"""GGUF's block formats: the sizes of their blocks and the decoding of these, as each format defines it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Block(NamedTuple):
    """A format's row of csrc/linear/formats.h; a test compares them.

    read: decodes (blocks, bytes) uint8 to (blocks, values). values, bytes: the number of values of a block, and its size.
    panel_bytes: the size of 32 outputs' blocks in panels. halves: the bytes of a block where its float16 numbers are.
    rounded: whether the core rounds values to the format.
    """

    read: Callable[[np.ndarray], np.ndarray]
    values: int
    bytes: int
    panel_bytes: int
    halves: tuple[int, ...]
    rounded: bool = False


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


def _two_bits(packed: np.ndarray) -> np.ndarray:
    """(blocks, 8, 32) values of two bits; each half of the 64 bytes holds four times 32."""
    return (packed.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 8, 32)


def _q2_k(blocks: np.ndarray) -> np.ndarray:
    numbers, q = blocks[:, :16], _two_bits(blocks[:, 16:80]).reshape(-1, 16, 16)
    scales, minima = _f16(blocks, 80) * (numbers & 15), _f16(blocks, 82) * (numbers >> 4)
    return (scales[:, :, None] * q - minima[:, :, None]).reshape(-1, 256)


def _q3_k(blocks: np.ndarray) -> np.ndarray:
    third = blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    q = (_two_bits(blocks[:, 32:96]) | third << 2).astype(np.int8) - 4
    high = (blocks[:, None, 104:108] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 16)
    scales = _f16(blocks, 108) * ((_halves(blocks[:, 96:104]) | high << 4).astype(np.int8) - 32)
    return (scales[:, :, None] * q.reshape(-1, 16, 16)).reshape(-1, 256)


BLOCKS = {
    "Q4_0": Block(_q4_0, 32, 18, 576, (0,), rounded=True),
    "Q4_1": Block(_q4_1, 32, 20, 640, (0, 2)),
    "Q8_0": Block(_q8_0, 32, 34, 1088, (0,), rounded=True),
    "Q4_K": Block(_q4_k, 256, 144, 4736, (0, 2), rounded=True),
    "Q5_K": Block(_q5_k, 256, 176, 5760, (0, 2), rounded=True),
    "Q6_K": Block(_q6_k, 256, 210, 6720, (208,), rounded=True),
    "Q5_0": Block(_q5_0, 32, 22, 704, (0,), rounded=True),
    "Q5_1": Block(_q5_1, 32, 24, 768, (0, 2)),
    "IQ4_NL": Block(_iq4_nl, 32, 18, 576, (0,)),
    "IQ4_XS": Block(_iq4_xs, 256, 136, 4416, (0,)),
    "MXFP4": Block(_mxfp4, 32, 17, 544, ()),
    "Q2_K": Block(_q2_k, 256, 84, 2688, (80, 82), rounded=True),
    "Q3_K": Block(_q3_k, 256, 110, 3648, (108,), rounded=True),
}
