"""Small models of Youtu."""

from __future__ import annotations

from support.family_sizes import Cases

CASES = {
    "youtu": Cases(
        "Youtu",
        [
            {},
            {"q_lora_rank": None, "tie_word_embeddings": False},
            {"v_head_dim": 8, "qk_rope_head_dim": 4, "kv_lora_rank": 17},
        ],
        in_gguf=(0, 1, 2),
        written=(0, {"rope_interleave": False}),
    ),
}
