"""What the three versions return."""

from __future__ import annotations

from typing import Any, NamedTuple


class MlaPrologResult(NamedTuple):
    """query (..., N, Hckv), query_rope (..., N, Dr), and the caches that were passed in."""

    query: Any
    query_rope: Any
    kv_cache_out: Any
    kr_cache_out: Any


class MlaPrologV2Result(NamedTuple):
    """As of V1, then dequant_scale_q_nope, float32 (T, N, 1), or None where query is not int8."""

    query: Any
    query_rope: Any
    kv_cache_out: Any
    kr_cache_out: Any
    dequant_scale_q_nope: Any


class MlaPrologV3Result(NamedTuple):
    """query_norm (..., Hcq) and dequant_scale_q_norm, float32 (T, 1), are None where they are not asked for."""

    query: Any
    query_rope: Any
    dequant_scale_q_nope: Any
    query_norm: Any
    dequant_scale_q_norm: Any
