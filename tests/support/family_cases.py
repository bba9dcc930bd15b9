"""The families of which small models are tested: three sizes of each, and what can be done with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Cases:
    """A model_type.

    class_name, place: of transformers' class and its folder, if that has another name than the model_type.
    sizes: what is not as in `family_models.SMALL`. native: those that the native step takes. in_gguf: those that GGUF has keys
    for. written: one that is written as a GGUF file, with changes. read_alike: whether llama.cpp computes the same from it.
    """

    class_name: str
    sizes: list[dict[str, Any]]
    place: str | None = None
    native: tuple[int, ...] = ()
    in_gguf: tuple[int, ...] = ()
    written: tuple[int, dict[str, Any]] = field(default_factory=lambda: (0, {}))
    read_alike: bool = True


SAME_CLASSES = {"kimi_k2": "deepseek_v3"}  # of transformers
FILES_ALONE = ("plm",)  # the names of GGUF files of families that it lacks
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


def linear(factor: float, theta: float = 500.0) -> dict[str, Any]:
    return {"rope_type": "linear", "rope_theta": theta, "factor": factor}


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
CASES = {
    "llama": Cases(
        "Llama",
        [
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
        written=(1, {}),
    ),
    "qwen2": Cases(
        "Qwen2",
        [
            {**_FOUR, "hidden_size": 64},
            {**_FOUR, "use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1, "tie_word_embeddings": True},
            {**_FOUR, "hidden_size": 96, "intermediate_size": 96, "rope_parameters": yarn(None, None)},
        ],
        native=(2,),
        in_gguf=(0,),
        written=(2, {}),
    ),
    "qwen3": Cases(
        "Qwen3",
        [
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
        native=(2,),
        in_gguf=(2,),
        written=(2, {}),
    ),
    "qwen3_moe": Cases(
        "Qwen3Moe",
        [
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
        native=(0,),
        in_gguf=(0,),
    ),
    "olmo2": Cases(
        "Olmo2",
        [
            {**_FOUR, "hidden_size": 64, "intermediate_size": 96},
            {**_FOUR, "head_dim": 10, "attention_bias": True, "tie_word_embeddings": True, "rope_parameters": yarn(None, None)},
            {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 96, "intermediate_size": 64},
        ],
        native=(0, 2),
        in_gguf=(0, 2),
        written=(2, {}),
    ),
    "mistral": Cases(
        "Mistral",
        [
            {**_FOUR, "head_dim": 16, "sliding_window": None},
            {**_FOUR, "head_dim": 20, "sliding_window": 33},
            {**_FOUR, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96, "sliding_window": 16},
        ],
        native=(2,),
        in_gguf=(0, 1),
        written=(1, {}),
        read_alike=False,
    ),
    "ministral": Cases(
        "Ministral",
        [
            {**_FOUR, "head_dim": 16, "sliding_window": 12, "layer_types": _TYPES},
            {**_FOUR, "head_dim": 8, "sliding_window": 50},
            {**_FOUR, "head_dim": 24, "hidden_size": 64, "intermediate_size": 64, "sliding_window": 100, "layer_types": _TYPES},
        ],
        native=(2,),
        written=(1, {"rope_parameters": yarn(None, None)}),
        read_alike=False,
    ),
    "smollm3": Cases(
        "SmolLM3",
        [
            {**_FOUR, "hidden_size": 64, "num_hidden_layers": 5, "intermediate_size": 96},
            {
                **_FOUR,
                "no_rope_layers": [1, 0, 0],
                "use_sliding_window": True,
                "sliding_window": 24,
                "tie_word_embeddings": False,
            },
            {**_FOUR, "no_rope_layer_interval": 2, "attention_bias": True, "mlp_bias": True},
        ],
        native=(0,),
        in_gguf=(0,),
    ),
    "granite": Cases(
        "Granite",
        [
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
        native=(0, 2),
        in_gguf=(0, 2),
        written=(2, {"rope_parameters": linear(2.0)}),
    ),
    "granitemoehybrid": Cases(
        "GraniteMoeHybrid",
        [
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
        native=(0,),
        written=(1, {}),
    ),
    "gemma3_text": Cases(
        "Gemma3",
        [
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
        native=(0, 2),
        in_gguf=(0, 2),
        place="gemma3",
    ),
    "deepseek_v2": Cases(
        "DeepseekV2",
        [
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
        in_gguf=(0, 1),
        written=(1, {}),
        read_alike=False,
    ),
    "deepseek_v3": Cases(
        "DeepseekV3",
        [
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
        in_gguf=(0, 1),
    ),
    "glm4_moe_lite": Cases(
        "Glm4MoeLite",
        [
            {**_ONE, "qk_nope_head_dim": 24, "v_head_dim": 20},
            {**_GROUPS, "mlp_layer_types": ["sparse", "dense", "sparse"]},
            {**_ONE, "num_hidden_layers": 2, "rope_parameters": yarn(1.0, 0.7), "attention_bias": True},
        ],
        in_gguf=(0,),
    ),
    "youtu": Cases(
        "Youtu",
        [
            {},
            {"q_lora_rank": None, "tie_word_embeddings": False},
            {"v_head_dim": 8, "qk_rope_head_dim": 4, "kv_lora_rank": 17},
        ],
        in_gguf=(0, 1, 2),
        written=(0, {"rope_interleave": False}),
    ),
    "minicpm3": Cases(
        "MiniCPM3",
        [
            {"rope_parameters": longrope(512)},
            {"rope_parameters": longrope(100), "scale_emb": 6, "dim_model_base": 16, "mlp_bias": True, "attention_bias": True},
            {
                "scale_depth": None,
                "dim_model_base": None,
                "v_head_dim": None,
                "tie_word_embeddings": False,
                "q_lora_rank": None,
            },
        ],
        in_gguf=(0,),
        written=(0, {"dim_model_base": 256, "v_head_dim": 16, "rope_parameters": longrope(100)}),
        read_alike=False,
    ),
}
