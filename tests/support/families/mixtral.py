"""Small models of Mixtral."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

_MOE = {**FOUR_HEADS, "num_local_experts": 5, "num_experts_per_tok": 2}
CASES = {
    "mixtral": Cases(
        "Mixtral",
        [
            {**_MOE, "head_dim": 32, "hidden_size": 64, "intermediate_size": 32},
            {**_MOE, "head_dim": 10, "sliding_window": 33},
            {**_MOE, "head_dim": 24, "intermediate_size": 64, "tie_word_embeddings": True},
        ],
        native=(0,),
        in_gguf=(0, 2),
    ),
}
