"""Small models of GLM-5, with layers that attend to what an earlier one selects."""

from __future__ import annotations

from support.families.deepseek_v32 import INDEX, READ_INDEX
from support.family_sizes import GROUPS, ONE_GROUP, WIDE_LATENT, Cases

CASES = {
    "glm_moe_dsa": Cases(
        "GlmMoeDsa",
        [
            {**ONE_GROUP, **INDEX, "first_k_dense_replace": 1, "qk_nope_head_dim": 24, "v_head_dim": 20},
            {
                **GROUPS,
                **INDEX,
                "first_k_dense_replace": 1,
                "num_hidden_layers": 4,
                "indexer_types": ["full", "shared", "full", "shared"],
            },
            {**ONE_GROUP, **INDEX, "first_k_dense_replace": 0, "index_topk_pattern": "FSS", "rms_norm_eps": 1e-2},
        ],
        in_gguf=(0, 1),
        written=(0, READ_INDEX),
        aligned={**WIDE_LATENT, "moe_intermediate_size": 32, "index_head_dim": 48, "index_topk": 48, "q_lora_rank": 64},
    ),
}
