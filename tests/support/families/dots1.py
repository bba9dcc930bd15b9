"""Small models of dots.llm1."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, GROUPS, ONE_GROUP, Cases

_WIDE = {"moe_intermediate_size": 32, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
CASES = {
    "dots1": Cases(
        "Dots1",
        [
            {**FOUR_HEADS, **ONE_GROUP, **_WIDE, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96},
            {**FOUR_HEADS, **GROUPS, "head_dim": 20, "max_window_layers": 1, "sliding_window": 9},
            {**FOUR_HEADS, **ONE_GROUP, **_WIDE, "head_dim": 16, "first_k_dense_replace": 0},
        ],
        native=(0,),
        in_gguf=(0, 2),
        written=(0, {"num_key_value_heads": 4}),
        needed={"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    ),
}
