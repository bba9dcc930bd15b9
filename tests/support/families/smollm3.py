"""Small models of SmolLM3."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

CASES = {
    "smollm3": Cases(
        "SmolLM3",
        [
            {**FOUR_HEADS, "hidden_size": 64, "num_hidden_layers": 5, "intermediate_size": 96},
            {
                **FOUR_HEADS,
                "no_rope_layers": [1, 0, 0],
                "use_sliding_window": True,
                "sliding_window": 24,
                "tie_word_embeddings": False,
            },
            {**FOUR_HEADS, "no_rope_layer_interval": 2, "attention_bias": True, "mlp_bias": True},
        ],
        native=(0,),
        in_gguf=(0,),
    ),
}
