"""Small random models with grouped-query attention as GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from decodestep.families.common.registry import MODEL_TYPES
from support.family_models import VOCABULARY
from support.gguf_model_file import ModelFile

# Those whose rows of queries and keys the converter permutes, so that a pair lies side by side.
_PERMUTED = ("llama", "smollm3", "granite", "mistral3", "arcee")
_NORMS_PLUS_ONE = ("gemma2", "gemma3")
_SCALES = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}  # of Gemma 4
_WINDOWED = ("phi3", "olmo2", "exaone4", "cohere2", "gemma2", "gpt-oss")


def write_gguf(
    model: Any,
    path: Path,
    *,
    kind: str = "F32",
    alignment: int | None = None,
    more: dict[str, Any] | None = None,
    fused: bool = False,
    **changes: Any,
) -> Path:
    """more: tensors beside the model's, by transformers' names; one that begins with "nextn." belongs to the last block. kind:
    of the weights that are matrices, where their rows fit into its blocks. alignment: of the tensors' places, if the file
    shall say so. fused: whether queries, keys and values of a layer that has all three are one tensor. changes: of the
    metadata; None leaves a key out."""
    config = model.config
    state = {name: value.float().numpy() for name, value in (model.state_dict() | (more or {})).items()}
    architecture = MODEL_TYPES[config.model_type].written_as.name
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers + bool(more))
    heads = {"attn_q": config.num_attention_heads, "attn_k": _sizes(config).num_key_value_heads}
    file = ModelFile(path, architecture, _keys(config, architecture) | changes, kind, alignment)
    together: dict[str, dict[str, np.ndarray]] = {}
    for their_name, value in state.items():
        if their_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if their_name.startswith("nextn."):
            file.add(f"blk.{config.num_hidden_layers}.{their_name}.weight", value)
            continue
        if ".experts." in their_name:
            for name, part in _expert_parts(their_name, value, in_turn=architecture == "gpt-oss").items():
                file.add(name, part)
            continue
        if "correction_bias" in their_name:
            file.add(f"blk.{their_name.split('.')[2]}.exp_probs_b.bias", value.reshape(-1))
            continue
        name = _name(names, their_name)
        part = name.split(".")[-2]
        if part in heads and architecture in _PERMUTED:
            value = value.reshape(heads[part], 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
        if architecture in _NORMS_PLUS_ONE and name.endswith("norm.weight"):
            value = value + 1
        if fused and part in ("attn_q", "attn_k", "attn_v"):
            together.setdefault(name.replace(part, "attn_qkv"), {})[part] = value
        else:
            file.add(name, value, exact=part == "ffn_gate_inp")
    for name, parts in together.items():
        whole = {"attn_qkv": np.concatenate([parts[f"attn_{part}"] for part in "qkv"])} if len(parts) == 3 else parts
        for part, value in whole.items():
            file.add(name.replace("attn_qkv", part), value)
    rope = config.rope_parameters
    if architecture == "gemma4":
        width = config.per_layer_config["full_attention"].head_dim
        turned = int(rope["full_attention"]["partial_rotary_factor"] * width // 2)
        file.add("rope_freqs.weight", np.array([1.0] * turned + [1e30] * (width // 2 - turned)))
    for name, value in _rope_tensors(rope.get("full_attention", rope), model).items():
        file.add(name, value)
    return file.write()


def _sizes(config: Any) -> Any:
    """Where the sizes of heads are: those of the first layer, where layers have their own."""
    return config.per_layer_config[0] if config.model_type == "gemma4_text" else config


def _name(names: Any, their_name: str) -> str:
    """The file's, of a part that is a tensor there too."""
    layer, _, own = their_name.removeprefix("model.layers.").partition(".")
    if own in _SCALES:
        return f"blk.{layer}.{_SCALES[own]}"
    suffixes = (".weight", ".bias")
    name = names.get_name(their_name, suffixes)
    return name if name.endswith(suffixes) else f"{name}.weight"


def _expert_parts(their_name: str, value: np.ndarray, *, in_turn: bool) -> dict[str, np.ndarray]:
    """gate_up_proj or down_proj of all experts of a layer, or their biases. in_turn: whether outputs of gate and up take turns,
    and are the last axis."""
    layer, kind = their_name.split(".")[2], "bias" if their_name.endswith("bias") else "weight"
    value = value.swapaxes(1, 2) if in_turn and kind == "weight" else value
    if "down_proj" in their_name:
        return {f"blk.{layer}.ffn_down_exps.{kind}": value}
    halves = (value[:, ::2], value[:, 1::2]) if in_turn else np.split(value, 2, axis=1)
    return {f"blk.{layer}.ffn_{name}_exps.{kind}": half for name, half in zip(("gate", "up"), halves, strict=True)}


