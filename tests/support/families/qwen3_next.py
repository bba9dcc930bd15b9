"""Small models of Qwen3-Next."""

from __future__ import annotations

from support.family_sizes import DELTA, FOUR_HEADS, Cases

_MOE = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
_NEXT = {
    **FOUR_HEADS,
    **DELTA,
    **_MOE,
    "head_dim": 32,
    "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25},
}
CASES = {
    "qwen3_next": Cases(
        "Qwen3Next",
        [
            {**_NEXT, "num_hidden_layers": 4, "num_experts": 7, "num_experts_per_tok": 3},
            {
                **_NEXT,
                "num_hidden_layers": 3,
                "layer_types": ["linear_attention", "full_attention", "linear_attention"],
                "num_experts": 5,
                "num_experts_per_tok": 2,
                "norm_topk_prob": False,
                "mlp_only_layers": [1],
                "linear_key_head_dim": 12,
                "linear_num_value_heads": 2,
            },
            {**_NEXT, "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2, "linear_num_value_heads": 2},
        ],
        in_gguf=(0, 2),
        written=(0, {"num_experts": 6}),
    ),
}
