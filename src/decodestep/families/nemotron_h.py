"""Nemotron-H and Nemotron Nano: layers of one block each, which is Mamba2, attention without a rope, a feed-forward block of squared
ReLU, or a mixture of such experts, which may read a latent.

The mixtures are files of an architecture of their own.
"""

from __future__ import annotations

from typing import Any

from decodestep.decoding.config import Config, Mixer
from decodestep.families import deepseek2, llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Activation, Architecture, Family, Fields, Layers, ModelType
from decodestep.families.common.experts import ExpertKeys, file_experts, stored_gating
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import GroupedFile, GroupedKeys
from decodestep.families.common.limits import MAX_LAYERS
from decodestep.families.common.mixers import (
    ATTENTION,
    RECURRENT,
    checked,
    file_mamba,
    file_mixers,
    folder_mamba,
    has_part,
    kinds_of_layers,
    written_head_counts,
)
from decodestep.families.common.refusals import first_of, unbiased_convolution

LAYERS = Layers(activation="relu_squared")
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
_FILE_NORM = dict.fromkeys(("attention_norm", "ffn_norm"), "attn_norm.weight")


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
    of_kind: dict[str, Mixer] = {"mlp": "none", "moe": "none"}
    of_kind |= dict.fromkeys(ATTENTION, "attention") | dict.fromkeys(RECURRENT, "mamba")
    return checked(tuple(of_kind[kind] for kind in _kinds(keys)), keys.refusal)


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


def _file_widths(keys: GgufKeys, layers: int) -> tuple[int, ...]:
    return keys.sizes("feed_forward_length", least=0)[:layers]


def _file_sparse(keys: GgufKeys, layers: int) -> tuple[bool, ...]:
    return tuple(width > 0 for width in _file_widths(keys, layers))


def _file_more(keys: GgufKeys, common: Fields) -> Fields:
    widths = _file_widths(keys, common["layers"])
    made: Fields = {"feed_forward": max(widths)}
    has_experts = keys.size("expert_count", 0, least=0) > 0
    made["feed_forwards"] = (0,) * len(widths) if has_experts else widths
    if "mamba" in common["mixers"]:
        made["mamba"] = file_mamba(keys, has_part(keys, "convolution_bias"))
    return made


def _written(config: Config) -> Fields:
    experts = config.experts
    made = written_head_counts(config) | {"attention.layer_norm_epsilon": config.norm_eps}
    made["feed_forward_length"] = list(config.feed_forwards)
    if experts is not None:
        made["feed_forward_length"] = [experts.width if sparse else 0 for sparse in experts.layers]
        made["expert_shared_feed_forward_length"] = experts.shared
        made |= {"moe_latent_size": experts.latent} if experts.latent else {}
    return made


def _unlike_files(config: Config, vectors: object) -> str | None:
    if config.mamba is None:
        return "no layers of Mamba2"
    return "dense blocks beside experts" if config.experts is not None and any(config.feed_forwards) else None


def _architecture(name: str, *, mixture: bool) -> Architecture:
    return Architecture(
        name,
        GroupedFile(),
        LAYERS,
        tensors=_FILE_NORM,
        mixers=file_mixers("mamba"),
        experts=file_experts(
            lambda keys, common: stored_gating(keys, unsaid="sigmoid"), sparse_layers=_file_sparse, own_shared=True
        )
        if mixture
        else None,
        more=_file_more,
        has_rope=False,
        refused=first_of(_unlike_files, unbiased_convolution),
        written=_written,
    )


_GGUF = _architecture("nemotron_h", mixture=False)
MIXTURE = _architecture("nemotron_h_moe", mixture=True)
FAMILY = Family(
    types=(
        ModelType(
            "nemotron_h",
            written_as=_GGUF,
            written_otherwise=lambda config: None if config.experts is None else MIXTURE,
            attention=GroupedKeys(half_split=False),
            defaults=_DEFAULTS,
            layers=LAYERS,
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
                **{f"{part}": f"mixer.{part[0]}_proj.weight" for part in ("query", "key", "value")},
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
