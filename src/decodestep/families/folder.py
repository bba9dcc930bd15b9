"""Architectures of transformers: a model's sizes from a folder's config.json."""

from __future__ import annotations

import math
from typing import Any

from decodestep.decoding import rope
from decodestep.decoding.config import Config, Experts, LatentConfig
from decodestep.families import names
from decodestep.families.config_json import Keys, RopeParameters
from decodestep.families.folder_grouped import GROUPED, grouped_config
from decodestep.families.limits import (
    LEAST_FACTOR,
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_HEADS,
    MAX_LAYERS,
    MOST_FACTOR,
)
from decodestep.files.model_folder import ModelFolder
from decodestep.ops.expert_router.arguments import RouterRule

_ACTIVATIONS = {"gemma3_text": ("hidden_activation", ("gelu_pytorch_tanh",), "gelu_gated")}
_WIDTHS = {"granitemoehybrid": "shared_intermediate_size"}  # of a dense block; intermediate_size is that of experts
_WITH_EXPERTS = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite")
_WITH_MLP_BIAS = ("deepseek_v2", "minicpm3", "llama", "smollm3", "granite")  # the other classes do not read the key


def config_of(folder: ModelFolder) -> Config:
    """A model's sizes from config.json. Raises ModelError for an unsupported architecture or size."""
    keys = Keys(folder)
    _check_quantization(keys)
    if "is_causal" in folder.config and folder.config["is_causal"] is not True:
        raise keys.refusal("is_causal false, bidirectional attention, is not supported")
    if keys.get("per_layer_config"):
        raise keys.refusal("per_layer_config, sizes of single layers, is not supported")
    activation = _activation(keys)
    layers, hidden = keys.size("num_hidden_layers", most=MAX_LAYERS), keys.size("hidden_size")
    heads = keys.size("num_attention_heads", most=MAX_HEADS)
    name = folder.config.get("_name_or_path") or folder.path.resolve().name
    common: dict[str, Any] = {
        "architecture": keys.kind,
        "name": name if isinstance(name, str) else folder.path.name,
        "vocab_size": keys.size("vocab_size"),
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "feed_forward": keys.size(_WIDTHS.get(keys.kind, "intermediate_size")),
        "context": keys.size("max_position_embeddings", most=MAX_CONTEXT),
        "norm_eps": keys.number("rms_norm_eps", least=1e-30, most=1.0),
        # A head of its own counts, as in transformers, which ties nothing where the two differ.
        "tied": keys.flag("tie_word_embeddings") and names.FOLDER["output"] not in folder.tensors,
        "biases": keys.flag("mlp_bias") and keys.kind in _WITH_MLP_BIAS,
        "activation": activation,
    }
    if keys.kind in GROUPED:
        return grouped_config(keys, common)
    return _latent(folder, keys, common)


def _activation(keys: Keys) -> str:
    """Gemma's key has another name, and its activation is another."""
    key, names, ours = _ACTIVATIONS.get(keys.kind, ("hidden_act", ("silu", "swish"), "swiglu"))
    if keys.get(key) not in names:
        raise keys.refusal(f"{key} {keys.get(key)!r} is not supported ({names[0]!r} is)")
    return ours


def _latent(folder: ModelFolder, keys: Keys, common: dict[str, Any]) -> Config:
    heads, hidden, layers = (common[name] for name in ("heads", "hidden", "layers"))
    nope = keys.size("qk_nope_head_dim", least=0)
    rotated, value = keys.size("qk_rope_head_dim"), keys.size_or_none("v_head_dim") or hidden // heads
    if rotated % 2 or value < 1:
        raise keys.refusal(f"qk_rope_head_dim {rotated} and v_head_dim {value}: not supported")
    scale = (nope + rotated) ** -0.5
    parameters = RopeParameters(keys)
    strength = parameters.number("mscale_all_dim", 0.0, least=0.0, most=100.0)
    if parameters.kind != "default" and strength:
        scale *= rope.yarn_growth(parameters.number("factor", least=LEAST_FACTOR, most=MOST_FACTOR), strength) ** 2
    attention = LatentConfig(
        keys.size_or_none("q_lora_rank"),
        keys.size("kv_lora_rank"),
        nope,
        rotated,
        value,
        scale,
        biases=keys.flag("attention_bias"),
    )
    extra: dict[str, Any] = {"kv_heads": heads, "head_dim": nope + rotated, "latent_attention": attention}
    if keys.kind == "minicpm3":
        extra |= {"rope_half_split": True, **_minicpm3_scales(keys, layers, hidden)}
    elif keys.kind != "deepseek_v2":
        extra["rope_half_split"] = not keys.flag("rope_interleave")
    if keys.kind in _WITH_EXPERTS:
        extra |= {"experts": _experts(keys, layers), "skipped_layers": _predictors(folder, layers, keys)}
    return Config(**common, **extra)


