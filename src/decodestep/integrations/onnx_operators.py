"""The library's operators as ONNX operators, in the domain "decodestep", version 1: inputs, attributes and results.

The integrations of onnx.reference, onnxruntime and torch's exporter use this table, which needs none of these packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from decodestep._base.checks import require
from decodestep.integrations.onnx_states import causal_conv_with_state, linear_attention
from decodestep.ops.lightning_indexer import lightning_indexer
from decodestep.ops.mla_prolog import mla_prolog, mla_prolog_v2, mla_prolog_v3
from decodestep.ops.sparse_mla_attention import sparse_mla_attention
from decodestep.ops.tensor_scatter import tensor_scatter
from decodestep.ops.top_k_top_p_sample import apply_top_k_top_p, top_k_top_p_sample, top_k_top_p_sample_v2

DOMAIN, VERSION = "decodestep", 1


Attributes = Mapping[str, float | int | bool | str]


@dataclass(frozen=True)
class Operator:
    """One operator. It takes NumPy arrays, which it does not write to, and returns a tuple of arrays.

    compute: called with the inputs and attributes by name, None for an input that is missing.
    inputs: names in order, with "?" after optional ones.
    attributes: names with their defaults: a float, an integer, a bool, for which ONNX has the integers 0 and 1, or a string.
    outputs: names in order, each with its type: a dtype's name, the name of an input with the same type, or its own name if
        `types` gives it.
    types: the supported combinations of types: dtype names by input or output; empty if no output depends on an input.
    """

    compute: Callable[..., tuple[np.ndarray, ...]]
    inputs: tuple[str, ...]
    attributes: Attributes
    outputs: Mapping[str, str]
    types: tuple[Mapping[str, str], ...] = ()

    def __call__(self, inputs: list[np.ndarray | None], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        """The results. inputs: in order; missing ones at the end may be omitted."""
        names = [name.rstrip("?") for name in self.inputs]
        given = dict(zip(names, [*inputs, *[None] * (len(names) - len(inputs))], strict=True))
        options = {name: _argument(name, value, self.attributes[name]) for name, value in attributes.items()}
        return self.compute(**given, **{**self.attributes, **options})


def _argument(name: str, value: object, default: object) -> Any:
    """The argument that an attribute stands for: ONNX has integers for bools, and float32 for floats, of which the shortest
    decimal is meant: 1e-8 rather than the float32 closest to it."""
    if isinstance(default, bool):
        require(value in (0, 1), DOMAIN, name, "0 or 1", value)
        return bool(value)
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _scatter(past_cache: np.ndarray, update: np.ndarray, write_indices: np.ndarray | None, **options: Any) -> tuple[Any, ...]:
    return (tensor_scatter(past_cache, update, write_indices, **options),)


def _sample(logits: np.ndarray, **call: Any) -> tuple[np.ndarray, ...]:
    drawn, masked = top_k_top_p_sample(logits, **call)
    return np.asarray(drawn), _or_placeholder(masked, np.float32)


def _sample_v2(logits: np.ndarray, **call: Any) -> tuple[np.ndarray, ...]:
    results = top_k_top_p_sample_v2(logits, **call)
    types = (np.int64, np.float32, np.int64, np.float32)
    return tuple(_or_placeholder(result, dtype) for result, dtype in zip(results, types, strict=True))


def _apply(logits: np.ndarray, p: np.ndarray | None, k: np.ndarray | None) -> tuple[np.ndarray, ...]:
    return (apply_top_k_top_p(logits, p, k),)


def _index(query: np.ndarray, key: np.ndarray, weights: np.ndarray, **call: Any) -> tuple[np.ndarray, ...]:
    indices, values = lightning_indexer(query, key, weights, **call)
    return indices, _or_placeholder(values, np.float32)


def _sparse(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray | None,
    sparse_indices: np.ndarray,
    return_softmax_lse: bool,
    scale_value: float,
    **call: Any,
) -> tuple[np.ndarray, ...]:
    """value: its values are not compared with key's, which a graph has in an array of its own."""
    given = query, key, None, sparse_indices, scale_value
    if return_softmax_lse:
        return tuple(map(np.asarray, sparse_mla_attention(*given, return_softmax_lse=True, **call)))
    out = sparse_mla_attention(*given, **call)
    return np.asarray(out), _or_placeholder(None, np.float32), _or_placeholder(None, np.float32)


