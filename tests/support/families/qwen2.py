"""Small models of Qwen2."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases, yarn

CASES = {
    "qwen2": Cases(
        "Qwen2",
        [
            {**FOUR_HEADS, "hidden_size": 64},
            {
                **FOUR_HEADS,
                "use_sliding_window": True,
                "sliding_window": 40,
                "max_window_layers": 1,
                "tie_word_embeddings": True,
            },
            {**FOUR_HEADS, "hidden_size": 96, "intermediate_size": 96, "rope_parameters": yarn(None, None)},
        ],
        native=(2,),
        in_gguf=(0,),
        written=(2, {}),
    ),
}
