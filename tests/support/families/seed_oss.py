"""Small models of Seed-OSS."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases, linear

CASES = {
    "seed_oss": Cases(
        "SeedOss",
        [
            {**FOUR_HEADS, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96},
            {**FOUR_HEADS, "head_dim": 10, "attention_out_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
            {**FOUR_HEADS, "head_dim": 16, "attention_bias": False, "rope_parameters": linear(2.0)},
        ],
        native=(0,),
        in_gguf=(0,),
    ),
}
