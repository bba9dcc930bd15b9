"""Small models of GLM-4.7-Flash."""

from __future__ import annotations

from support.family_sizes import GROUPS, ONE_GROUP, Cases, yarn

CASES = {
    "glm4_moe_lite": Cases(
        "Glm4MoeLite",
        [
            {**ONE_GROUP, "qk_nope_head_dim": 24, "v_head_dim": 20},
            {**GROUPS, "mlp_layer_types": ["sparse", "dense", "sparse"]},
            {**ONE_GROUP, "num_hidden_layers": 2, "rope_parameters": yarn(1.0, 0.7), "attention_bias": True},
        ],
        in_gguf=(0,),
    ),
}
