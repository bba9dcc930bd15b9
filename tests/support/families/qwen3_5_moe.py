"""Small models of Qwen3.5's mixtures."""

from __future__ import annotations

from support.families.qwen3_5 import CASES as DENSE
from support.family_sizes import Cases

_MOE = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "num_experts": 7, "num_experts_per_tok": 3}
CASES = {
    "qwen3_5_moe_text": Cases(
        "Qwen3_5Moe",
        [{**sizes, **_MOE} for sizes in DENSE["qwen3_5_text"].sizes],
        in_gguf=(0, 2),
        written=(0, {"num_experts": 6}),
        place="qwen3_5_moe",
    ),
}
