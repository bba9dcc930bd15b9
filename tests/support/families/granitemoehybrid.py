"""Small models of Granite 4."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases, yarn

_DENSE = {
    **FOUR_HEADS,
    "layer_types": ["attention"] * 3,
    "num_local_experts": 0,
    "shared_intermediate_size": 72,
    "mamba_n_heads": 2,  # which has to divide the width, though there are no such layers
}
_HYBRID = {
    **FOUR_HEADS,
    "layer_types": ["mamba", "attention", "mamba"],
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "attention_multiplier": 0.3,
    "logits_scaling": 3.0,
}
CASES = {
    "granitemoehybrid": Cases(
        "GraniteMoeHybrid",
        [
            {
                **_DENSE,
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
            {
                **_HYBRID,
                "hidden_size": 64,
                "num_local_experts": 5,
                "num_experts_per_tok": 2,
                "intermediate_size": 32,
                "shared_intermediate_size": 64,
                "mamba_n_groups": 2,
                "residual_multiplier": 0.4,
                "embedding_multiplier": 3.0,
                "tie_word_embeddings": True,
            },
            {
                **_HYBRID,
                "num_local_experts": 0,
                "shared_intermediate_size": 72,
                "position_embedding_type": "rope",
                "attention_bias": True,
            },
            {**_HYBRID, "num_local_experts": 0, "shared_intermediate_size": 72, "mamba_conv_bias": False},
        ],
        native=(0,),
        in_gguf=(1, 2),
        written=(1, {}),
        needed={"num_local_experts": 0, "layer_types": ["attention"] * 32},
    ),
}
