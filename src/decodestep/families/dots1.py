"""dots.llm1: norms of heads, and DeepSeek V3's mixture of experts."""

from __future__ import annotations

from decodestep.families import deepseek2, glm4_moe, llama, qwen3
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, ModelType
from decodestep.families.common.experts import ExpertKeys, file_experts, stored_gating
from decodestep.families.common.grouped import ATTENTION_BIAS, GroupedFile, GroupedKeys, windows_by_type
from decodestep.families.common.limits import MAX_LAYERS
from decodestep.families.common.refusals import dense_layers, few_key_heads, first_of, tied_output

_DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 152064,
    "hidden_size": 4608,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 62,
    "num_key_value_heads": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "sliding_window": 4096,
    "max_window_layers": 62,
}


def _windows(keys: Keys, layers: int) -> tuple[int, ...]:
    first = keys.size("max_window_layers", least=0, most=MAX_LAYERS)
    found = windows_by_type(keys, layers, lambda i: i >= first)
    return found if any(found) else ()


_GGUF = Architecture(
    "dots1",
    GroupedFile(),
    qwen3.LAYERS,
    rope_half_split=True,
    experts=file_experts(lambda keys, common: stored_gating(keys, unsaid="sigmoid")),
    output_bias=False,
    written=glm4_moe.written,
    refused=first_of(few_key_heads, tied_output, dense_layers),
)
FAMILY = Family(
    types=(
        ModelType(
            "dots1",
            written_as=_GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS, windows=_windows),
            defaults=_DEFAULTS,
            layers=qwen3.LAYERS,
            aliases={"num_local_experts": "n_routed_experts"},
            experts=ExpertKeys(
                deepseek2.sparse, deepseek2.v3_rule, count="n_routed_experts", shared="n_shared_experts", corrected=True
            ),
            pre_tokenizer="qwen2",
        ),
    ),
    gguf=_GGUF,
)
