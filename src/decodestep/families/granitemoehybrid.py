"""Granite 4: Mamba2 in most layers or in none, Granite's factors, a dense block or a mixture of experts with a shared one."""

from __future__ import annotations

import math
from typing import Any

from decodestep.decoding.config import Config, Mixer
from decodestep.families import granite
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, ModelType
from decodestep.families.common.experts import ExpertKeys, Gating, file_experts
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import GroupedFile
from decodestep.families.common.limits import MAX_EXPERTS, MAX_HEADS
from decodestep.families.common.mixers import (
    file_mamba,
    file_mixers,
    folder_mamba,
    has_part,
    mixers_by_type,
    written_head_counts,
)
from decodestep.families.common.refusals import first_of, unbiased_convolution
from decodestep.ops.expert_router.arguments import RouterRule

_DEFAULTS: dict[str, Any] = granite.DEFAULTS | {
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 1024,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_head": "auto",
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
_MAMBA = {
    "heads": "mamba_n_heads",
    "groups": "mamba_n_groups",
    "state": "mamba_d_state",
    "taps": "mamba_d_conv",
    "bias": "mamba_conv_bias",
}

_UNLIMITED = (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}])


def _unsaid(keys: Keys, layers: int) -> tuple[Mixer, ...]:
    mixer: Mixer = "mamba"
    return (mixer,) * layers


def _check(keys: Keys, common: Fields) -> None:
    if keys.flag("mamba_proj_bias"):
        raise keys.refusal(f"mamba_proj_bias is not supported for {keys.model_type}")
    if keys.get("time_step_limit") not in _UNLIMITED:
        raise keys.refusal(f"time_step_limit {keys.get('time_step_limit')} is not supported: steps are not clamped")


def _more(keys: Keys, common: Fields) -> Fields:
    made = granite.factors(keys, common)
    if common["mixers"]:
        heads = keys.size("mamba_n_heads", most=MAX_HEADS)
        inner = keys.size("mamba_expand") * common["hidden"]
        head_dim = inner // heads if keys.get("mamba_d_head") == "auto" else keys.size("mamba_d_head")
        if heads * head_dim != inner:
            raise keys.refusal(f"mamba_n_heads {heads} of {head_dim} values, which are not {inner}: not supported")
        made["mamba"] = folder_mamba(keys, _MAMBA, head_dim)
    if _has_experts(keys):
        made["feed_forward"] = keys.size("intermediate_size")
    return made


def _has_experts(keys: Keys) -> bool:
    return keys.size("num_local_experts", least=0, most=MAX_EXPERTS) > 0


def _sparse(keys: Keys, layers: int) -> tuple[bool, ...]:
    return (_has_experts(keys),) * layers


def _rule(keys: Keys) -> RouterRule:
    return RouterRule(keys.size("num_experts_per_tok"), "softmax", normalise=True)  # of the selected experts alone


def _file_more(keys: GgufKeys, common: Fields) -> Fields:
    made = granite.file_factors(keys, common)
    return made | ({"mamba": file_mamba(keys, has_part(keys, "convolution_bias"))} if common["mixers"] else {})


def _written(config: Config) -> Fields:
    made = granite.written(config) | written_head_counts(config)
    return made | ({} if config.experts is None else {"expert_shared_feed_forward_length": config.experts.shared})


def _without_mamba(config: Config) -> Architecture | None:
    return None if config.mixers else granite.GGUF


def _narrow(config: Config, vectors: object) -> str | None:
    m = config.mamba
    return None if m is None or m.inner == 2 * config.hidden else f"Mamba2 {m.inner} wide in a hidden state of {config.hidden}"


_GGUF = Architecture(
    "granitehybrid",
    GroupedFile(scale=granite.file_scale, long_rope=True),
    mixers=file_mixers("mamba"),
    experts=file_experts(lambda keys, common: Gating("softmax", normalise=True, scale=1.0), own_shared=True),
    more=_file_more,
    rope_flag="rope.scaling.finetuned",
    rope_divisors=True,
    refused=first_of(_narrow, unbiased_convolution),
    written=_written,
)
FAMILY = Family(
    types=(
        ModelType(
            "granitemoehybrid",
            written_as=_GGUF,
            written_otherwise=_without_mamba,
            attention=granite.ATTENTION,
            defaults=_DEFAULTS,
            aliases={"layers_block_type": "layer_types", "num_experts": "num_local_experts"},
            mixers=mixers_by_type("mamba", _unsaid),
            feed_forward="shared_intermediate_size",  # intermediate_size is that of experts
            experts=ExpertKeys(
                _sparse,
                _rule,
                count="num_local_experts",
                shared=None,
                corrected=False,
                width="intermediate_size",
                shared_width="shared_intermediate_size",
            ),
            more=_more,
            check=_check,
            has_rope=lambda keys: keys.get("position_embedding_type") == "rope",
            tensors={
                **{f"{prefix}gate_up": "shared_mlp.input_linear.weight" for prefix in ("", "shared_")},
                **{f"{prefix}down": "shared_mlp.output_linear.weight" for prefix in ("", "shared_")},
                "router": "block_sparse_moe.router.layer.weight",
                "experts_gate_up": "block_sparse_moe.input_linear.weight",
                "experts_down": "block_sparse_moe.output_linear.weight",
                "mixer_input": "mamba.in_proj.weight",
                "convolution": "mamba.conv1d.weight",
                "convolution_bias": "mamba.conv1d.bias",
                "decay_logarithm": "mamba.A_log",
                "step_bias": "mamba.dt_bias",
                "skip": "mamba.D",
                "gated_norm": "mamba.norm.weight",
                "mixer_output": "mamba.out_proj.weight",
            },
            pre_tokenizer="dbrx",
        ),
    ),
    gguf=_GGUF,
)
