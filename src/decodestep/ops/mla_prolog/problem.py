"""A checked call, in the form that all backends take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from decodestep.ops.mla_prolog.scenarios import Scenario
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight
from decodestep.weights.panel_weight import PanelWeight

# A projection's (K, N) weight: an array (K, N) or its NZ storage, the same packed, or GGUF blocks in rows or panels.
Weight = np.ndarray | PanelWeight | PackedWeight | LinearPanels

# The numbers of a scenario's cache quantisation (`Scenario.kv`): CacheScale of csrc/mla_prolog/mla_prolog.h.
CACHE_SCALES = {None: 0, "channel": 1, "tensor": 2, "tile": 3}

_EXACT_INPUTS = 1 << 17  # a sum of fewer products of two int8 fits into int32


@dataclass(slots=True, kw_only=True)
class Problem:
    """Views of the arguments with the tokens' axes merged, weights as they are stored, one cache slot for each token."""

    op: str
    scenario: Scenario
    real: np.dtype[Any]  # the dtype of every array that is neither quantised nor a scale
    x: np.ndarray  # (T, He)
    w_dq: Weight  # (He, Hcq)
    w_uq_qr: Weight  # (Hcq, N * (D + Dr))
    w_uk: np.ndarray | PanelWeight  # (N, D, Hckv)
    w_dkv_kr: Weight  # (He, Hckv + Dr)
    gamma_cq: np.ndarray
    gamma_ckv: np.ndarray
    sin: np.ndarray  # (T, Dr)
    cos: np.ndarray
    slots: np.ndarray  # (T,) int64: block * block size + row; negative: the token is not cached
    kv_cache: np.ndarray  # (blocks, block size, 1, width)
    kr_cache: np.ndarray
    nz: bool  # the blocks of the caches are in NZ order
    scales: Mapping[str, np.ndarray]  # the scales of the call by their public names
    eps_cq: float
    eps_ckv: float
    alpha_cq: float
    alpha_ckv: float
    rounding: str
    query_norm: bool  # whether query_norm is returned

    @property
    def query_width(self) -> int:
        """Hcq, the width of the compressed query."""
        return columns_of(self.w_dq)


class Results(NamedTuple):
    """What a backend returns for T tokens; None for what the call does not produce."""

    query: np.ndarray  # (T, N, Hckv)
    query_rope: np.ndarray  # (T, N, Dr)
    dequant_scale_q_nope: np.ndarray | None = None  # (T, N, 1)
    query_norm: np.ndarray | None = None  # (T, Hcq)
    dequant_scale_q_norm: np.ndarray | None = None  # (T, 1)


def columns_of(weight: Weight) -> int:
    """N of a (K, N) weight; for NZ storage the padding counts."""
    shape = weight.shape
    return shape[1] if len(shape) == 2 else shape[0] * shape[3]


def kernel_obstacle(p: Problem) -> str | None:
    """Why the kernels, native and Triton, cannot serve a call, or None."""
    if p.real == np.float64:
        return "has no float64"
    if p.scenario.partial and p.scenario.code == "int8" and max(p.x.shape[1], p.query_width) >= _EXACT_INPUTS:
        return f"sums int8 products exactly for fewer than {_EXACT_INPUTS} inputs only"
    return None
