"""Small models of GLM-4.5."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, GROUPS, ONE_GROUP, Cases

_WIDE = {"moe_intermediate_size": 32}
CASES = {
    "glm4_moe": Cases(
        "Glm4Moe",
        [
            {
                **FOUR_HEADS,
                **ONE_GROUP,
                **_WIDE,
                "head_dim": 32,
                "hidden_size": 64,
                "intermediate_size": 96,
                "attention_bias": True,
                "use_qk_norm": True,
                "routed_scaling_factor": 2.5,
            },
            {**FOUR_HEADS, **GROUPS, "head_dim": 20, "first_k_dense_replace": 2, "norm_topk_prob": False},
            {**FOUR_HEADS, **ONE_GROUP, **_WIDE, "head_dim": 16, "attention_bias": True, "first_k_dense_replace": 0},
        ],
        native=(0,),
        in_gguf=(0, 2),
        needed={"head_dim": 128},
    ),
}
