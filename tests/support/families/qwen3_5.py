"""Small models of Qwen3.5."""

from __future__ import annotations

from support.family_sizes import DELTA, FOUR_HEADS, Cases

_ROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]}
_QWEN = {**FOUR_HEADS, **DELTA, "head_dim": 32, "num_hidden_layers": 4, "rope_parameters": _ROPE}
CASES = {
    "qwen3_5_text": Cases(
        "Qwen3_5",
        [
            {**_QWEN, "hidden_size": 64, "intermediate_size": 96},
            {
                **_QWEN,
                "num_hidden_layers": 3,
                "layer_types": ["full_attention", "linear_attention", "linear_attention"],
                "linear_key_head_dim": 12,
                "linear_conv_kernel_dim": 3,
                "tie_word_embeddings": True,
            },
            {**_QWEN, "linear_num_value_heads": 2, "tie_word_embeddings": True},
        ],
        in_gguf=(0, 2),
        written=(0, {"num_key_value_heads": 1}),
        place="qwen3_5",
    ),
}
