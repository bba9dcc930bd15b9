"""Small models of Granite and Granite 4 without recurrent layers."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases, linear, yarn

_DENSE_HYBRID = {
    **FOUR_HEADS,
    "layer_types": ["attention"] * 3,
    "num_local_experts": 0,
    "shared_intermediate_size": 72,
    "mamba_n_heads": 2,  # which has to divide the width, though there are no such layers
}
CASES = {
    "granite": Cases(
        "Granite",
        [
            {
                **FOUR_HEADS,
                "hidden_size": 64,
                "intermediate_size": 96,
                "embedding_multiplier": 3.0,
                "residual_multiplier": 0.3,
                "attention_multiplier": 0.11,
                "logits_scaling": 7.0,
            },
            {**FOUR_HEADS, "attention_bias": True, "mlp_bias": True, "attention_multiplier": 0.4, "tie_word_embeddings": True},
            {**FOUR_HEADS, "attention_bias": True, "hidden_size": 96, "intermediate_size": 64, "attention_multiplier": 0.2},
        ],
        native=(0, 2),
        in_gguf=(0, 2),
        written=(2, {"rope_parameters": linear(2.0)}),
    ),
    "granitemoehybrid": Cases(
        "GraniteMoeHybrid",
        [
            {
                **_DENSE_HYBRID,
                "hidden_size": 64,
                "shared_intermediate_size": 96,
                "position_embedding_type": "rope",
                "embedding_multiplier": 3.0,
                "residual_multiplier": 0.3,
                "attention_multiplier": 0.11,
                "logits_scaling": 7.0,
                "rope_parameters": yarn(None, None),
                "tie_word_embeddings": True,
            },
            {**_DENSE_HYBRID, "attention_bias": True, "attention_multiplier": 0.4, "position_embedding_type": "nope"},
            {
                **_DENSE_HYBRID,
                "num_attention_heads": 5,
                "num_key_value_heads": 1,
                "hidden_size": 120,
                "attention_bias": True,
                "position_embedding_type": "rope",
                "attention_multiplier": 0.2,
                "residual_multiplier": 0.7,
            },
        ],
        native=(0,),
        written=(1, {}),
        needed={"num_local_experts": 0, "layer_types": ["attention"] * 32},
    ),
}
