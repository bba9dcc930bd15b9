"""Small models of OLMo 3."""

from __future__ import annotations

from support.family_sizes import WINDOWED, Cases, yarn

_ROPES = {
    "full_attention": yarn(None, None, attention_factor=1.2079),
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
_OLMO = {"num_attention_heads": 4, "num_key_value_heads": 4, "rope_parameters": _ROPES, "sliding_window": 20}
CASES = {
    "olmo3": Cases(
        "Olmo3",
        [
            {**_OLMO, "hidden_size": 64, "intermediate_size": 96, "layer_types": WINDOWED},
            {**_OLMO, "num_key_value_heads": 2, "attention_bias": True, "tie_word_embeddings": True, "sliding_window": 9},
            {**_OLMO, "hidden_size": 96, "intermediate_size": 64, "num_hidden_layers": 5},
        ],
        native=(0, 2),
        in_gguf=(0, 2),
        read_alike=False,
    ),
}
