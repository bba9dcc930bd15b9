"""Small models of OLMoE."""

from __future__ import annotations

from support.family_sizes import Cases

_MOE = {"num_attention_heads": 4, "num_experts": 7, "num_experts_per_tok": 3}
CASES = {
    "olmoe": Cases(
        "Olmoe",
        [
            {**_MOE, "num_key_value_heads": 2, "hidden_size": 64, "intermediate_size": 32},
            {**_MOE, "num_key_value_heads": 4, "hidden_size": 40, "attention_bias": True, "norm_topk_prob": True},
            {**_MOE, "num_key_value_heads": 4, "hidden_size": 96, "intermediate_size": 64},
        ],
        native=(0,),
        in_gguf=(0, 2),
        written=(2, {}),
    ),
}
