"""transformers' families with grouped-query attention: their options, from config.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from decodestep.decoding.config import Config, Experts, GroupedConfig
from decodestep.families.config_json import Keys
from decodestep.families.limits import MAX_CONTEXT, MAX_EXPERTS, MAX_HEADS, MAX_LAYERS
from decodestep.ops.expert_router.arguments import RouterRule

_QKV = ("query", "key", "value")
_FACTOR = {"least": -1e6, "most": 1e6}


def grouped_config(keys: Keys, common: dict[str, Any]) -> Config:
    """The sizes of a family in `GROUPED`. common: the sizes that all families have."""
    heads, layers = common["heads"], common["layers"]
    kv_heads = heads if keys.get("num_key_value_heads") is None else keys.size("num_key_value_heads", most=MAX_HEADS)
    head_dim = keys.size_or_none("head_dim") or common["hidden"] // heads
    if heads % kv_heads or head_dim % 2 or not head_dim:
        raise keys.refusal(f"{heads} query heads on {kv_heads} key heads of {head_dim} values: not supported")
    windows, more = GROUPED[keys.kind](keys, layers), _MORE.get(keys.kind, _no_more)(keys, common)
    biases = (*_QKV, "attention_output") if keys.flag("attention_bias") and keys.kind in _WITH_BIAS_KEY else ()
    options = {"biases": _QKV if keys.kind == "qwen2" else biases, "windows": windows} | more.pop("grouped", {})
    return Config(
        **common, kv_heads=kv_heads, head_dim=head_dim, rope_half_split=True, grouped=GroupedConfig(**options), **more
    )  # fmt: skip


def _no_windows(keys: Keys, layers: int) -> tuple[int, ...]:
    return ()


def _same_windows(keys: Keys, layers: int) -> tuple[int, ...]:
    """The same window for all layers, whatever layer_types says."""
    size = _window_size(keys)
    return () if size is None else (size,) * layers


def _windows(keys: Keys, layers: int, slides: Callable[[int], bool]) -> tuple[int, ...]:
    """Each layer's window by layer_types, or by a rule for the layer's index if config.json has none."""
    size = _window_size(keys)
    if size is None:
        return ()
    kinds = layer_types(keys, layers, slides)
    return tuple(size if kind == "sliding_attention" else 0 for kind in kinds)


def _window_size(keys: Keys) -> int | None:
    return None if keys.get("sliding_window") is None else keys.size("sliding_window", most=MAX_CONTEXT)


def layer_types(keys: Keys, layers: int, slides: Callable[[int], bool]) -> list[str]:
    kinds = keys.get("layer_types")
    if kinds is None:
        return ["sliding_attention" if slides(i) else "full_attention" for i in range(layers)]
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        raise keys.refusal(f"layer_types must have 'full_attention' or 'sliding_attention' for each of {layers} layers")
    return kinds


def _ministral_windows(keys: Keys, layers: int) -> tuple[int, ...]:
    return _windows(keys, layers, lambda i: True)


def _qwen_windows(keys: Keys, layers: int) -> tuple[int, ...]:
    if not keys.flag("use_sliding_window"):
        return ()
    first = keys.size("max_window_layers", least=0, most=MAX_LAYERS)
    return _windows(keys, layers, lambda i: i >= first)


def _qwen3_moe_windows(keys: Keys, layers: int) -> tuple[int, ...]:
    return _same_windows(keys, layers) if keys.flag("use_sliding_window") else ()


def _smollm3_windows(keys: Keys, layers: int) -> tuple[int, ...]:
    ropes, used = _smollm3_ropes(keys, layers), keys.flag("use_sliding_window")
    windows = _windows(keys, layers, lambda i: used and bool(ropes[i]))  # layer_types count whatever use_sliding_window is
    return windows if any(windows) else ()


def _gemma3_windows(keys: Keys, layers: int) -> tuple[int, ...]:
    return _windows(keys, layers, _gemma3_slides(keys))


def _gemma3_slides(keys: Keys) -> Callable[[int], bool]:
    period = keys.size("sliding_window_pattern", 6, most=MAX_LAYERS)
    return lambda i: (i + 1) % period != 0


def _no_more(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    return {}


def _head_norms_more(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    return {"grouped": {"head_norms": True}}


def _qwen3_moe_more(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    count, layers = keys.size("num_experts", least=0, most=MAX_EXPERTS), common["layers"]
    step, dense = keys.size("decoder_sparse_step", most=MAX_LAYERS), keys.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise keys.refusal("mlp_only_layers must be a list")
    sparse = tuple(count > 0 and i not in dense and (i + 1) % step == 0 for i in range(layers))
    if not any(sparse):
        return _head_norms_more(keys, common)
    rule = keys.router(RouterRule(keys.size("num_experts_per_tok"), "softmax", normalise=keys.flag("norm_topk_prob")), count)
    experts = Experts(count, keys.size("moe_intermediate_size"), shared=0, rule=rule, corrected=False, layers=sparse)
    return {"experts": experts, **_head_norms_more(keys, common)}


def _smollm3_ropes(keys: Keys, layers: int) -> tuple[int, ...]:
    """1 for a layer that is not rotated: in no_rope_layers that is 0."""
    flags, period = keys.get("no_rope_layers"), keys.size("no_rope_layer_interval", most=MAX_LAYERS)
    if flags is None:
        return tuple(int((i + 1) % period == 0) for i in range(layers))
    if not isinstance(flags, list) or len(flags) < layers or not all(flag in (0, 1) for flag in flags):
        raise keys.refusal(f"no_rope_layers must have 0 or 1 for each of {layers} layers")
    return tuple(1 - int(flag) for flag in flags[:layers])


def _smollm3_more(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    return {"grouped": {"ropes": _smollm3_ropes(keys, common["layers"])}}


def _granite_more(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    return {
        "grouped": {"scale": keys.number("attention_multiplier", **_FACTOR)},
        "embedding_scale": keys.number("embedding_multiplier", **_FACTOR),
        "residual_scale": keys.number("residual_multiplier", **_FACTOR),
        "logits_divisor": keys.number("logits_scaling", least=1e-6, most=1e6),
    }


def _granite_hybrid_more(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    """Granite 4's class has Mamba layers and experts, of which its dense models have none."""
    if keys.size("num_local_experts", least=0):
        raise keys.refusal(f"num_local_experts {keys.get('num_local_experts')}, experts, is not supported for {keys.kind}")
    kinds, layers = keys.get("layer_types"), common["layers"]
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != layers):
        raise keys.refusal(f"layer_types must have one for each of {layers} layers")
    other = next((kind for kind in kinds or ["mamba"] if kind not in ("attention", "full_attention")), None)
    if other is not None:
        raise keys.refusal(f"layer_types with {other!r} is not supported for {keys.kind} ('attention' is)")
    return _granite_more(keys, common)


