"""Small models of Granite."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases, linear

CASES = {
    "granite": Cases(
        "Granite",
        [
            {
                **FOUR_HEADS,
                "hidden_size": 64,
                "intermediate_size": 96,
                "embedding_multiplier": 3.0,
                "residual_multiplier": 0.3,
                "attention_multiplier": 0.11,
                "logits_scaling": 7.0,
            },
            {**FOUR_HEADS, "attention_bias": True, "mlp_bias": True, "attention_multiplier": 0.4, "tie_word_embeddings": True},
            {**FOUR_HEADS, "attention_bias": True, "hidden_size": 96, "intermediate_size": 64, "attention_multiplier": 0.2},
        ],
        native=(0, 2),
        in_gguf=(0, 2),
        written=(2, {"rope_parameters": linear(2.0)}),
    ),
}
