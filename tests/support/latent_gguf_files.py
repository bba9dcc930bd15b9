"""Small random models with latent attention as GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from support.gguf_model_file import ModelFile

_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    **{f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}
_SIZES = ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")


def write_gguf(
    model: Any, path: Path, *, kind: str = "F32", whole: bool = False, fused: bool = False, plm: bool = False, **changes: Any
) -> Path:
    """The model as a file of architecture deepseek2, deepseek32, glm-dsa, minicpm3 or plm.

    kind: of the weights that are matrices, where their rows fit into its blocks. whole: attn_kv_b unsplit, as in files from
    before April 2025. fused: gate and up of the experts in one tensor. plm: the file's up is the model's gate. changes: of the
    metadata; None leaves a key out.
    """
    config, state = model.config, {name: value.float().numpy() for name, value in model.state_dict().items()}
    compact = config.model_type == "minicpm3"
    sparse = [f"model.layers.{i}.mlp.gate.weight" in state for i in range(config.num_hidden_layers)]
    whole = whole or compact or plm
    of_type = {"minicpm3": "minicpm3", "deepseek_v32": "deepseek32", "glm_moe_dsa": "glm-dsa"}
    architecture = "plm" if plm else of_type.get(config.model_type, "deepseek2")
    file = ModelFile(path, architecture, _keys(config, sparse, whole) | changes, kind)
    file.add("token_embd.weight", state["model.embed_tokens.weight"])
    file.add("output_norm.weight", state["model.norm.weight"])
    if not config.tie_word_embeddings:
        file.add("output.weight", state["lm_head.weight"])
    if compact and config.rope_parameters["rope_type"] == "longrope":
        for name in ("long", "short"):
            file.add(f"rope_factors_{name}.weight", np.array(config.rope_parameters[f"{name}_factor"], np.float32))
    parts = {part: name for part, name in _PARTS.items() if not plm or part != "mlp.up_proj"}
    parts |= {"mlp.gate_proj": "ffn_up"} if plm else {}
    for i in range(config.num_hidden_layers):
        theirs = f"model.layers.{i}."
        layer = {name.removeprefix(theirs): value for name, value in state.items() if name.startswith(theirs)}
        of_layer = {f"{name}.weight": layer[f"{part}.weight"] for part, name in parts.items() if f"{part}.weight" in layer}
        if "self_attn.indexer.k_norm.bias" in layer:
            of_layer["indexer.k_norm.bias"] = layer["self_attn.indexer.k_norm.bias"]
        for name, value in (of_layer | _latent_parts(config, layer, whole) | _expert_parts(layer, fused)).items():
            file.add(f"blk.{i}.{name}", value, exact=name == "ffn_gate_inp.weight")
    return file.write()


def _latent_parts(config: Any, layer: dict[str, np.ndarray], whole: bool) -> dict[str, np.ndarray]:
    """kv_b_proj as a file has it: whole, or keys transposed and values."""
    both = layer["self_attn.kv_b_proj.weight"]
    if whole:
        return {"attn_kv_b.weight": both}
    dn, dv = config.qk_nope_head_dim, config.v_head_dim
    split = both.reshape(config.num_attention_heads, dn + dv, config.kv_lora_rank)
    return {"attn_k_b.weight": split[:, :dn].swapaxes(1, 2), "attn_v_b.weight": split[:, dn:]}


def _expert_parts(layer: dict[str, np.ndarray], fused: bool) -> dict[str, np.ndarray]:
    """The experts of a layer that has some, gate and up in one tensor or in two."""
    if "mlp.experts.gate_up_proj" not in layer:
        return {}
    gate_up, bias = layer["mlp.experts.gate_up_proj"], layer.get("mlp.gate.e_score_correction_bias")
    width = gate_up.shape[1] // 2
    two = {"ffn_gate_exps.weight": gate_up[:, :width], "ffn_up_exps.weight": gate_up[:, width:]}
    experts = {"ffn_gate_up_exps.weight": gate_up} if fused else two
    experts["ffn_down_exps.weight"] = layer["mlp.experts.down_proj"]
    return experts if bias is None else experts | {"exp_probs_b.bias": bias}


def _keys(config: Any, sparse: list[bool], whole: bool) -> dict[str, Any]:
    heads, dn, dr, dv, c = (getattr(config, key) for key in _SIZES)
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": heads,
        "attention.head_count_kv": heads if whole else 1,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "vocab_size": config.vocab_size,
        "attention.kv_lora_rank": c,
        "rope.dimension_count": dr,
    }
    if config.q_lora_rank is not None:
        keys["attention.q_lora_rank"] = config.q_lora_rank
    if config.model_type == "minicpm3":
        return keys | {"attention.key_length": dn + dr}
    if hasattr(config, "index_topk"):
        keys |= {"attention.indexer.head_count": config.index_n_heads, "attention.indexer.key_length": config.index_head_dim}
        keys["attention.indexer.top_k"] = config.index_topk
    if config.model_type == "glm_moe_dsa":
        keys["attention.indexer.types"] = [kind == "full" for kind in config.indexer_types]
    rope = config.rope_parameters
    keys["rope.freq_base"] = float(rope["rope_theta"])
    if whole:
        keys |= {"attention.key_length": dn + dr, "attention.value_length": dv}
    else:
        keys |= {"attention.key_length": c + dr, "attention.value_length": c}
        keys |= {"attention.key_length_mla": dn + dr, "attention.value_length_mla": dv}
    keys["leading_dense_block_count"] = sparse.index(True) if any(sparse) else len(sparse)
    if any(sparse):
        limited = config.model_type != "deepseek_v2" or config.topk_method == "group_limited_greedy"
        keys |= {
            "expert_feed_forward_length": config.moe_intermediate_size,
            "expert_count": config.n_routed_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_shared_count": config.n_shared_experts,
            "expert_weights_scale": float(config.routed_scaling_factor),
            "expert_gating_func": 1 if config.model_type == "deepseek_v2" else 2,
        }
        if limited:
            keys |= {"expert_group_count": config.n_group, "expert_group_used_count": config.topk_group}
        if config.model_type != "deepseek_v2" and config.norm_topk_prob:
            keys["expert_weights_norm"] = True
    if rope["rope_type"] == "yarn":
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": float(rope.get("beta_fast") or 32),
            "rope.scaling.yarn_beta_slow": float(rope.get("beta_slow") or 1),
        }
        if rope.get("mscale_all_dim"):
            keys["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    return keys
