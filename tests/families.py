"""Small random checkpoints of every family with latent attention: by transformers, as folders and as GGUF files."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

VOCABULARY = 300
_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": 297,
    "eos_token_id": 298,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_EXPERTS = {"moe_intermediate_size": 24, "n_routed_experts": 7, "num_experts_per_tok": 3, "n_shared_experts": 1}
_ONE = {**_EXPERTS, "n_group": 1, "topk_group": 1}
_GROUPS = {**_EXPERTS, "n_routed_experts": 12, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}


def yarn(mscale: float | None, all_dim: float | None, **more: Any) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        **({} if mscale is None else {"mscale": mscale}),
        **({} if all_dim is None else {"mscale_all_dim": all_dim}),
        **more,
    }


def longrope(original: int, **more: Any) -> dict[str, Any]:
    short, long = (np.linspace(1, top, 4).tolist() for top in (1.3, 4.0))
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
        **more,
    }


_FOUR = {"num_attention_heads": 4, "num_key_value_heads": 2}
_MOE = {"moe_intermediate_size": 32}
_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
_LOCAL = {
    "full_attention": {"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
_GEMMA = {**_FOUR, "layer_types": _TYPES, "sliding_window": 20, "rope_parameters": _LOCAL, "tie_word_embeddings": True}
# Windows below and above the 16 positions of a page; heads of 24 values, which the native step pads, and of 10.
GROUPED: dict[str, list[dict[str, Any]]] = {
    "qwen2": [
        {**_FOUR, "hidden_size": 64},
        {**_FOUR, "use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1, "tie_word_embeddings": True},
        {**_FOUR, "hidden_size": 96, "intermediate_size": 96, "rope_parameters": yarn(None, None)},
    ],
    "qwen3": [
        {**_FOUR, "head_dim": 16},
        {
            **_FOUR,
            "head_dim": 10,
            "attention_bias": True,
            "use_sliding_window": True,
            "layer_types": _TYPES,
            "sliding_window": 7,
        },
        {**_FOUR, "head_dim": 24, "hidden_size": 64, "intermediate_size": 96, "tie_word_embeddings": True},
    ],
    "qwen3_moe": [
        {**_FOUR, **_MOE, "head_dim": 16, "num_experts": 7, "num_experts_per_tok": 3, "norm_topk_prob": True},
        {
            **_FOUR,
            "head_dim": 8,
            "moe_intermediate_size": 24,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 30,
        },
        {**_FOUR, **_MOE, "head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 2},
    ],
    "mistral": [
        {**_FOUR, "head_dim": 16, "sliding_window": None},
        {**_FOUR, "head_dim": 20, "sliding_window": 33},
        {**_FOUR, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96, "sliding_window": 16},
    ],
    "ministral": [
        {**_FOUR, "head_dim": 16, "sliding_window": 12, "layer_types": _TYPES},
        {**_FOUR, "head_dim": 8, "sliding_window": 50},
        {**_FOUR, "head_dim": 24, "hidden_size": 64, "intermediate_size": 64, "sliding_window": 100, "layer_types": _TYPES},
    ],
    "smollm3": [
        {**_FOUR, "hidden_size": 64, "num_hidden_layers": 5, "intermediate_size": 96},
        {**_FOUR, "no_rope_layers": [1, 0, 0], "use_sliding_window": True, "sliding_window": 24, "tie_word_embeddings": False},
        {**_FOUR, "no_rope_layer_interval": 2, "attention_bias": True, "mlp_bias": True},
    ],
    "granite": [
        {
            **_FOUR,
            "hidden_size": 64,
            "intermediate_size": 96,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.11,
            "logits_scaling": 7.0,
        },
        {**_FOUR, "attention_bias": True, "mlp_bias": True, "attention_multiplier": 0.4, "tie_word_embeddings": True},
        {**_FOUR, "attention_bias": True, "hidden_size": 96, "intermediate_size": 64, "attention_multiplier": 0.2},
    ],
    "gemma3_text": [
        {**_GEMMA, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96, "query_pre_attn_scalar": 32},
        {**_GEMMA, "head_dim": 24, "query_pre_attn_scalar": 50, "attention_bias": True, "sliding_window": 9},
        {
            **_GEMMA,
            "head_dim": 256,
            "hidden_size": 64,
            "intermediate_size": 64,
            "query_pre_attn_scalar": 256,
            "num_hidden_layers": 2,
            "layer_types": _TYPES[:2],
        },
    ],
}


# By family: the names of transformers' classes, and three sizes each.
CLASSES = {
    "llama": "Llama",
    "deepseek_v2": "DeepseekV2",
    "deepseek_v3": "DeepseekV3",
    "glm4_moe_lite": "Glm4MoeLite",
    "youtu": "Youtu",
    "minicpm3": "MiniCPM3",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3Moe",
    "mistral": "Mistral",
    "ministral": "Ministral",
    "smollm3": "SmolLM3",
    "granite": "Granite",
    "gemma3_text": "Gemma3",
}
_FOLDERS = {"gemma3_text": "gemma3"}
SIZES: dict[str, list[dict[str, Any]]] = {
    "deepseek_v2": [
        {**_EXPERTS, "q_lora_rank": None, "first_k_dense_replace": 1, "rope_parameters": yarn(0.707, 0.707)},
        {
            **_GROUPS,
            "topk_method": "group_limited_greedy",
            "first_k_dense_replace": 0,
            "n_shared_experts": 2,
            "routed_scaling_factor": 16.0,
            "rope_parameters": yarn(1.0, 1.0, beta_fast=1, beta_slow=1),
        },
        {**_EXPERTS, "first_k_dense_replace": 2, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ],
    "deepseek_v3": [
        {**_GROUPS, "first_k_dense_replace": 1, "rope_parameters": yarn(1.0, 1.0), "v_head_dim": 20},
        {**_ONE, "q_lora_rank": None, "first_k_dense_replace": 1, "routed_scaling_factor": 2.446, "rms_norm_eps": 1e-2},
        {
            **_ONE,
            "rope_interleave": False,
            "attention_bias": True,
            "norm_topk_prob": False,
            "first_k_dense_replace": 0,
            "rope_parameters": yarn(None, None),
        },
    ],
    "glm4_moe_lite": [
        {**_ONE, "qk_nope_head_dim": 24, "v_head_dim": 20},
        {**_GROUPS, "mlp_layer_types": ["sparse", "dense", "sparse"]},
        {**_ONE, "num_hidden_layers": 2, "rope_parameters": yarn(1.0, 0.7), "attention_bias": True},
    ],
    "youtu": [
        {},
        {"q_lora_rank": None, "tie_word_embeddings": False},
        {"v_head_dim": 8, "qk_rope_head_dim": 4, "kv_lora_rank": 17},
    ],
    "minicpm3": [
        {"rope_parameters": longrope(512)},
        {"rope_parameters": longrope(100), "scale_emb": 6, "dim_model_base": 16, "mlp_bias": True, "attention_bias": True},
        {"scale_depth": None, "dim_model_base": None, "v_head_dim": None, "tie_word_embeddings": False, "q_lora_rank": None},
    ],
    **GROUPED,
    "llama": [
        {"head_dim": 16, "num_attention_heads": 4},
        {
            "head_dim": 8,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        {"head_dim": 8, "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}},
    ],
}


# Sizes that fill the native step's vectors, in place of those of size 0.
_WIDE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "q_lora_rank": 32,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
ALIGNED = {
    "deepseek_v2": {**_WIDE, "moe_intermediate_size": 32, "q_lora_rank": None},
    "deepseek_v3": {**_WIDE, "moe_intermediate_size": 32},
    "minicpm3": {**_WIDE, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
}


def model_of(family: str, size: int, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A model of transformers in evaluation mode whose weights are large enough for every part to matter."""
    place = _FOLDERS.get(family, family)
    settings = import_module(f"transformers.models.{place}.configuration_{place}")
    modelling = import_module(f"transformers.models.{place}.modeling_{place}")
    suffix = "TextConfig" if family.endswith("_text") else "Config"
    config = getattr(settings, f"{CLASSES[family]}{suffix}")(**{**_SMALL, **SIZES[family][size], **changes})
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(modelling, f"{CLASSES[family]}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" in name or "embed_scale" in name or not parameter.is_floating_point():
                continue
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif "embed_tokens" in name:
                parameter.normal_()
            elif "bias" in name:
                parameter.normal_(0, 0.2)
            elif parameter.dim() > 1:
                parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
    return model.to(dtype)


def save(model: Any, path: Path, **options: Any) -> Path:
    """The model as a folder, with a tokenizer of bytes."""
    model.save_pretrained(path, **options)
    write_tokenizer(path)
    return path


def write_tokenizer(path: Path, template: str | None = "{{ messages[0].content }}") -> None:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*letters, "ab", "abc"])}
    vocabulary |= {f"<{i}>": i for i in range(len(vocabulary), 297)}
    engine = Tokenizer(BPE(vocabulary, [("a", "b"), ("ab", "c")]))
    engine.pre_tokenizer, engine.decoder = ByteLevel(add_prefix_space=False), Decoder()
    engine.add_special_tokens([AddedToken(name, special=True) for name in ("<bos>", "<eos>", "<pad>")])
    engine.save(str(path / "tokenizer.json"))
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": template}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