def _prolog(kv_cache: np.ndarray, kr_cache: np.ndarray, **call: Any) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, mla_prolog(kv_cache=kv_cache.copy(), kr_cache=kr_cache.copy(), **call)))


def _prolog_v2(kv_cache: np.ndarray, kr_cache: np.ndarray, **call: Any) -> tuple[np.ndarray, ...]:
    *made, scale = mla_prolog_v2(kv_cache=kv_cache.copy(), kr_cache=kr_cache.copy(), **call)
    return *map(np.asarray, made), _or_placeholder(scale, np.float32)


def _prolog_v3(kv_cache: np.ndarray, kr_cache: np.ndarray, **call: Any) -> tuple[np.ndarray, ...]:
    caches = kv_cache.copy(), kr_cache.copy()
    query, query_rope, scale, norm, norm_scale = mla_prolog_v3(kv_cache=caches[0], kr_cache=caches[1], **call)
    scales = [_or_placeholder(each, np.float32) for each in (scale, norm_scale)]
    norm = _or_placeholder(norm, call["weight_uq_qr"].dtype)
    return np.asarray(query), np.asarray(query_rope), scales[0], norm, scales[1], *caches


def _or_placeholder(result: object, dtype: type) -> np.ndarray:
    """The result; if the call does not produce it, a meaningless single element, as in torch_npu."""
    return np.zeros(1, dtype) if result is None else np.asarray(result)


def _lengths(keys: str) -> tuple[str, ...]:
    return "actual_seq_lengths_query?", f"actual_seq_lengths_{keys}?", "block_table?"


def _layouts(keys: str) -> Attributes:
    return {"layout_query": "BSND", f"layout_{keys}": "BSND", "sparse_mode": 3}


_NOISE = ("seed?", "position?")
_PROLOG_TENSORS = (
    *("token_x", "weight_dq", "weight_uq_qr", "weight_uk", "weight_dkv_kr", "rmsnorm_gamma_cq", "rmsnorm_gamma_ckv"),
    *("rope_sin", "rope_cos"),
)
_CACHES = ("kv_cache", "kr_cache")
_PROLOG_SCALES = (
    *("dequant_scale_x?", "dequant_scale_w_dq?", "dequant_scale_w_uq_qr?", "dequant_scale_w_dkv_kr?"),
    *("quant_scale_ckv?", "quant_scale_ckr?", "smooth_scales_cq?"),
)
_PROLOG_INPUTS = (*_PROLOG_TENSORS, "cache_index", *_CACHES, *_PROLOG_SCALES)
_CACHES_OUT = {"kv_cache_out": "kv_cache", "kr_cache_out": "kr_cache"}
_PROLOG_OUTPUTS = {"query": "query", "query_rope": "weight_uk", **_CACHES_OUT}


def _prolog_types(*scenarios: str) -> tuple[Mapping[str, str], ...]:
    """For each scenario and real type, a letter for each of these: i int8, r real, f float32, - missing, represented by a type
    that no scale has."""
    names = (*_CACHES, "query", "weight_uq_qr", "k_nope_clip_alpha")
    return tuple(
        {"weight_uk": real}
        | {name: {"i": "int8", "r": real, "f": "float32", "-": "bool"}[kind] for name, kind in zip(names, kinds, strict=False)}
        for real in ("bfloat16", "float32", "float64")
        for kinds in scenarios
    )


