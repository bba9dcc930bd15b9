"""Small models of Arcee's AFM."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases, yarn

CASES = {
    "arcee": Cases(
        "Arcee",
        [
            {**FOUR_HEADS, "hidden_size": 64, "intermediate_size": 96, "rope_parameters": yarn(1.0, None)},
            {**FOUR_HEADS, "head_dim": 10, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
            {**FOUR_HEADS, "hidden_size": 96, "intermediate_size": 64},
        ],
        native=(0, 2),
        in_gguf=(2,),
        written=(2, {}),
    ),
}