def _gemma3_more(keys: Keys, common: dict[str, Any]) -> dict[str, Any]:
    for key in ("final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention"):
        if keys.get(key):
            raise keys.refusal(f"{key} is not supported")
    kinds = layer_types(keys, common["layers"], _gemma3_slides(keys))
    return {
        "grouped": {
            "scale": keys.number("query_pre_attn_scalar", least=1e-6, most=1e6) ** -0.5,
            "head_norms": True,
            "ropes": tuple(int(kind == "sliding_attention") for kind in kinds),
        },
        "post_norms": True,
        "norm_shift": 1.0,
        "embedding_scale": float(np.float32(common["hidden"] ** 0.5)),
    }


# By model_type: how many positions each layer sees; (): all.
GROUPED: dict[str, Callable[[Keys, int], tuple[int, ...]]] = {
    "llama": _no_windows,
    "mistral": _same_windows,
    "ministral": _ministral_windows,
    "qwen2": _qwen_windows,
    "qwen3": _qwen_windows,
    "qwen3_moe": _qwen3_moe_windows,
    "smollm3": _smollm3_windows,
    "granite": _no_windows,
    "granitemoehybrid": _no_windows,
    "gemma3_text": _gemma3_windows,
}
# By model_type: what else it has, as fields of Config, and under "grouped" of GroupedConfig.
_MORE: dict[str, Callable[[Keys, dict[str, Any]], dict[str, Any]]] = {
    "qwen3": _head_norms_more,
    "qwen3_moe": _qwen3_moe_more,
    "smollm3": _smollm3_more,
    "granite": _granite_more,
    "granitemoehybrid": _granite_hybrid_more,
    "gemma3_text": _gemma3_more,
}
_WITH_BIAS_KEY = ("llama", "qwen3", "qwen3_moe", "smollm3", "granite", "granitemoehybrid", "gemma3_text")
