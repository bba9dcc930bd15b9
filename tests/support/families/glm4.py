"""Small models of GLM-4."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

CASES = {
    "glm4": Cases(
        "Glm4",
        [
            {**FOUR_HEADS, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96, "partial_rotary_factor": 0.5},
            {**FOUR_HEADS, "head_dim": 20, "attention_bias": False, "tie_word_embeddings": True},
            {
                **FOUR_HEADS,
                "head_dim": 24,
                "hidden_size": 96,
                "intermediate_size": 64,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25},
            },
        ],
        native=(0, 2),
        in_gguf=(0, 2),
    ),
}
