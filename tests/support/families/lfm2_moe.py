"""Small models of LFM2's mixtures."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

_MOE = {"moe_intermediate_size": 32, "num_experts": 7, "num_experts_per_tok": 3, "num_dense_layers": 1}
_LAYERS = {**FOUR_HEADS, **_MOE, "layer_types": ["conv", "full_attention", "conv"]}
CASES = {
    "lfm2_moe": Cases(
        "Lfm2Moe",
        [
            {**_LAYERS, "hidden_size": 64, "intermediate_size": 96},
            {**_LAYERS, "routed_scaling_factor": 1.7, "norm_topk_prob": False, "use_expert_bias": False, "conv_bias": True},
            {**_LAYERS, "num_dense_layers": 0, "tie_word_embeddings": False},
        ],
        in_gguf=(0, 2),
    ),
}
