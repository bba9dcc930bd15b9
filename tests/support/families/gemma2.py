"""Small models of Gemma 2."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

_GEMMA = {**FOUR_HEADS, "tie_word_embeddings": True, "final_logit_softcapping": 20.0, "attn_logit_softcapping": 3.0}
CASES = {
    "gemma2": Cases(
        "Gemma2",
        [
            {
                **_GEMMA,
                "head_dim": 32,
                "hidden_size": 64,
                "intermediate_size": 96,
                "query_pre_attn_scalar": 32,
                "sliding_window": 20,
            },
            {**_GEMMA, "head_dim": 24, "query_pre_attn_scalar": 50, "attention_bias": True, "sliding_window": 9},
            {
                **_GEMMA,
                "head_dim": 16,
                "hidden_size": 64,
                "intermediate_size": 64,
                "query_pre_attn_scalar": 16,
                "sliding_window": 33,
                "final_logit_softcapping": None,
                "attn_logit_softcapping": None,
            },
        ],
        native=(0, 2),
        in_gguf=(0, 2),
    ),
}
