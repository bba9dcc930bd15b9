"""Small models of Qwen3."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, WINDOWED, Cases

CASES = {
    "qwen3": Cases(
        "Qwen3",
        [
            {**FOUR_HEADS, "head_dim": 16},
            {
                **FOUR_HEADS,
                "head_dim": 10,
                "attention_bias": True,
                "use_sliding_window": True,
                "layer_types": WINDOWED,
                "sliding_window": 7,
            },
            {**FOUR_HEADS, "head_dim": 24, "hidden_size": 64, "intermediate_size": 96, "tie_word_embeddings": True},
        ],
        native=(2,),
        in_gguf=(2,),
        written=(2, {}),
    ),
}
