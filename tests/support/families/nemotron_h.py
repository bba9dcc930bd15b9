"""Small models of Nemotron-H and its mixtures."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

_MAMBA = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,  # of 64 in all at least, and not twice the hidden width
    "n_groups": 2,
    "ssm_state_size": 16,
    "head_dim": 16,
    "time_step_min": 1e-9,  # which transformers' form for many tokens clamps to, and its form for one does not
}
_MOE = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}
CASES = {
    "nemotron_h": Cases(
        "NemotronH",
        [
            {**FOUR_HEADS, **_MAMBA, "layers_block_type": ["mamba", "mlp", "attention", "mamba", "mlp"]},
            {
                **FOUR_HEADS,
                **_MAMBA,
                **_MOE,
                "layers_block_type": ["mamba", "moe", "attention", "mlp"],
                "n_group": 2,
                "topk_group": 1,
                "moe_latent_size": 20,
                "use_conv_bias": False,
            },
            {**FOUR_HEADS, **_MAMBA, **_MOE, "layers_block_type": ["mamba", "moe", "attention", "moe"], "moe_latent_size": 20},
        ],
        in_gguf=(0, 2),
    ),
}
