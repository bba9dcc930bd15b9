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
_PERMUTED = ("llama", "smollm3", "granite")


def write_gguf(model: Any, path: Path, *, kind: str = "F32", alignment: int | None = None, **changes: Any) -> Path:
    """kind: of the weights that are matrices, where their rows fit into its blocks. alignment: of the tensors' places, if the
    file shall say so. changes: of the metadata; None leaves a key out."""
    config, state = model.config, {name: value.float().numpy() for name, value in model.state_dict().items()}
    architecture = MODEL_TYPES[config.model_type].written_as.name
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    file = ModelFile(path, architecture, _keys(config, architecture) | changes, kind, alignment)
    for their_name, value in state.items():
        if their_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if ".experts." in their_name:
            for name, part in _expert_parts(their_name, value).items():
                file.add(name, part)
            continue
        name = names.get_name(their_name, (".weight", ".bias"))
        part = name.split(".")[-2]
        if part in heads and architecture in _PERMUTED:
            value = value.reshape(heads[part], 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            value = value + 1
        file.add(name, value, exact=part == "ffn_gate_inp")
    return file.write()


def _expert_parts(their_name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    """gate_up_proj or down_proj of all experts of a layer."""
    layer = their_name.split(".")[2]
    if their_name.endswith("down_proj"):
        return {f"blk.{layer}.ffn_down_exps.weight": value}
    gate, up = np.split(value, 2, axis=1)
    return {f"blk.{layer}.ffn_{name}_exps.weight": half for name, half in (("gate", gate), ("up", up))}


def _keys(config: Any, architecture: str) -> dict[str, Any]:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "vocab_size": VOCABULARY,
        "rope.freq_base": float(rope.get("full_attention", rope)["rope_theta"]),
    }
    if architecture == "gemma3":
        keys |= {"attention.sliding_window": config.sliding_window}
        keys |= {"attention.sliding_window_pattern": config.layer_types.index("full_attention") + 1}
        keys |= {"rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"])}
        if rope["full_attention"]["rope_type"] == "linear":
            keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["full_attention"]["factor"])}
    elif config.model_type == "mistral" and config.sliding_window:
        keys |= {"attention.sliding_window": config.sliding_window}
    if architecture == "granite":
        names = {"attention.scale": "attention", "embedding_scale": "embedding", "residual_scale": "residual"}
        keys |= {key: float(getattr(config, f"{name}_multiplier")) for key, name in names.items()}
        keys["logit_scale"] = float(config.logits_scaling)
    if architecture == "qwen3moe":
        keys |= {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}
        keys |= {"expert_feed_forward_length": config.moe_intermediate_size}
    return keys
