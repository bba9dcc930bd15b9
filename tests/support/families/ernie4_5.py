"""Small models of ERNIE 4.5."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

CASES = {
    "ernie4_5": Cases(
        "Ernie4_5",
        [
            {**FOUR_HEADS, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96, "tie_word_embeddings": True},
            {**FOUR_HEADS, "head_dim": 10, "use_bias": True},
            {**FOUR_HEADS, "head_dim": 20, "hidden_size": 96, "intermediate_size": 64},
        ],
        native=(0, 2),
        in_gguf=(0, 2),
    ),
}
