"""Small models of MiniMax M2."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

_HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
CASES = {
    "minimax_m2": Cases(
        "MiniMaxM2",
        [
            {
                **FOUR_HEADS,
                "head_dim": 32,
                "hidden_size": 64,
                "intermediate_size": 32,
                "num_local_experts": 7,
                "num_experts_per_tok": 3,
                "rope_parameters": _HALF,
            },
            {**FOUR_HEADS, "head_dim": 20, "num_local_experts": 5, "num_experts_per_tok": 2},
            {
                **FOUR_HEADS,
                "head_dim": 24,
                "intermediate_size": 64,
                "num_local_experts": 4,
                "num_experts_per_tok": 1,
                "rope_parameters": _HALF,
                "tie_word_embeddings": True,
            },
        ],
        native=(0,),
        in_gguf=(0, 2),
    ),
}
