"""Small models of EXAONE 4."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, WINDOWED, Cases

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "exaone4": Cases(
        "Exaone4",
        [
            {
                **FOUR_HEADS,
                "head_dim": 32,
                "hidden_size": 64,
                "intermediate_size": 96,
                "sliding_window": 20,
                "layer_types": WINDOWED,
                "rope_parameters": _LLAMA3,
            },
            {**FOUR_HEADS, "head_dim": 10, "sliding_window": None, "layer_types": ["full_attention"] * 3},
            {
                **FOUR_HEADS,
                "head_dim": 24,
                "hidden_size": 96,
                "intermediate_size": 64,
                "sliding_window": 9,
                "sliding_window_pattern": 2,
                "tie_word_embeddings": True,
            },
        ],
        native=(0, 2),
        in_gguf=(0, 2),
        written=(1, {"head_dim": 8}),
    ),
}