def logits_of(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(ids)[None]).logits[0].float().numpy()


def llama_cpp_logits_of(path: Path, ids: np.ndarray) -> np.ndarray:
    from llama_cpp_model import LlamaCpp

    peer = LlamaCpp(path, 256, 1, flash_attention=False)
    try:
        return peer.evaluate(ids, 0, every=True)
    finally:
        peer.close()


def greedy_of(model: Any, ids: list[int], count: int) -> list[int]:
    """The tokens that transformers' cached greedy search adds."""
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False, eos_token_id=None, use_cache=True)
    return out[0, len(ids) :].tolist()


def write_gguf(
    model: Any, path: Path, *, kind: str = "F32", whole: bool = False, fused: bool = False, plm: bool = False, **changes: Any
) -> Path:
    """The model as a file of architecture deepseek2, minicpm3 or plm.

    kind: of the weights that are matrices, where their rows fit into its blocks. whole: attn_kv_b unsplit, as in files from
    before April 2025. fused: gate and up of the experts in one tensor. plm: the file's up is the model's gate. changes: of the
    metadata; None leaves a key out.
    """
    config, state = model.config, {name: value.float().numpy() for name, value in model.state_dict().items()}
    compact = config.model_type == "minicpm3"
    architecture = "minicpm3" if compact else "plm" if plm else "deepseek2"
    writer = gguf.GGUFWriter(path, architecture)
    sparse = [f"model.layers.{i}.mlp.gate.weight" in state for i in range(config.num_hidden_layers)]
    whole = whole or compact or plm
    keys = _keys(config, sparse, whole) | changes
    for key, value in keys.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        if value is not None:
            add[type(value)](key if "." in key and key.startswith(("general", "tokenizer")) else f"{architecture}.{key}", value)
    tokenizer_keys(writer)
    type_ = gguf.GGMLQuantizationType[kind]

    def add_tensor(name: str, value: np.ndarray, exact: bool = False) -> None:
        blocks = gguf.GGML_QUANT_SIZES[type_][0]
        if exact or value.ndim == 1 or value.shape[-1] % blocks or kind == "F32":
            writer.add_tensor(name, np.ascontiguousarray(value, np.float32))
        else:
            writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(value, np.float32), type_), raw_dtype=type_)

    add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    add_tensor("output_norm.weight", state["model.norm.weight"])
    if not config.tie_word_embeddings:
        add_tensor("output.weight", state["lm_head.weight"])
    if compact and config.rope_parameters["rope_type"] == "longrope":
        for name in ("long", "short"):
            add_tensor(f"rope_factors_{name}.weight", np.array(config.rope_parameters[f"{name}_factor"], np.float32))
    parts = {part: name for part, name in _PARTS.items() if not plm or part != "mlp.up_proj"}
    parts |= {"mlp.gate_proj": "ffn_up"} if plm else {}
    for i in range(config.num_hidden_layers):
        theirs = f"model.layers.{i}."
        layer = {name.removeprefix(theirs): value for name, value in state.items() if name.startswith(theirs)}
        of_layer = {f"{name}.weight": layer[f"{part}.weight"] for part, name in parts.items() if f"{part}.weight" in layer}
        for name, value in (of_layer | _latent_parts(config, layer, whole) | _expert_parts(layer, fused)).items():
            add_tensor(f"blk.{i}.{name}", value, exact=name == "ffn_gate_inp.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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


_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    **{f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}


_SIZES = ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")


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


def tokenizer_keys(writer: Any) -> None:
    letters = [chr(b) if 33 <= b <= 126 else f"<{b}>" for b in range(VOCABULARY - 4)] + ["ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*letters, "<bos>", "<eos>", "<pad>"])
    writer.add_token_types([1] * (VOCABULARY - 3) + [3] * 3)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(VOCABULARY - 3)
    writer.add_eos_token_id(VOCABULARY - 2)


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the largest magnitude of a row."""
    return float((np.abs(ours - theirs).max(axis=1) / np.abs(theirs).max(axis=1)).max())
