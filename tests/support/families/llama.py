"""Small models of Llama."""

from __future__ import annotations

from support.family_sizes import Cases

CASES = {
    "llama": Cases(
        "Llama",
        [
            {"head_dim": 16, "num_attention_heads": 4},
            {
                "head_dim": 8,
                "tie_word_embeddings": True,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 10000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
            {"head_dim": 8, "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}},
        ],
        written=(1, {}),
    ),
}
