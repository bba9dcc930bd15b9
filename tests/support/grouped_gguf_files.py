"""Small random models with grouped-query attention as GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from support.family_models import VOCABULARY
from support.gguf_model_file import ModelFile

ARCHITECTURES = {"mistral": "llama", "ministral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}
# Those whose rows of queries and keys the converter permutes, so that a pair lies side by side.
_PERMUTED = ("llama", "smollm3", "granite")
_PARTS = {
    "input_layernorm": "attn_norm",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}
_NORMS = {"post_attention_layernorm": "ffn_norm"}
_GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_gguf(model: Any, path: Path, *, kind: str = "F32", alignment: int | None = None, **changes: Any) -> Path:
    """kind: of the weights that are matrices, where their rows fit into its blocks. alignment: of the tensors' places, if the
    file shall say so. changes: of the metadata; None leaves a key out."""
    config, state = model.config, {name: value.float().numpy() for name, value in model.state_dict().items()}
    architecture = ARCHITECTURES.get(config.model_type, config.model_type)
    gemma = architecture == "gemma3"
    file = ModelFile(path, architecture, _keys(config, architecture) | changes, kind, alignment)

    def add(name: str, value: np.ndarray, *, exact: bool = False) -> None:
        file.add(name, value + 1 if gemma and name.endswith("norm.weight") else value, exact=exact)

    add("token_embd.weight", state["model.embed_tokens.weight"])
    add("output_norm.weight", state["model.norm.weight"])
    if not config.tie_word_embeddings:
        add("output.weight", state["lm_head.weight"])
    for i in range(config.num_hidden_layers):
        theirs = f"model.layers.{i}."
        layer = {name.removeprefix(theirs): value for name, value in state.items() if name.startswith(theirs)}
        for name, value in (_layer_parts(config, architecture, layer) | _expert_parts(layer)).items():
            add(f"blk.{i}.{name}", value, exact=name == "ffn_gate_inp.weight")
    return file.write()


def _layer_parts(config: Any, architecture: str, layer: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    parts = {}
    for part, name in (_PARTS | (_GEMMA_NORMS if architecture == "gemma3" else _NORMS)).items():
        for suffix in ("weight", "bias"):
            value = layer.get(f"{part}.{suffix}")
            if value is None:
                continue
            if name in heads and architecture in _PERMUTED:
                value = value.reshape(heads[name], 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
            parts[f"{name}.{suffix}"] = value
    return parts


def _expert_parts(layer: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The experts of a layer that has some."""
    if "mlp.experts.gate_up_proj" not in layer:
        return {}
    gate, up = np.split(layer["mlp.experts.gate_up_proj"], 2, axis=1)
    down = layer["mlp.experts.down_proj"]
    return {f"ffn_{name}_exps.weight": value for name, value in (("gate", gate), ("up", up), ("down", down))}


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
