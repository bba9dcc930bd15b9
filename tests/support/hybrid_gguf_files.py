"""Small random models with layers that have a state as GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from support.family_models import VOCABULARY
from support.gguf_model_file import ModelFile

_ARCHITECTURES = {
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "granitemoehybrid": "granitehybrid",
}
_TILED = ("qwen35", "qwen35moe")
_QWEN = ("qwen3next", *_TILED)
_MAMBA = ("granitehybrid", "nemotron_h", "nemotron_h_moe")
_ATTENTION = ("full_attention", "attention")


def architecture_of(config: Any) -> str:
    if config.model_type == "nemotron_h":
        return "nemotron_h_moe" if "moe" in config.layers_block_type else "nemotron_h"
    return _ARCHITECTURES[config.model_type]


def write_gguf(model: Any, path: Path, *, kind: str = "F32", unsplit: bool = False, **changes: Any) -> Path:
    """unsplit: whether Qwen3-Next's queries, keys, values and gates are one tensor, as in older files. changes: of the metadata;
    None leaves a key out."""
    config, architecture = model.config, architecture_of(model.config)
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    file = ModelFile(path, architecture, _keys(config, architecture) | changes, kind)
    for their_name, tensor in model.state_dict().items():
        if their_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for name, value in _parts(their_name, tensor.float().numpy(), config, architecture, unsplit).items():
            found = names.get_name(name, (".weight", ".bias")) or name
            suffix = "" if found.endswith((".weight", ".bias", "ssm_a", "ssm_d")) else ".weight"
            file.add(found + suffix, value, exact="ffn_gate_inp" in found or "conv" in found)
    return file.write()


def _parts(name: str, value: np.ndarray, config: Any, architecture: str, unsplit: bool) -> dict[str, np.ndarray]:
    """The file's tensors of one of transformers', under its names or the file's."""
    if name == "lm_head.weight":
        return {"output.weight": value}
    layer = name.split(".")[2] if ".layers." in name else ""
    block = f"blk.{layer}"
    if "correction_bias" in name or name.endswith("expert_bias"):
        return {f"{block}.exp_probs_b.bias": value}
    if ".experts." in name:
        return _expert_parts(name, value, block)
    if architecture == "granitehybrid" and "mlp.input_linear" in name:
        suffix = "_shexp" if config.num_local_experts else ""
        return {
            f"{block}.ffn_{part}{suffix}.weight": half for part, half in zip(("gate", "up"), np.split(value, 2), strict=True)
        }
    if architecture == "granitehybrid" and "mlp.output_linear" in name:
        return {f"{block}.ffn_down{'_shexp' if config.num_local_experts else ''}.weight": value}
    if architecture == "granitehybrid" and "router" in name:
        return {f"{block}.ffn_gate_inp.weight": value}
    if architecture == "granitehybrid" and name.split(".")[-2] in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        value = value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
    if architecture in _QWEN:
        value = _of_delta(name, value, config) if architecture in _TILED else value
        if name.endswith("norm.weight") and "linear_attn" not in name:
            value = value + 1
        if "in_proj_qkvz" in name:
            return {f"{block}.ssm_in.weight": value} if unsplit else _split(value, config, block)
        if "shared_expert_gate" in name:
            value = value.reshape(-1)
    if "conv" in name and value.ndim == 3:
        value = value[:, 0]
    if architecture in _MAMBA and name.endswith(("A_log", ".D")):
        value = value[:, None]
    if architecture in _MAMBA and ".norm.weight" in name and name.count(".") > 4:
        value = value.reshape(getattr(config, "mamba_n_groups", None) or config.n_groups, -1)
    if name.endswith("A_log"):
        return {f"{block}.ssm_a": -np.exp(value)}
    if name.endswith("dt_bias"):
        return {f"{block}.ssm_dt.bias": value}
    if name.endswith(".D"):
        return {f"{block}.ssm_d": value}
    return {name: value} if architecture not in ("nemotron_h", "nemotron_h_moe") else {_older(name): value}


def _older(name: str) -> str:
    """The name of before transformers 5, which the package's tables have."""
    return name.replace("model.", "backbone.", 1) if name.startswith("model.") else name


def _expert_parts(name: str, value: np.ndarray, block: str) -> dict[str, np.ndarray]:
    if "gate_up" in name or "input_linear" in name:
        halves = np.split(value, 2, axis=1)
        return {f"{block}.ffn_{part}_exps.weight": half for part, half in zip(("gate", "up"), halves, strict=True)}
    return {f"{block}.ffn_{'up' if 'up_proj' in name else 'down'}_exps.weight": value}


def _split(value: np.ndarray, config: Any, block: str) -> dict[str, np.ndarray]:
    """Rows by key heads as those of all queries, all keys, all values; and of gates."""
    members = config.linear_num_value_heads // config.linear_num_key_heads
    key, values = config.linear_key_head_dim, members * config.linear_value_head_dim
    heads = value.reshape(config.linear_num_key_heads, -1, value.shape[1])
    parts = np.split(heads, np.cumsum([key, key, values]), axis=1)
    query, keys, of_values, gate = (part.reshape(-1, value.shape[1]) for part in parts)
    return {f"{block}.attn_qkv.weight": np.concatenate([query, keys, of_values]), f"{block}.attn_gate.weight": gate}


