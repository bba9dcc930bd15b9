"""Small models of GLM-4 of 2024."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

CASES = {
    "glm": Cases(
        "Glm",
        [
            {**FOUR_HEADS, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96},
            {**FOUR_HEADS, "head_dim": 20, "attention_bias": False, "tie_word_embeddings": True},
            {**FOUR_HEADS, "head_dim": 24, "hidden_size": 96, "intermediate_size": 64},
        ],
        native=(0, 2),
        in_gguf=(0, 2),
        written=(2, {}),
    ),
}
