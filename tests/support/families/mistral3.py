"""Small models of Ministral 3."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases, yarn

_GROWING = yarn(1.0, 1.0, llama_4_scaling_beta=0.5, original_max_position_embeddings=16)
CASES = {
    "ministral3": Cases(
        "Ministral3",
        [
            {**FOUR_HEADS, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96, "rope_parameters": _GROWING},
            {**FOUR_HEADS, "head_dim": 10, "sliding_window": 33, "rope_parameters": _GROWING},
            {
                **FOUR_HEADS,
                "head_dim": 24,
                "hidden_size": 96,
                "intermediate_size": 64,
                "rope_parameters": _GROWING,
                "tie_word_embeddings": True,
            },
        ],
        native=(0, 2),
        in_gguf=(0, 2),
    ),
}