def _of_delta(name: str, value: np.ndarray, config: Any) -> np.ndarray:
    """With value heads that share a key head apart."""
    keys, heads, width = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim

    def tiled(rows: np.ndarray, size: int) -> np.ndarray:
        return rows.reshape(keys, heads // keys, size, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)

    if "linear_attn" not in name or name.endswith("linear_attn.norm.weight"):
        return value
    if "out_proj" in name:
        return tiled(value.T, width).T
    if "in_proj_qkv" in name or "conv1d" in name:
        first = 2 * keys * config.linear_key_head_dim
        return np.concatenate([value[:first], tiled(value[first:], width)])
    return tiled(value, width if "in_proj_z" in name else 1)


def _keys(config: Any, architecture: str) -> dict[str, Any]:
    layers = config.num_hidden_layers
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys: dict[str, Any] = {
        "block_count": layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.layer_norm_rms_epsilon": float(
            next(getattr(config, key) for key in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon") if hasattr(config, key))
        ),
        "vocab_size": VOCABULARY,
    }
    if architecture in _QWEN:
        return keys | _qwen_keys(config, architecture, head_dim)
    kinds = config.layers_block_type if config.model_type == "nemotron_h" else config.layer_types
    keys["attention.head_count_kv"] = [config.num_key_value_heads if kind in _ATTENTION else 0 for kind in kinds]
    if architecture in ("lfm2", "lfm2moe"):
        keys |= {"shortconv.l_cache": config.conv_L_cache, "rope.freq_base": float(config.rope_parameters["rope_theta"])}
        if architecture == "lfm2moe":
            keys |= {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}
            keys |= {"expert_feed_forward_length": config.moe_intermediate_size, "expert_gating_func": 2}
            return keys | {
                "leading_dense_block_count": config.num_dense_layers,
                "feed_forward_length": config.intermediate_size,
            }
        width = config.intermediate_size
        if config.block_auto_adjust_ff_dim:
            width = int(config.block_ffn_dim_multiplier * int(2 * width / 3))
            width = -(-width // config.block_multiple_of) * config.block_multiple_of
        return keys | {"feed_forward_length": width}
    if architecture == "granitehybrid":
        return keys | _granite_keys(config)
    return keys | _nemotron_keys(config, kinds, head_dim)


def _qwen_keys(config: Any, architecture: str, head_dim: int) -> dict[str, Any]:
    rope = config.rope_parameters
    keys: dict[str, Any] = {
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.recurrent_layers": [kind == "linear_attention" for kind in config.layer_types],
        "rope.dimension_count": int(head_dim * rope["partial_rotary_factor"]),
        "rope.freq_base": float(rope["rope_theta"]),
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
    }
    if architecture in _TILED:
        keys["rope.dimension_sections"] = [2, 1, 1, 0]
    if hasattr(config, "num_experts"):
        keys |= {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}
        keys |= {"expert_feed_forward_length": config.moe_intermediate_size}
        keys |= {"expert_shared_feed_forward_length": config.shared_expert_intermediate_size}
    return keys | {"feed_forward_length": getattr(config, "intermediate_size", None) or config.moe_intermediate_size}


def _granite_keys(config: Any) -> dict[str, Any]:
    names = {"attention.scale": "attention", "embedding_scale": "embedding", "residual_scale": "residual"}
    keys: dict[str, Any] = {key: float(getattr(config, f"{name}_multiplier")) for key, name in names.items()}
    keys |= {
        "logit_scale": float(config.logits_scaling),
        "rope.scaling.finetuned": config.position_embedding_type == "rope",
        "rope.dimension_count": config.hidden_size // config.num_attention_heads,
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.state_size": config.mamba_d_state,
        "ssm.group_count": config.mamba_n_groups,
        "ssm.inner_size": config.mamba_n_heads * config.mamba_d_head,
        "ssm.time_step_rank": config.mamba_n_heads,
        "feed_forward_length": config.intermediate_size if config.num_local_experts else config.shared_intermediate_size,
    }
    if config.num_local_experts:
        keys |= {"expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok}
        keys |= {"expert_shared_feed_forward_length": config.shared_intermediate_size}
    return keys


def _nemotron_keys(config: Any, kinds: list[str], head_dim: int) -> dict[str, Any]:
    mixture = "moe" in kinds
    width, block = (config.moe_intermediate_size, "moe") if mixture else (config.intermediate_size, "mlp")
    keys: dict[str, Any] = {
        "attention.layer_norm_epsilon": float(config.layer_norm_epsilon),
        "attention.layer_norm_rms_epsilon": None,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": config.hidden_size // config.num_attention_heads,  # which nothing reads
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.state_size": config.ssm_state_size,
        "ssm.group_count": config.n_groups,
        "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim,
        "ssm.time_step_rank": config.mamba_num_heads,
        "feed_forward_length": [width if kind == block else 0 for kind in kinds],
    }
    if mixture:
        keys |= {"expert_count": config.n_routed_experts, "expert_used_count": config.num_experts_per_tok}
        keys |= {"expert_feed_forward_length": width, "expert_shared_count": 1, "expert_group_count": config.n_group}
        keys |= {"expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size}
        keys |= {"expert_weights_norm": config.norm_topk_prob, "moe_latent_size": config.moe_latent_size}
        keys |= {"expert_weights_scale": float(config.routed_scaling_factor)}
    return keys
