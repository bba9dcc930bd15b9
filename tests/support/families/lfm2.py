"""Small models of LFM2."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

_PAIR = ["conv", "full_attention", "conv"]
CASES = {
    "lfm2": Cases(
        "Lfm2",
        [
            {**FOUR_HEADS, "hidden_size": 64, "intermediate_size": 96, "block_multiple_of": 32, "layer_types": _PAIR},
            {**FOUR_HEADS, "full_attn_idxs": [1], "conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False},
            {**FOUR_HEADS, "layer_types": _PAIR, "block_ffn_dim_multiplier": 1.5, "block_multiple_of": 7},
        ],
        in_gguf=(0, 2),
    ),
}
