"""Small models of gpt-oss."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases, yarn

_EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}
_YARN = yarn(None, None, truncate=False)
CASES = {
    "gpt_oss": Cases(
        "GptOss",
        [
            {
                **FOUR_HEADS,
                **_EXPERTS,
                "head_dim": 32,
                "hidden_size": 64,
                "intermediate_size": 32,
                "sliding_window": 20,
                "rope_parameters": _YARN,
            },
            {**FOUR_HEADS, **_EXPERTS, "head_dim": 10, "attention_bias": False, "sliding_window": 9},
            {
                **FOUR_HEADS,
                **_EXPERTS,
                "head_dim": 16,
                "intermediate_size": 64,
                "sliding_window": 33,
                "num_hidden_layers": 4,
                "rope_parameters": _YARN,
            },
        ],
        native=(0,),
        in_gguf=(0, 2),
        read_alike=False,  # llama.cpp rounds the ends of YaRN's ramp
    ),
}