_SCATTERED = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32"),
    *("float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)
_ACTIVATIONS = ("float32", "float16", "bfloat16")
_PROLOG_ATTRIBUTES: Attributes = {
    "rmsnorm_epsilon_cq": 1e-5,
    "rmsnorm_epsilon_ckv": 1e-5,
    "cache_mode": "PA_BSND",
}
_V2_ATTRIBUTES: Attributes = {**_PROLOG_ATTRIBUTES, "rounding": "half_even"}
_V3_ATTRIBUTES: Attributes = {
    **_V2_ATTRIBUTES,
    "query_norm_flag": False,
    "weight_quant_mode": 0,
    "kv_cache_quant_mode": 0,
    "query_quant_mode": 0,
    "ckvkr_repo_mode": 0,
    "quant_scale_repo_mode": 0,
    "tile_size": 128,
    "qc_qr_scale": 1.0,
    "kc_scale": 1.0,
}
_SAMPLED = {"logits_select_idx": "int64", "logits_top_kp_select": "float32"}
_SAMPLE_ATTRIBUTES: Attributes = {"eps": 1e-8, "is_need_logits": False, "top_k_guess": 32}

OPERATORS = {
    "TensorScatter": Operator(
        _scatter,
        ("past_cache", "update", "write_indices?"),
        {"axis": -2, "mode": "linear"},
        {"present_cache": "past_cache"},
        tuple({"past_cache": dtype} for dtype in _SCATTERED),
    ),
    "LinearAttention": Operator(
        linear_attention,
        ("query", "key", "value", "past_state?", "decay?", "beta?"),
        {"q_num_heads": 0, "kv_num_heads": 0, "scale": 0.0, "update_rule": "gated_delta", "chunk_size": 64},
        {"output": "query", "present_state": "float32"},
        tuple({"query": dtype} for dtype in _ACTIVATIONS),
    ),
    "CausalConvWithState": Operator(
        causal_conv_with_state,
        ("input", "weight", "bias?", "past_state?"),
        {"activation": "none"},
        {"output": "input", "present_state": "input"},
        tuple({"input": dtype} for dtype in _ACTIVATIONS),
    ),
    "TopKTopPSample": Operator(
        _sample,
        ("logits", "top_k", "top_p", "q?", *_NOISE),
        {**_SAMPLE_ATTRIBUTES, "kernel_exact": False},
        _SAMPLED,
    ),
    "TopKTopPSampleV2": Operator(
        _sample_v2,
        ("logits", "top_k", "top_p", "q?", "min_ps?", *_NOISE),
        {
            **_SAMPLE_ATTRIBUTES,
            "ks_max": 1024,
            "input_is_logits": True,
            "is_need_sample_result": False,
            "post_sample": "qSample",
        },
        {**_SAMPLED, "logits_idx": "int64", "logits_sort_masked": "float32"},
    ),
    "ApplyTopKTopP": Operator(
        _apply, ("logits", "p?", "k?"), {}, {"masked_logits": "logits"}, tuple({"logits": dtype} for dtype in _ACTIVATIONS)
    ),
    "LightningIndexer": Operator(
        _index,
        ("query", "key", "weights", "query_dequant_scale?", "key_dequant_scale?", *_lengths("key")),
        {**_layouts("key"), "sparse_count": 2048, "return_value": False, "ordered": True},
        {"sparse_indices": "int32", "sparse_values": "float32"},
    ),
    "SparseFlashAttention": Operator(
        _sparse,
        ("query", "key", "value?", "sparse_indices", "query_rope", "key_rope?", *_lengths("kv"), "sinks?"),
        {**_layouts("kv"), "scale_value": 1.0, "sparse_block_size": 1, "attention_mode": 2, "return_softmax_lse": False},
        {"attention_out": "query", "softmax_max": "float32", "softmax_sum": "float32"},
        tuple({"query": dtype} for dtype in _ACTIVATIONS),
    ),
    "MlaProlog": Operator(
        _prolog, _PROLOG_INPUTS, _PROLOG_ATTRIBUTES, _PROLOG_OUTPUTS, _prolog_types("rrr", "rir", "irr", "iir")
    ),
    "MlaPrologV2": Operator(
        _prolog_v2,
        _PROLOG_INPUTS,
        _V2_ATTRIBUTES,
        {**_PROLOG_OUTPUTS, "dequant_scale_q_nope": "float32"},
        _prolog_types("rrr", "iir", "iri"),
    ),
    "MlaPrologV3": Operator(
        _prolog_v3,
        (*_PROLOG_TENSORS, *_CACHES, "cache_index?", *_PROLOG_SCALES, "actual_seq_len?", "k_nope_clip_alpha?"),
        _V3_ATTRIBUTES,
        {
            "query": "query",
            "query_rope": "weight_uk",
            "dequant_scale_q_nope": "float32",
            "query_norm": "weight_uq_qr",
            "dequant_scale_q_norm": "float32",
            **_CACHES_OUT,
        },
        _prolog_types("rrrr", "rrri", "iiri", "irii-", "irrif"),
    ),
}
