"""Small models of Mistral and Ministral."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, WINDOWED, Cases, yarn

CASES = {
    "mistral": Cases(
        "Mistral",
        [
            {**FOUR_HEADS, "head_dim": 16, "sliding_window": None},
            {**FOUR_HEADS, "head_dim": 20, "sliding_window": 33},
            {**FOUR_HEADS, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96, "sliding_window": 16},
        ],
        native=(2,),
        in_gguf=(0, 1),
        written=(1, {}),
        read_alike=False,
    ),
    "ministral": Cases(
        "Ministral",
        [
            {**FOUR_HEADS, "head_dim": 16, "sliding_window": 12, "layer_types": WINDOWED},
            {**FOUR_HEADS, "head_dim": 8, "sliding_window": 50},
            {
                **FOUR_HEADS,
                "head_dim": 24,
                "hidden_size": 64,
                "intermediate_size": 64,
                "sliding_window": 100,
                "layer_types": WINDOWED,
            },
        ],
        native=(2,),
        written=(1, {"rope_parameters": yarn(None, None)}),
        read_alike=False,
    ),
}
