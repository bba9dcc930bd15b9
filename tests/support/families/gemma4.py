"""Small models of Gemma 4."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}
_GEMMA = {
    **FOUR_HEADS,
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "rope_parameters": _ROPES,
    "tie_word_embeddings": True,
    "final_logit_softcapping": 20.0,
    "sliding_window": 20,
    "vocab_size_per_layer_input": 300,
    "hidden_size_per_layer_input": 0,
}
_PAIR = ["sliding_attention", "full_attention"]
CASES = {
    "gemma4_text": Cases(
        "Gemma4",
        [
            {
                **_GEMMA,
                "num_hidden_layers": 6,
                "layer_types": _PAIR * 3,
                "hidden_size_per_layer_input": 32,
                "num_kv_shared_layers": 3,
                "use_double_wide_mlp": True,
            },
            {
                **_GEMMA,
                "head_dim": 20,
                "global_head_dim": 24,
                "num_hidden_layers": 4,
                "layer_types": _PAIR * 2,
                "attention_k_eq_v": True,
                "num_global_key_value_heads": 1,
                "num_key_value_heads": 4,
                "final_logit_softcapping": None,
            },
            {
                **_GEMMA,
                "num_hidden_layers": 3,
                "layer_types": ["sliding_attention", "full_attention", "full_attention"],
                "enable_moe_block": True,
                "num_experts": 6,
                "top_k_experts": 2,
                "moe_intermediate_size": 32,
            },
            {**_GEMMA, "num_hidden_layers": 3, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": 9},
        ],
        native=(0, 1, 2, 3),
        in_gguf=(0, 1, 2, 3),
        written=(0, {"num_kv_shared_layers": 2}),
        place="gemma4",
    ),
}
