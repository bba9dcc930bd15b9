"""The defaults of transformers' config classes for missing keys of config.json, by family."""

from __future__ import annotations

from typing import Any

from decodestep.families.grouped_defaults import GROUPED_DEFAULTS

_LATENT: dict[str, Any] = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
_LATENT |= {"v_head_dim": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu"}
_LATENT |= {"attention_bias": False, "mlp_bias": False, "rope_interleave": True}
_V3 = _LATENT | {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "max_position_embeddings": 4096,
    "num_nextn_predict_layers": 1,
}
# By model_type: the defaults of transformers' classes.
DEFAULTS: dict[str, dict[str, Any]] = {
    **GROUPED_DEFAULTS,
    "deepseek_v2": _LATENT
    | {
        "vocab_size": 102400,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "moe_intermediate_size": 1407,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "routed_scaling_factor": 1.0,
        "topk_method": "greedy",
        "first_k_dense_replace": 0,
        "max_position_embeddings": 2048,
    },
    "deepseek_v3": _V3,
    "kimi_k2": _V3,
    "glm4_moe_lite": _LATENT
    | {
        "vocab_size": 154880,
        "hidden_size": 2048,
        "intermediate_size": 10240,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 47,
        "num_attention_heads": 20,
        "n_shared_experts": 1,
        "n_routed_experts": 64,
        "routed_scaling_factor": 1.8,
        "q_lora_rank": 768,
        "v_head_dim": 256,
        "qk_nope_head_dim": 192,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "max_position_embeddings": 202752,
        "rms_norm_eps": 1e-5,
    },
    "youtu": _LATENT
    | {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
    "minicpm3": _LATENT
    | {
        "vocab_size": 73448,
        "hidden_size": 2560,
        "intermediate_size": 6400,
        "num_hidden_layers": 62,
        "num_attention_heads": 40,
        "kv_lora_rank": 256,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": None,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    },
}
