"""Small models of Cohere's Command R7B and A."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, WINDOWED, Cases

CASES = {
    "cohere2": Cases(
        "Cohere2",
        [
            {**FOUR_HEADS, "hidden_size": 64, "intermediate_size": 96, "sliding_window": 20, "num_hidden_layers": 5},
            {**FOUR_HEADS, "hidden_size": 40, "sliding_window": 9, "layer_types": WINDOWED, "attention_bias": True},
            {
                **FOUR_HEADS,
                "hidden_size": 128,
                "intermediate_size": 64,
                "sliding_window": 33,
                "logit_scale": 0.25,
                "num_hidden_layers": 4,
            },
        ],
        native=(0, 2),
        in_gguf=(0, 2),
    ),
}
