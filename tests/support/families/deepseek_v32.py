"""Small models of DeepSeek V3.2."""

from __future__ import annotations

from support.family_sizes import GROUPS, ONE_GROUP, WIDE_LATENT, Cases, yarn

# So many heads that hardly a score is exactly 0: of equal ones transformers selects any. Of the aligned sizes so many positions
# are selected that the rounding of a near-tie, by which another one is, moves logits little.
INDEX = {"index_n_heads": 20, "index_head_dim": 12, "index_topk": 8}
READ_INDEX = {"index_head_dim": 64}  # which llama.cpp turns by a Hadamard matrix of 64 at least
CASES = {
    "deepseek_v32": Cases(
        "DeepseekV32",
        [
            {**GROUPS, **INDEX, "first_k_dense_replace": 1, "rope_parameters": yarn(1.0, 1.0), "v_head_dim": 20},
            {**ONE_GROUP, **INDEX, "index_topk": 200, "first_k_dense_replace": 1, "rms_norm_eps": 1e-2},
            {**ONE_GROUP, **INDEX, "index_topk": 1, "index_head_dim": 8, "mlp_layer_types": ["sparse", "dense", "sparse"]},
        ],
        in_gguf=(0, 1),
        written=(0, READ_INDEX),
        aligned={**WIDE_LATENT, "moe_intermediate_size": 32, "index_head_dim": 48, "index_topk": 48, "q_lora_rank": 64},
    ),
}