def _minicpm3_scales(keys: Keys, layers: int, hidden: int) -> dict[str, float]:
    depth, base = keys.get("scale_depth"), keys.size_or_none("dim_model_base")
    depth = math.sqrt(layers) if depth is None else keys.number("scale_depth", least=-1e6, most=1e6)
    return {
        "embedding_scale": keys.number("scale_emb", least=-1e6, most=1e6),
        "residual_scale": depth / math.sqrt(layers),
        "logits_divisor": hidden / (base or hidden),
    }


def _experts(keys: Keys, layers: int) -> Experts | None:
    sparse = _sparse_layers(keys, layers)
    if not any(sparse):
        return None
    count, width = keys.size("n_routed_experts", most=MAX_EXPERTS), keys.size("moe_intermediate_size")
    shared = width * keys.size("n_shared_experts", least=0, most=MAX_EXPERTS)
    rule = keys.router(_router_rule(keys), count)
    return Experts(count, width, shared, rule, corrected=rule.scores == "sigmoid", layers=sparse)


def _sparse_layers(keys: Keys, layers: int) -> tuple[bool, ...]:
    """Which layers have experts."""
    if keys.kind == "glm4_moe_lite":
        kinds = keys.get("mlp_layer_types") or ["dense"] + ["sparse"] * (layers - 1)
        if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in ("dense", "sparse") for kind in kinds):
            raise keys.refusal(f"mlp_layer_types must have 'dense' or 'sparse' for each of {layers} layers")
        return tuple(kind == "sparse" for kind in kinds)
    dense = keys.size("first_k_dense_replace", least=0, most=MAX_LAYERS)
    return tuple(i >= dense for i in range(layers))


def _router_rule(keys: Keys) -> RouterRule:
    used = keys.size("num_experts_per_tok")
    scale = keys.number("routed_scaling_factor", least=-1e6, most=1e6)
    if keys.kind == "deepseek_v2":
        # transformers reads neither norm_topk_prob nor, where the method is greedy, the groups.
        method = keys.get("topk_method")
        if method not in ("greedy", "group_limited_greedy"):
            raise keys.refusal(f"topk_method {method!r} is not supported ('greedy' and 'group_limited_greedy' are)")
        groups, kept = (keys.size("n_group"), keys.size("topk_group")) if method == "group_limited_greedy" else (1, 1)
        return RouterRule(used, "softmax", groups, kept, "maximum", scale=scale)
    groups, kept = keys.size("n_group"), keys.size("topk_group")
    group_score = "top_two" if groups > 1 else "maximum"
    return RouterRule(used, "sigmoid", groups, kept, group_score, keys.flag("norm_topk_prob"), scale)


def _predictors(folder: ModelFolder, layers: int, keys: Keys) -> int:
    """The number of multi-token-prediction layers after the last one that the key announces and the folder has."""
    key = "num_nextn_predict_layers"
    announced = 0 if keys.get(key) is None else keys.size(key, least=0, most=MAX_LAYERS)
    return sum(f"model.layers.{i}.eh_proj.weight" in folder.tensors for i in range(layers, layers + announced))


def _check_quantization(keys: Keys) -> None:
    """Refuses quantised weights, except float8 with a scale for each 128 x 128."""
    found = keys.get("quantization_config")
    if found is None:
        return
    if not isinstance(found, dict):
        raise keys.refusal("quantization_config must be an object")
    for name, supported in {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}.items():
        value = found.get(name, "e4m3" if name == "fmt" else None)
        if value != supported:
            raise keys.refusal(f"quantization_config of {name} {value!r} is not supported ({supported!r} is)")
