"""Small random models of the families that are loaded: by transformers, and as folders."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

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
_DENSE_HYBRID = {
    **_FOUR,
    "layer_types": ["attention"] * 3,
    "num_local_experts": 0,
    "shared_intermediate_size": 72,
    "mamba_n_heads": 2,  # which has to divide the width, though there are no such layers
}
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
    "granitemoehybrid": [
        {
            **_DENSE_HYBRID,
            "hidden_size": 64,
            "shared_intermediate_size": 96,
            "position_embedding_type": "rope",
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.11,
            "logits_scaling": 7.0,
            "rope_parameters": yarn(None, None),
            "tie_word_embeddings": True,
        },
        {**_DENSE_HYBRID, "attention_bias": True, "attention_multiplier": 0.4, "position_embedding_type": "nope"},
        {
            **_DENSE_HYBRID,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "hidden_size": 120,
            "attention_bias": True,
            "position_embedding_type": "rope",
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.7,
        },
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
    "granitemoehybrid": "GraniteMoeHybrid",
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


def config_class(family: str) -> Any:
    """transformers' class of a family's config.json."""
    place = _FOLDERS.get(family, family)
    suffix = "TextConfig" if family.endswith("_text") else "Config"
    return getattr(import_module(f"transformers.models.{place}.configuration_{place}"), f"{CLASSES[family]}{suffix}")


def model_of(family: str, size: int, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A model of transformers in evaluation mode whose weights are large enough for every part to matter."""
    place = _FOLDERS.get(family, family)
    modelling = import_module(f"transformers.models.{place}.modeling_{place}")
    config = config_class(family)(**{**_SMALL, **SIZES[family][size], **changes})
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
    from peers.llama_cpp_model import LlamaCpp

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


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the largest magnitude of a row."""
    return float((np.abs(ours - theirs).max(axis=1) / np.abs(theirs).max(axis=1)).max())
