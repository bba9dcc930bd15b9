"""The results of the three versions; (...) stands for token_x's leading axes, (T,) or (B, S), and T for their product."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from decodestep._base.arrays import Array
from decodestep.ops.mla_prolog.scenarios import BLOCK, Scenario


class MlaPrologResult(NamedTuple):
    """The results of `mla_prolog`.

    Attributes:
        query: (..., N, Hckv), the query in the latent's space; bfloat16, or float32 or float64 with such tensors.
        query_rope: (..., N, Dr), the rotated rope part of the query; likewise.
        kv_cache_out: the kv_cache that was passed in, updated.
        kr_cache_out: the kr_cache that was passed in, updated.
    """

    query: Array
    query_rope: Array
    kv_cache_out: Array
    kr_cache_out: Array


class MlaPrologV2Result(NamedTuple):
    """The results of `mla_prolog_v2`.

    Attributes:
        query: as in `MlaPrologResult`; in FULL_KV int8.
        query_rope: as in `MlaPrologResult`.
        kv_cache_out: as in `MlaPrologResult`.
        kr_cache_out: as in `MlaPrologResult`.
        dequant_scale_q_nope: float32 (T, N, 1), the scale of each head of an int8 query; None in the other scenarios.
    """

    query: Array
    query_rope: Array
    kv_cache_out: Array
    kr_cache_out: Array
    dequant_scale_q_nope: Array | None


class MlaPrologV3Result(NamedTuple):
    """The results of `mla_prolog_v3`, which updates the caches but does not return them.

    Attributes:
        query: (..., N, Hckv), the query in the latent's space; of token_x's dtype in FULL_KV, MXFP8_KV and FP8_KV.
        query_rope: (..., N, Dr), the rotated rope part of the query; in those three in units of the quantised query.
        dequant_scale_q_nope: float32 (T, N, 1), the scale of each head of a quantised query; None in the other scenarios.
        query_norm: (..., Hcq), the normed compressed query as weight_uq_qr multiplies it: of that weight's dtype if that is
            quantised, else rounded to token_x's; None unless query_norm_flag.
        dequant_scale_q_norm: float32 (T, 1), the scale of each row of a quantised query_norm; float8_e8m0fnu (T, Hcq / 32) with
            weight_quant_mode 3; None if there is none.
    """

    query: Array
    query_rope: Array
    dequant_scale_q_nope: Array | None
    query_norm: Array | None
    dequant_scale_q_norm: Array | None


class Spec(NamedTuple):
    """A result that a call produces. dtype: "real" is that of the arrays which are not quantised."""

    shape: tuple[int, ...]
    dtype: str


def result_specs(
    s: Scenario,
    axes: tuple[int, ...],
    heads: int,
    latent: int,
    rope: int,
    query_width: int,
    *,
    query_norm: bool,
) -> dict[str, Spec]:
    """The results of a call by the names of `MlaPrologV3Result`, without those that it does not produce.

    axes: (...). query_width: Hcq. The sizes may be those of a traced program, of which only sums and products are known.
    """
    tokens = prod(axes)
    specs = {
        "query": Spec((*axes, heads, latent), s.code if s.query_quantised else "real"),
        "query_rope": Spec((*axes, heads, rope), "real"),
    }
    if s.query_quantised:
        specs["dequant_scale_q_nope"] = Spec((tokens, heads, 1), "float32")
    if query_norm:
        specs["query_norm"] = Spec((*axes, query_width), s.code if s.partial else "real")
    if query_norm and s.partial:
        blocks = Spec((tokens, query_width // BLOCK), "float8_e8m0fnu")
        specs["dequant_scale_q_norm"] = blocks if s.blocks else Spec((tokens, 1), "float32")
    return specs
