"""Small models of MiniCPM3."""

from __future__ import annotations

from support.family_sizes import WIDE_LATENT, Cases, longrope

CASES = {
    "minicpm3": Cases(
        "MiniCPM3",
        [
            {"rope_parameters": longrope(512)},
            {"rope_parameters": longrope(100), "scale_emb": 6, "dim_model_base": 16, "mlp_bias": True, "attention_bias": True},
            {
                "scale_depth": None,
                "dim_model_base": None,
                "v_head_dim": None,
                "tie_word_embeddings": False,
                "q_lora_rank": None,
            },
        ],
        in_gguf=(0,),
        aligned={**WIDE_LATENT, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        written=(0, {"dim_model_base": 256, "v_head_dim": 16, "rope_parameters": longrope(100)}),
        read_alike=False,
    ),
}
