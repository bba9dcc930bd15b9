"""K-quants in NumPy: the oracle of the native core's."""

from __future__ import annotations

import numpy as np
from gguf.constants import GGMLQuantizationType as Type

_LEAST_F16 = np.float32(2**-24)  # above 0


def quantise(values: np.ndarray, kind: Type) -> np.ndarray:
    """Rows (N, K) of float32 as (N, bytes of a row) uint8."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # scales that are not finite, blocks of zeros
        made = {Type.Q2_K: _q2_k, Type.Q3_K: _q3_k, Type.Q4_K: _q4_k, Type.Q5_K: _q5_k, Type.Q6_K: _q6_k}[kind]
        return made(values.reshape(-1, 256)).reshape(len(values), -1)


def _weights(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) + np.abs(x)


def _affine(x: np.ndarray, weight: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum, both >= 0, of sub-blocks (..., n): value = scale * q - minimum, q in [0, largest]."""
    low, high = np.minimum(x.min(axis=-1), 0), x.max(axis=-1)
    total, sum_x = weight.sum(axis=-1), (weight * x).sum(axis=-1)
    span = np.where(high > low, high - low, 1)
    scale, minimum = (high - low) / largest, -low
    best = np.full(scale.shape, np.inf, np.float32)
    for steps in np.linspace(largest - 1.0, largest + 1.0, 21, dtype=np.float32):
        q = np.clip(np.rint((x - low[..., None]) * (steps / span)[..., None]), 0, largest)
        weighted = weight * q
        sum_q, sum_qq, sum_qx = weighted.sum(axis=-1), (weighted * q).sum(axis=-1), (weighted * x).sum(axis=-1)
        spread = total * sum_qq - sum_q * sum_q
        ok = spread > 1e-5 * total * sum_qq  # below, where the integers are almost all the same, it is a rounding error
        safe = np.where(ok, spread, 1)
        a, m = (total * sum_qx - sum_q * sum_x) / safe, (sum_q * sum_qx - sum_qq * sum_x) / safe
        through_zero = ~ok | (m < 0)  # a minimum is not negative
        a = np.where(through_zero, sum_qx / np.where(sum_qq > 0, sum_qq, 1), a)
        m = np.where(through_zero, 0, m)
        error = (weight * np.square(a[..., None] * q - m[..., None] - x)).sum(axis=-1)
        better = (a > 0) & (error < best)
        best, scale, minimum = np.where(better, error, best), np.where(better, a, scale), np.where(better, m, minimum)
    return scale, minimum


