"""Small models of Hunyuan."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

_FIXED = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0}
CASES = {
    "hunyuan_v1_dense": Cases(
        "HunYuanDenseV1",
        [
            {**FOUR_HEADS, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96, "rope_parameters": _FIXED},
            {**FOUR_HEADS, "head_dim": 10, "attention_bias": True, "tie_word_embeddings": True},
            {**FOUR_HEADS, "head_dim": 24, "hidden_size": 96, "intermediate_size": 64, "rope_parameters": _FIXED},
        ],
        native=(0, 2),
        in_gguf=(0, 2),
        place="hunyuan_v1_dense",
    ),
}