def _keys(config: Any, architecture: str) -> dict[str, Any]:
    head_dim = getattr(_sizes(config), "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": _sizes(config).num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": int(head_dim * (rope.get("partial_rotary_factor") or 1)),
        "vocab_size": VOCABULARY,
        "rope.freq_base": float(rope.get("full_attention", rope)["rope_theta"]),
    }
    if architecture in ("cohere2", "command-r"):
        keys |= {"attention.layer_norm_epsilon": float(config.layer_norm_eps), "logit_scale": float(config.logit_scale)}
    else:
        keys["attention.layer_norm_rms_epsilon"] = float(config.rms_norm_eps)
    if architecture in _WINDOWED and getattr(config, "sliding_window", None):
        keys["attention.sliding_window"] = config.sliding_window
    if architecture in ("olmo2", "exaone4") and getattr(config, "sliding_window", None):
        keys["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config.layer_types]
    if architecture == "gemma2":
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            keys[key] = float(getattr(config, key) or 0.0)
    keys |= _rope_scaling(rope.get("full_attention", rope), architecture, config)
    if architecture == "gemma4":
        keys |= _gemma4_keys(config)
    if architecture == "gemma3":
        keys |= {"attention.sliding_window": config.sliding_window}
        keys |= {"attention.sliding_window_pattern": config.layer_types.index("full_attention") + 1}
        keys |= {"rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"])}
    elif config.model_type == "mistral" and config.sliding_window:
        keys |= {"attention.sliding_window": config.sliding_window}
    if architecture == "granite":
        names = {"attention.scale": "attention", "embedding_scale": "embedding", "residual_scale": "residual"}
        keys |= {key: float(getattr(config, f"{name}_multiplier")) for key, name in names.items()}
        keys["logit_scale"] = float(config.logits_scaling)
    return keys | _expert_keys(config, architecture)


def _gemma4_keys(config: Any) -> dict[str, Any]:
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    heads = [config.per_layer_config[i].num_key_value_heads for i in range(config.num_hidden_layers)]
    widths = {kind: config.per_layer_config[kind].head_dim for kind in set(config.layer_types)}
    shared, width = config.num_kv_shared_layers, config.intermediate_size
    double = [width * (1 + (config.use_double_wide_mlp and i >= len(slides) - shared)) for i in range(len(slides))]
    keys: dict[str, Any] = {
        "attention.head_count_kv": heads if min(heads) < max(heads) else heads[0],
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": slides,
        "attention.shared_kv_layers": shared,
        "feed_forward_length": double if min(double) < max(double) else width,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "final_logit_softcapping": float(config.final_logit_softcapping or 0.0),
        "rope.freq_base_swa": float(config.rope_parameters["sliding_attention"]["rope_theta"]),
    }
    for part in ("key", "value"):
        keys[f"attention.{part}_length"] = widths["full_attention"]
        keys[f"attention.{part}_length_swa"] = widths["sliding_attention"]
    return keys | {"rope.dimension_count": widths["full_attention"], "rope.dimension_count_swa": widths["sliding_attention"]}


def _expert_keys(config: Any, architecture: str) -> dict[str, Any]:
    if architecture == "qwen3moe":
        count, used, width = config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size
    elif architecture == "ernie4_5-moe":
        count, used, width = config.moe_num_experts, config.moe_k, config.moe_intermediate_size
    elif architecture == "gemma4" and config.enable_moe_block:
        count, used, width = config.num_experts, config.top_k_experts, config.moe_intermediate_size
    elif architecture == "olmoe":
        count, used, width = config.num_experts, config.num_experts_per_tok, config.intermediate_size
    elif architecture in ("minimax-m2", "gpt-oss") or config.model_type == "mixtral":
        count, used, width = config.num_local_experts, config.num_experts_per_tok, config.intermediate_size
    elif architecture in ("glm4moe", "dots1"):
        count, used, width = config.n_routed_experts, config.num_experts_per_tok, config.moe_intermediate_size
    else:
        return {}
    keys = {"expert_count": count, "expert_used_count": used}
    if architecture not in ("llama", "olmoe"):  # in whose files feed_forward_length is that of an expert
        keys["expert_feed_forward_length"] = width
    if architecture == "ernie4_5-moe":
        keys |= {
            "expert_shared_count": config.moe_num_shared_experts,
            "leading_dense_block_count": config.moe_layer_start_index,
        }
        keys |= {"interleave_moe_layer_step": config.moe_layer_interval}
    if architecture in ("glm4moe", "dots1"):
        keys |= {"expert_shared_count": config.n_shared_experts, "leading_dense_block_count": config.first_k_dense_replace}
        keys |= {"expert_weights_scale": float(config.routed_scaling_factor), "expert_weights_norm": config.norm_topk_prob}
        keys |= {"expert_gating_func": 2}
    return keys


def _rope_scaling(rope: dict[str, Any], architecture: str, config: Any) -> dict[str, Any]:
    """As the converter writes it."""
    keys: dict[str, Any] = {}
    if rope["rope_type"] in ("linear", "yarn"):
        keys = {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        if "attention_factor" in rope:
            keys["rope.scaling.yarn_attn_factor"] = float(rope["attention_factor"])
        if architecture == "mistral3":
            keys |= {"rope.scaling.yarn_log_multiplier": float(rope["mscale_all_dim"])}
            keys |= {"attention.temperature_scale": float(rope["llama_4_scaling_beta"])}
    if rope["rope_type"] == "longrope":  # without its name
        keys["rope.scaling.original_context_length"] = config.original_max_position_embeddings
    if "alpha" in rope:
        width = config.head_dim
        keys["rope.freq_base"] = float(rope["rope_theta"] * rope["alpha"] ** (width / (width - 2)))
    return keys


def _rope_tensors(rope: dict[str, Any], model: Any) -> dict[str, np.ndarray]:
    """The tensors of long-rope, and of the stretch of Llama 3."""
    if rope["rope_type"] == "longrope":
        return {f"rope_factors_{name}.weight": np.array(rope[f"{name}_factor"]) for name in ("short", "long")}
    if rope["rope_type"] == "llama3":
        stretched = model.model.rotary_emb.inv_freq.float().numpy()
        plain = rope["rope_theta"] ** -(np.arange(len(stretched)) / len(stretched))
        return {"rope_freqs.weight": plain / stretched}
    return {}
