"""Small models of OLMo 2."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases, yarn

CASES = {
    "olmo2": Cases(
        "Olmo2",
        [
            {**FOUR_HEADS, "hidden_size": 64, "intermediate_size": 96},
            {
                **FOUR_HEADS,
                "head_dim": 10,
                "attention_bias": True,
                "tie_word_embeddings": True,
                "rope_parameters": yarn(None, None),
            },
            {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 96, "intermediate_size": 64},
        ],
        native=(0, 2),
        in_gguf=(0, 2),
        written=(2, {}),
    ),
}
