"""Small models of DeepSeek-V2 and V3."""

from __future__ import annotations

from support.family_sizes import EXPERTS, GROUPS, ONE_GROUP, WIDE_LATENT, Cases, yarn

SAME_CLASSES = ("kimi_k2",)  # in transformers as one of these
CASES = {
    "deepseek_v2": Cases(
        "DeepseekV2",
        [
            {**EXPERTS, "q_lora_rank": None, "first_k_dense_replace": 1, "rope_parameters": yarn(0.707, 0.707)},
            {
                **GROUPS,
                "topk_method": "group_limited_greedy",
                "first_k_dense_replace": 0,
                "n_shared_experts": 2,
                "routed_scaling_factor": 16.0,
                "rope_parameters": yarn(1.0, 1.0, beta_fast=1, beta_slow=1),
            },
            {**EXPERTS, "first_k_dense_replace": 2, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        ],
        in_gguf=(0, 1),
        aligned={**WIDE_LATENT, "moe_intermediate_size": 32, "q_lora_rank": None},
        written=(1, {}),
        read_alike=False,
        needed={"num_experts_per_tok": 6},
    ),
    "deepseek_v3": Cases(
        "DeepseekV3",
        [
            {**GROUPS, "first_k_dense_replace": 1, "rope_parameters": yarn(1.0, 1.0), "v_head_dim": 20},
            {
                **ONE_GROUP,
                "q_lora_rank": None,
                "first_k_dense_replace": 1,
                "routed_scaling_factor": 2.446,
                "rms_norm_eps": 1e-2,
            },
            {
                **ONE_GROUP,
                "rope_interleave": False,
                "attention_bias": True,
                "norm_topk_prob": False,
                "first_k_dense_replace": 0,
                "rope_parameters": yarn(None, None),
            },
        ],
        in_gguf=(0, 1),
        aligned={**WIDE_LATENT, "moe_intermediate_size": 32},
    ),
}
