"""Nemotron-H as files: those with a mixture of experts have an architecture of their own."""

from __future__ import annotations

from decodestep.decoding.config import Config
from decodestep.families.common.description import Architecture, Family, Fields, Layers
from decodestep.families.common.experts import file_experts, stored_gating
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import GroupedFile
from decodestep.families.common.mixers import file_mamba, file_mixers, has_part, written_head_counts
from decodestep.families.common.refusals import first_of, unbiased_convolution

LAYERS = Layers(activation="relu_squared")
_NORM = dict.fromkeys(("attention_norm", "ffn_norm"), "attn_norm.weight")  # before the only block of a layer


def _file_widths(keys: GgufKeys, layers: int) -> tuple[int, ...]:
    return keys.sizes("feed_forward_length", least=0)[:layers]


def _file_sparse(keys: GgufKeys, layers: int) -> tuple[bool, ...]:
    return tuple(width > 0 for width in _file_widths(keys, layers))


def _file_more(keys: GgufKeys, common: Fields) -> Fields:
    widths = _file_widths(keys, common["layers"])
    if not any(widths):
        key = keys.key("feed_forward_length")
        raise keys.refusal(f"{key} 0 in all layers: a model without feed-forward blocks is not supported")
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


def architecture(name: str, *, mixture: bool) -> Architecture:
    return Architecture(
        name,
        GroupedFile(),
        LAYERS,
        tensors=_NORM,
        mixers=file_mixers("mamba"),
        experts=file_experts(
            lambda keys, common: stored_gating(keys, unsaid="sigmoid"), sparse_layers=_file_sparse, own_shared=True
        )
        if mixture
        else None,
        more=_file_more,
        next_token_layers=False,  # they have a norm between attention and experts, and one that centres after them
        has_rope=False,
        refused=first_of(_unlike_files, unbiased_convolution),
        written=_written,
    )


GGUF = architecture("nemotron_h_moe", mixture=True)
FAMILY = Family(gguf=GGUF)
