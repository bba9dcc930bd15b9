"""Nemotron-H and Nemotron Nano: layers of one block each, which is Mamba2, attention without a rope, a feed-forward block of
squared ReLU, or a mixture of such experts, which may read a latent."""

from __future__ import annotations

from typing import Any

from decodestep.decoding.config import Mixer
from decodestep.families import deepseek2, llama, nemotron_h_moe
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Activation, Family, Fields, ModelType
from decodestep.families.common.experts import ExpertKeys
from decodestep.families.common.grouped import GroupedKeys
from decodestep.families.common.limits import MAX_LAYERS
from decodestep.families.common.mixers import (
    ATTENTION,
    RECURRENT,
    checked,
    folder_mamba,
    kinds_of_layers,
)

_DEFAULTS: dict[str, Any] = llama.DEFAULTS | {
    "vocab_size": 131072,
    "layers_block_type": None,
    "hybrid_override_pattern": None,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 21504,
    "max_position_embeddings": 4096,
    "mlp_hidden_act": "relu2",
    "layer_norm_epsilon": 1e-5,
    "ssm_state_size": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "mamba_hidden_act": "silu",
    "n_groups": 8,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "mamba_proj_bias": False,
    "use_bias": False,
    "n_routed_experts": 8,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "moe_latent_size": None,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
}
_MAMBA = {
    "heads": "mamba_num_heads",
    "groups": "n_groups",
    "state": "ssm_state_size",
    "taps": "conv_kernel",
    "bias": "use_conv_bias",
}
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_UNSAID = ["mamba", "moe", "attention", "mlp"]
# One norm before the only block of a layer.
_NORM = dict.fromkeys(("attention_norm", "ffn_norm"), "norm.weight")


def _kinds(keys: Keys) -> list[str]:
    listed = kinds_of_layers(keys, "layers_block_type", (*ATTENTION, *RECURRENT, "mlp", "moe"))
    if listed is not None:
        return listed
    pattern = keys.get("hybrid_override_pattern")
    if pattern is None:
        return _UNSAID
    if not isinstance(pattern, str) or not pattern or set(pattern) - _LETTERS.keys():
        raise keys.refusal(f"hybrid_override_pattern must be made of {', '.join(_LETTERS)}")
    return [_LETTERS[letter] for letter in pattern]


def _layer_count(keys: Keys) -> int:
    """Whatever num_hidden_layers says."""
    count = len(_kinds(keys))
    if count > MAX_LAYERS:
        raise keys.refusal(f"{count} layers are more than {MAX_LAYERS}")
    return count


def _mixers(keys: Keys, layers: int) -> tuple[Mixer, ...]:
    return checked(tuple(map(_mixer, _kinds(keys))), keys.refusal)


def _mixer(kind: str) -> Mixer:
    if kind in ATTENTION:
        return "attention"
    return "mamba" if kind in RECURRENT else "none"


def _sparse(keys: Keys, layers: int) -> tuple[bool, ...]:
    return tuple(kind == "moe" for kind in _kinds(keys))


def _check(keys: Keys, common: Fields) -> None:
    for key in ("use_bias", "mamba_proj_bias", "mlp_bias"):
        if keys.flag(key):
            raise keys.refusal(f"{key} is not supported for {keys.model_type}")
    if keys.get("mamba_hidden_act") != "silu":
        raise keys.refusal(f"mamba_hidden_act {keys.get('mamba_hidden_act')!r} is not supported ('silu' is)")


def _more(keys: Keys, common: Fields) -> Fields:
    kinds, width = _kinds(keys), common["feed_forward"]
    made: Fields = {"feed_forwards": tuple(width if kind == "mlp" else 0 for kind in kinds)}
    if "mlp" not in kinds:
        made["feed_forward"] = keys.size("moe_intermediate_size") if "moe" in kinds else width
    if "mamba" in common["mixers"]:
        made["mamba"] = folder_mamba(keys, _MAMBA, keys.size("mamba_head_dim"))
    return made


_GGUF = nemotron_h_moe.architecture("nemotron_h", mixture=False)
FAMILY = Family(
    types=(
        ModelType(
            "nemotron_h",
            written_as=_GGUF,
            written_otherwise=lambda config: None if config.experts is None else nemotron_h_moe.GGUF,
            attention=GroupedKeys(half_split=False),
            defaults=_DEFAULTS,
            layers=nemotron_h_moe.LAYERS,
            layer_count=_layer_count,
            mixers=_mixers,
            norm_eps="layer_norm_epsilon",
            aliases={
                "layer_types": "layers_block_type",
                "num_local_experts": "n_routed_experts",
                "mamba_n_groups": "n_groups",
                "mamba_d_conv": "conv_kernel",
                "mamba_conv_bias": "use_conv_bias",
            },
            activation=Activation("mlp_hidden_act", ("relu2",)),
            experts=ExpertKeys(
                _sparse,
                deepseek2.v3_rule,
                count="n_routed_experts",
                shared=None,
                corrected=True,
                shared_width="moe_shared_expert_intermediate_size",
                latent="moe_latent_size",
            ),
            more=_more,
            check=_check,
            has_rope=lambda keys: False,
            tensors={
                **_NORM,
                **{part: f"mixer.{part[0]}_proj.weight" for part in ("query", "key", "value")},
                "attention_output": "mixer.o_proj.weight",
                **{part: f"mixer.{part}_proj.weight" for part in ("up", "down")},
                "router": "mixer.gate.weight",
                "correction": "mixer.gate.e_score_correction_bias",
                **{f"experts_{part}": f"mixer.experts.{{e}}.{part}_proj.weight" for part in ("up", "down")},
                **{f"shared_{part}": f"mixer.shared_experts.{part}_proj.weight" for part in ("up", "down")},
                "latent_down": "mixer.fc1_latent_proj.weight",
                "latent_up": "mixer.fc2_latent_proj.weight",
                "mixer_input": "mixer.in_proj.weight",
                "convolution": "mixer.conv1d.weight",
                "convolution_bias": "mixer.conv1d.bias",
                "decay_logarithm": "mixer.A_log",
                "step_bias": "mixer.dt_bias",
                "skip": "mixer.D",
                "gated_norm": "mixer.norm.weight",
                "mixer_output": "mixer.out_proj.weight",
            },
            outside={"embedding": "model.embeddings.weight", "norm": "model.norm_f.weight"},
            prefixes={"backbone.": "model."},
        ),
    ),
    gguf=_GGUF,
)
