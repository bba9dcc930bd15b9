"""Small models of Phi-3, and of Phi-4-mini with a rope of a part of a head."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases, long_factors

CASES = {
    "phi3": Cases(
        "Phi3",
        [
            {
                **FOUR_HEADS,
                "hidden_size": 64,
                "intermediate_size": 96,
                "rope_parameters": {**long_factors(6), "partial_rotary_factor": 0.75},
                "original_max_position_embeddings": 100,
                "tie_word_embeddings": True,
            },
            {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 48, "sliding_window": 33},
            {
                **FOUR_HEADS,
                "hidden_size": 128,
                "intermediate_size": 64,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
            },
        ],
        native=(0, 2),
        in_gguf=(0, 2),
        written=(2, {}),
    ),
}
