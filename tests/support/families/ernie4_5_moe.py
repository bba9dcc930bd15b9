"""Small models of ERNIE 4.5's mixtures."""

from __future__ import annotations

from support.family_sizes import FOUR_HEADS, Cases

_MOE = {"moe_intermediate_size": 32, "moe_num_experts": 7, "moe_k": 3, "moe_num_shared_experts": 2}
CASES = {
    "ernie4_5_moe": Cases(
        "Ernie4_5_Moe",
        [
            {**FOUR_HEADS, **_MOE, "head_dim": 32, "hidden_size": 64, "intermediate_size": 96},
            {**FOUR_HEADS, **_MOE, "head_dim": 10, "moe_num_shared_experts": 0, "moe_layer_interval": 2},
            {**FOUR_HEADS, **_MOE, "head_dim": 20, "moe_layer_start_index": 0, "moe_layer_end_index": 1},
        ],
        native=(0,),
        in_gguf=(0,),
    ),
}