def _super_scale(parts: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """float16 scale of a block, above 0, and the integers up to `most` by which its sub-blocks' numbers are multiples of it."""
    top = np.maximum(_as_f16(parts.max(axis=-1) / most), _LEAST_F16)
    return top, np.rint(parts / top[:, None]).clip(0, most)


def _with_minima(
    x: np.ndarray, largest: int, size: int = 32, most: int = 63
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of Q2_K, Q4_K and Q5_K: d, dmin, the scales and minima (blocks, sub-blocks), and the integers (..., values)."""
    x = x.reshape(-1, 256 // size, size)
    weight = _weights(x)
    scale, minimum = _affine(x, weight, largest)
    d, scales = _super_scale(scale, most)
    mean = (weight * x).sum(axis=-1) / np.maximum(weight.sum(axis=-1), np.finfo(np.float32).tiny)
    minimum = np.where(scales > 0, minimum, np.maximum(-mean, 0))  # without a scale a sub-block is one value
    dmin, minima = _super_scale(minimum, most)
    for last in (False, True):
        a, m = d[:, None] * scales, dmin[:, None] * minima
        q = np.rint((x + m[..., None]) / np.where(a > 0, a, 1)[..., None]).clip(0, largest)
        if not last:
            d, dmin = _refit(x, weight, q * scales[..., None], np.broadcast_to(minima[..., None], x.shape), d, dmin)
    return d, dmin, scales.astype(np.uint8), minima.astype(np.uint8), q.astype(np.uint8)


def _refit(
    x: np.ndarray, weight: np.ndarray, up: np.ndarray, down: np.ndarray, d: np.ndarray, dmin: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """d and dmin >= 0 of least squares for x = d * up - dmin * down in each block, as float16; without any the old ones."""
    uu, dd, ud, ux, dx = (
        (weight * a * b).sum(axis=(1, 2), dtype=np.float64) for a, b in ((up, up), (down, down), (up, down), (up, x), (down, x))
    )
    spread = uu * dd - ud * ud
    ok = spread > 1e-12 * uu * dd
    safe = np.where(ok, spread, 1)
    new_d, new_m = (dd * ux - ud * dx) / safe, (ud * ux - uu * dx) / safe
    alone = (dd == 0) & (uu > 0)
    new_d = np.where(alone, ux / np.where(uu > 0, uu, 1), new_d)
    ok = (ok & (new_d > 0) & (new_m >= 0)) | (alone & (new_d > 0))
    return _as_f16(np.where(ok, new_d, d)), np.where(alone, dmin, _as_f16(np.where(ok, new_m, dmin)))


def _scale_bytes(scales: np.ndarray, minima: np.ndarray) -> np.ndarray:
    """Eight scales and eight minima of six bits in twelve bytes."""
    first = (scales[:, :4] & 63) | (scales[:, 4:] >> 4 << 6)
    second = (minima[:, :4] & 63) | (minima[:, 4:] >> 4 << 6)
    return np.concatenate([first, second, (scales[:, 4:] & 15) | ((minima[:, 4:] & 15) << 4)], axis=1)


def _as_f16(values: np.ndarray) -> np.ndarray:
    """The values as float16 holds them."""
    return values.astype(np.float16).astype(np.float32)


def _f16_bytes(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16)[:, None].view(np.uint8)


def _nibbles(q: np.ndarray) -> np.ndarray:
    """(blocks, 8, 32): of each two sub-blocks the low nibbles of 32 bytes, then the high ones."""
    return (q[:, ::2] | (q[:, 1::2] << 4)).reshape(len(q), -1)


def _q4_k(x: np.ndarray) -> np.ndarray:
    d, dmin, scales, minima, q = _with_minima(x, 15)
    return np.concatenate([_f16_bytes(d), _f16_bytes(dmin), _scale_bytes(scales, minima), _nibbles(q)], axis=1)


def _q5_k(x: np.ndarray) -> np.ndarray:
    d, dmin, scales, minima, q = _with_minima(x, 31)
    fifth = ((q >> 4) << np.arange(8, dtype=np.uint8)[:, None]).sum(axis=1, dtype=np.uint8)
    return np.concatenate([_f16_bytes(d), _f16_bytes(dmin), _scale_bytes(scales, minima), fifth, _nibbles(q & 15)], axis=1)


def _q2_k(x: np.ndarray) -> np.ndarray:
    d, dmin, scales, minima, q = _with_minima(x, 3, 16, 15)
    return np.concatenate([scales | minima << 4, _two_bits(q), _f16_bytes(d), _f16_bytes(dmin)], axis=1)


def _two_bits(q: np.ndarray) -> np.ndarray:
    """Two bits of 256 values in 64 bytes: of each half of them, four times 32 in the same bytes."""
    return (
        (q.reshape(-1, 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(axis=2, dtype=np.uint8).reshape(len(q), -1)
    )


def _q3_k(x: np.ndarray) -> np.ndarray:
    d, scales, bits = _around_zero(x, 4, 32)
    third = ((bits >> 2).reshape(-1, 8, 32) << np.arange(8, dtype=np.uint8)[:, None]).sum(axis=1, dtype=np.uint8)
    stored = (scales + 32).astype(np.uint8)
    low = stored[:, :8] & 15 | (stored[:, 8:] & 15) << 4
    high = ((stored >> 4).reshape(-1, 4, 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(axis=1, dtype=np.uint8)
    return np.concatenate([third, _two_bits(bits & 3), low, high, _f16_bytes(d)], axis=1)


def _around_zero(x: np.ndarray, middle: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of Q3_K and Q6_K: d, the scales in [-most, most) (blocks, 16), and the integers, `middle` added (blocks, 256)."""
    x = x.reshape(-1, 16, 16)
    weight = x * x if most == 128 else _weights(x)
    at = np.abs(x).argmax(axis=-1)
    extreme = np.take_along_axis(x, at[..., None], axis=-1)[..., 0]
    safe = np.where(extreme == 0, 1, extreme)
    scale, best = extreme / -middle, np.full(extreme.shape, -np.inf, np.float32)  # kept where the sums overflow
    for step in range(-9, 10):
        q = np.rint(x * (-(middle + 0.1 * step) / safe)[..., None]).clip(-middle, middle - 1)
        sum_qx, sum_qq = (weight * q * x).sum(axis=-1), (weight * q * q).sum(axis=-1)
        gain = sum_qx * sum_qx / sum_qq  # NaN, which is not better, where every q is 0
        better = gain > best
        best, scale = np.where(better, gain, best), np.where(better, sum_qx / sum_qq, scale)
    index = np.abs(scale).argmax(axis=-1)
    top = np.take_along_axis(scale, index[:, None], axis=-1)[:, 0]
    d = np.copysign(np.maximum(np.abs(_as_f16(top / most)), _LEAST_F16), -top)
    scales = np.rint(scale / d[:, None]).clip(-most, most - 1)
    for last in (False, True):
        a = d[:, None] * scales
        q = np.rint(x / np.where(a == 0, 1, a)[..., None]).clip(-middle, middle - 1)
        if not last:
            up = q * scales[..., None]
            uu, ux = (weight * up * up).sum(axis=(1, 2)), (weight * up * x).sum(axis=(1, 2))
            d = _as_f16(np.where(uu > 0, ux / np.where(uu > 0, uu, 1), d))
    return d, scales, (q + middle).astype(np.uint8).reshape(len(x), -1)


def _q6_k(x: np.ndarray) -> np.ndarray:
    d, scales, bits = _around_zero(x, 32, 128)
    bits = bits.reshape(-1, 2, 4, 32)  # halves of a block, quarters of these
    low = np.concatenate([bits[:, :, i] & 15 | (bits[:, :, i + 2] & 15) << 4 for i in (0, 1)], axis=2)
    high = ((bits >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(axis=2, dtype=np.uint8)
    rows = len(x)
    parts = (low.reshape(rows, -1), high.reshape(rows, -1), scales.astype(np.int8).view(np.uint8), _f16_bytes(d))
    return np.concatenate(parts, axis=1)
