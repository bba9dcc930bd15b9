"""Quantises values to GGUF's block formats.

Each sub-block of a K-quant gets the scale, and the minimum if it has one, with the least weighted squared error among a few
grids near the one that spans its values; then the block's own scales are refitted to the resulting integers. Values are
weighted by their magnitude, so that large ones keep their precision. F16, BF16, Q8_0, Q5_x and Q4_x are rounded as the gguf
package does.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize

from decodestep._base.memory import Allocate, new_bytes
from decodestep.weights.file_rows import FileRows, FileRowsError
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format, PackedWeight

_LEAST_F16 = np.float32(2**-24)  # above 0
_PIECE = 1 << 19  # values that are worked on at a time: they stay in a near cache
_SUPER = 256
_DENSE = {
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F16: np.float16,
    GGMLQuantizationType.BF16: ml_dtypes.bfloat16,
}
# Where the float16 numbers of a block lie.
_HALVES = {
    **{GGMLQuantizationType[name]: (0,) for name in ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS")},
    **{GGMLQuantizationType[name]: (0, 2) for name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K")},
    GGMLQuantizationType.Q6_K: (208,),
}


def quantise(values: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Rows (N, K) of float32 as (N, bytes of a row) uint8. K is a multiple of the kind's block; every value is finite.

    `has_finite_scales` tells whether the kind can hold them.
    """
    rows, width = values.shape
    block, size = GGML_QUANT_SIZES[kind]
    made = np.empty((rows, width // block * size), np.uint8)
    step = max(1, _PIECE // max(width, 1))
    own = _K_QUANTS.get(kind)
    for first in range(0, rows, step):
        part = np.ascontiguousarray(values[first : first + step], np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # scales that are not finite, blocks of zeros
            blocks = quantize(part, kind).view(np.uint8) if own is None else own(part.reshape(-1, _SUPER))
        made[first : first + step] = blocks.reshape(len(part), -1)
    return made


def has_finite_scales(made: np.ndarray, kind: GGMLQuantizationType) -> bool:
    """Whether the float16 numbers of all blocks are finite; for dense types, whether all values are."""
    if kind in _DENSE:
        return bool(np.isfinite(made.view(_DENSE[kind])).all())
    blocks = made.reshape(-1, GGML_QUANT_SIZES[kind][1])
    return all(np.isfinite(blocks[:, at : at + 2].copy().view(np.float16)).all() for at in _HALVES.get(kind, ()))


def panels_of(weight: PackedWeight | FileRows, format_: Format, allocate: Allocate = new_bytes) -> LinearPanels:
    """A weight in panels of Q8_0, Q4_0 or Q4_K; of Q5_0 or BF16 if its inputs are not a multiple of their block. A weight of
    that type keeps its values.

    Raises FileRowsError for values whose scales are beyond float16's range.
    """
    inputs = weight.shape[0]
    if format_ == Format.Q4_K and inputs % _SUPER:
        format_ = Format.Q5_0
    if inputs % 32:
        format_ = Format.BF16
    if format_ in (Format.BF16, Format.Q8_0, weight.format):
        return _within_range(LinearPanels.pack(weight, format_, allocate=allocate), weight)
    rows = weight.whole() if isinstance(weight, FileRows) else weight
    blocks = quantise(rows.values(), GGMLQuantizationType[format_.name])
    return _within_range(LinearPanels.pack(PackedWeight(blocks, format_, inputs), allocate=allocate), weight)


def _within_range(panels: LinearPanels, weight: PackedWeight | FileRows) -> LinearPanels:
    if panels.has_finite_scales():
        return panels
    if isinstance(weight, FileRows) and len(weight.parts) > 1:
        for part in weight.tensors():
            panels_of(part, panels.format)  # raises for the one at fault
    # Rows that were put in another order, or widened, are no longer a file's.
    if isinstance(weight, FileRows):
        what, rows = weight.parts[0].name, weight.whole()
    else:
        what, rows = f"a weight of {panels.inputs} inputs and {panels.outputs} outputs", weight
    fault = f"too large for {panels.format.name}" if np.isfinite(rows.values()).all() else "that are not finite"
    raise FileRowsError(f"{what:.200} has values {fault}")


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


def _super_scale(parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float16 scale of a block, above 0, and the integers of six bits by which its sub-blocks' numbers are multiples of it."""
    top = np.maximum(_as_f16(parts.max(axis=-1) / 63), _LEAST_F16)
    return top, np.rint(parts / top[:, None]).clip(0, 63)


def _with_minima(x: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of Q4_K and Q5_K: d, dmin, the scales and minima of six bits (blocks, 8), and the integers (blocks, 8, 32)."""
    x = x.reshape(-1, 8, 32)
    weight = np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) + np.abs(x)
    scale, minimum = _affine(x, weight, largest)
    d, scales = _super_scale(scale)
    mean = (weight * x).sum(axis=-1) / np.maximum(weight.sum(axis=-1), np.finfo(np.float32).tiny)
    minimum = np.where(scales > 0, minimum, np.maximum(-mean, 0))  # without a scale a sub-block is one value
    dmin, minima = _super_scale(minimum)
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


def _q6_k(x: np.ndarray) -> np.ndarray:
    x = x.reshape(-1, 16, 16)
    weight = x * x
    at = np.abs(x).argmax(axis=-1)
    extreme = np.take_along_axis(x, at[..., None], axis=-1)[..., 0]
    safe = np.where(extreme == 0, 1, extreme)
    scale, best = extreme / -32, np.full(extreme.shape, -np.inf, np.float32)  # kept where the sums overflow
    for step in range(-9, 10):
        q = np.rint(x * (-(32 + 0.1 * step) / safe)[..., None]).clip(-32, 31)
        sum_qx, sum_qq = (weight * q * x).sum(axis=-1), (weight * q * q).sum(axis=-1)
        gain = sum_qx * sum_qx / sum_qq  # NaN, which is not better, where every q is 0
        better = gain > best
        best, scale = np.where(better, gain, best), np.where(better, sum_qx / sum_qq, scale)
    index = np.abs(scale).argmax(axis=-1)
    top = np.take_along_axis(scale, index[:, None], axis=-1)[:, 0]
    d = np.copysign(np.maximum(np.abs(_as_f16(top / 128)), _LEAST_F16), -top)
    scales = np.rint(scale / d[:, None]).clip(-128, 127)
    for last in (False, True):
        a = d[:, None] * scales
        q = np.rint(x / np.where(a == 0, 1, a)[..., None]).clip(-32, 31)
        if not last:
            up = q * scales[..., None]
            uu, ux = (weight * up * up).sum(axis=(1, 2)), (weight * up * x).sum(axis=(1, 2))
            d = _as_f16(np.where(uu > 0, ux / np.where(uu > 0, uu, 1), d))
    bits = (q + 32).astype(np.uint8).reshape(-1, 2, 4, 32)  # halves of a block, quarters of these
    low = np.concatenate([bits[:, :, i] & 15 | (bits[:, :, i + 2] & 15) << 4 for i in (0, 1)], axis=2)
    high = ((bits >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(axis=2, dtype=np.uint8)
    rows = len(x)
    parts = (low.reshape(rows, -1), high.reshape(rows, -1), scales.astype(np.int8).view(np.uint8), _f16_bytes(d))
    return np.concatenate(parts, axis=1)


_K_QUANTS: dict[GGMLQuantizationType, Callable[[np.ndarray], np.ndarray]] = {
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_K: _q5_k,
    GGMLQuantizationType.Q6_K: _q6_k,
}
