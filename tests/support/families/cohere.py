"""Small models of Cohere's Command R."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

CASES = {
    "cohere": Cases(
        "Cohere",
        [
            {**FOUR_HEADS, "hidden_size": 64, "intermediate_size": 96},
            {**FOUR_HEADS, "hidden_size": 40, "attention_bias": True, "tie_word_embeddings": True},
            {**FOUR_HEADS, "hidden_size": 128, "intermediate_size": 64, "logit_scale": 0.25},
        ],
        native=(0, 2),
        in_gguf=(0, 2),
    ),
}
