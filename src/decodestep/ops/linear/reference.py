"""linear as one matrix product."""

from __future__ import annotations

import numpy as np

from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight


def linear(x: np.ndarray, weight: np.ndarray | PackedWeight | LinearPanels) -> np.ndarray:
    with np.errstate(all="ignore"):  # infinities and NaN propagate as in IEEE arithmetic
        if isinstance(weight, LinearPanels):
            activations = quantise(x) if weight.quantises_activations else x
            return activations @ weight.rows().dense(x.dtype)
        return x @ (weight.dense(x.dtype) if isinstance(weight, PackedWeight) else weight.astype(x.dtype))


def quantise(x: np.ndarray) -> np.ndarray:
    """Activations (T, K) with the roundings of a product with quantised panels: each 32 are integers times a scale.

    The scale is their largest magnitude / 127; a block below 1e-36 counts as zeros. The first of a row's blocks with the
    largest scale keeps its residual (value - integer * scale), quantised in the same way with a scale of its own. Integers and
    scales are found in float32 for every dtype of x, so that ties fall alike.
    """
    blocks = x.astype(np.float32).reshape(len(x), x.shape[1] // 32, 32)
    with np.errstate(all="ignore"):
        integers, scale = _quantise(blocks)
        residual_integers, residual_scale = _quantise(blocks - scale * integers)
        values = scale.astype(x.dtype) * integers.astype(x.dtype)
        residual = residual_scale.astype(x.dtype) * residual_integers.astype(x.dtype)
    if x.shape[1]:
        coarsest = np.arange(len(x)), scale[:, :, 0].argmax(axis=1)
        values[coarsest] += residual[coarsest]
    return values.reshape(x.shape)


def _quantise(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The integers, and the scale of each block."""
    largest = np.abs(blocks).max(axis=2, keepdims=True, initial=0)
    inverse = np.where(largest < 1e-36, np.float32(0), np.float32(127) / largest)
    return np.rint(blocks * inverse), largest / np.float32(127)


def with_bias(y: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """y (..., N) plus a bias (N,) in y's dtype, which `linear` leaves to its callers; y itself without one."""
    return y if bias is None else y + bias.astype(y.dtype, copy=False)
