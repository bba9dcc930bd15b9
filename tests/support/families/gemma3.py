"""Small models of Gemma 3."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, WINDOWED, Cases

_LOCAL = {
    "full_attention": {"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
_GEMMA = {**FOUR_HEADS, "layer_types": WINDOWED, "sliding_window": 20, "rope_parameters": _LOCAL, "tie_word_embeddings": True}
CASES = {
    "gemma3_text": Cases(
        "Gemma3",
        [
            {**_GEMMA, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96, "query_pre_attn_scalar": 32},
            {**_GEMMA, "head_dim": 24, "query_pre_attn_scalar": 50, "attention_bias": True, "sliding_window": 9},
            {
                **_GEMMA,
                "head_dim": 256,
                "hidden_size": 64,
                "intermediate_size": 64,
                "query_pre_attn_scalar": 256,
                "num_hidden_layers": 2,
                "layer_types": WINDOWED[:2],
            },
        ],
        native=(0, 2),
        in_gguf=(0, 2),
        place="gemma3",
    ),
}
