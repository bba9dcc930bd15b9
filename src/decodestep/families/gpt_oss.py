"""gpt-oss: attention sinks, windows in every second layer, a mixture of experts with biases and clamped SiLU, whose weights are
MXFP4.

A file has the norm before the feed-forward block under the name that others give to the norm after attention, and no key for
which layers have windows, for YaRN's ends, which are not rounded, or for the activation.
"""

from __future__ import annotations

from decodestep.decoding.config import Config
from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, Layers, ModelType
from decodestep.families.common.experts import ExpertKeys, Gating, every_layer, file_experts
from decodestep.families.common.grouped import (
    ATTENTION_BIAS,
    GroupedFile,
    GroupedKeys,
    patterned_file_windows,
    windows_by_type,
)
from decodestep.families.common.refusals import first_of, tied_output
from decodestep.ops.expert_router.arguments import RouterRule

_LAYERS = Layers(activation="clamped_swiglu", sinks=True)
_ACTIVATION = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}
_DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
    "sliding_window": 128,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "rope_theta": 150000.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    **_ACTIVATION,
}
_SOFTMAX = Gating("softmax", normalise=True, scale=1.0)  # of the selected experts alone, which gives the same numbers


def _windows(keys: Keys, layers: int) -> tuple[int, ...]:
    return windows_by_type(keys, layers, lambda i: i % 2 == 0)


def _rule(keys: Keys) -> RouterRule:
    return RouterRule(keys.size("num_experts_per_tok"), "softmax", normalise=True)


def _check(keys: Keys, common: Fields) -> None:
    for key, value in _ACTIVATION.items():
        if keys.number(key, value, least=0.0, most=1e6) != value:
            raise keys.refusal(f"{key} {keys.get(key)} is not supported ({value} is)")


def _without_biases(config: Config, vectors: object) -> str | None:
    return None if config.grouped.biases else "no biases of attention"


_GGUF = Architecture(
    "gpt-oss",
    GroupedFile(windows=patterned_file_windows(2)),
    _LAYERS,
    rope_half_split=True,
    tensors={"ffn_norm": "post_attention_norm.weight"},
    experts=file_experts(lambda keys, common: _SOFTMAX, biases=True),
    yarn_truncates=False,
    refused=first_of(_without_biases, tied_output),
)
FAMILY = Family(
    types=(
        ModelType(
            "gpt_oss",
            written_as=_GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS, windows=_windows),
            defaults=_DEFAULTS,
            layers=_LAYERS,
            aliases={"num_experts": "num_local_experts"},
            experts=ExpertKeys(
                every_layer,
                _rule,
                count="num_local_experts",
                shared=None,
                corrected=False,
                width="intermediate_size",
                biases=True,
            ),
            check=_check,
            tensors={
                "router": "mlp.router.weight",
                "router_bias": "mlp.router.bias",
                "experts_gate_up_in_turn": "mlp.experts.gate_up_proj",
                "experts_gate_up_in_turn_bias": "mlp.experts.gate_up_proj_bias",
                "experts_gate_up_in_turn_blocks": "mlp.experts.gate_up_proj_blocks",
                "experts_gate_up_in_turn_scales": "mlp.experts.gate_up_proj_scales",
                "experts_down_by_inputs": "mlp.experts.down_proj",
                "experts_down_by_inputs_blocks": "mlp.experts.down_proj_blocks",
                "experts_down_by_inputs_scales": "mlp.experts.down_proj_scales",
                "experts_down_bias": "mlp.experts.down_proj_bias",
            },
            pre_tokenizer="gpt-4o",
        ),
    ),
    gguf=_GGUF,
)
