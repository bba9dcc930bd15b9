"""Small models of Qwen3's mixtures."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

_MOE = {"moe_intermediate_size": 32}
CASES = {
    "qwen3_moe": Cases(
        "Qwen3Moe",
        [
            {**FOUR_HEADS, **_MOE, "head_dim": 16, "num_experts": 7, "num_experts_per_tok": 3, "norm_topk_prob": True},
            {
                **FOUR_HEADS,
                "head_dim": 8,
                "moe_intermediate_size": 24,
                "num_experts": 5,
                "num_experts_per_tok": 2,
                "mlp_only_layers": [1],
                "use_sliding_window": True,
                "sliding_window": 30,
            },
            {**FOUR_HEADS, **_MOE, "head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 2},
        ],
        native=(0,),
        in_gguf=(0,),
    ),
}
