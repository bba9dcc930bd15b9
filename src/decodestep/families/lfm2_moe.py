"""LFM2 with a mixture of experts after the first layers."""

from __future__ import annotations

from decodestep.decoding.config import Config
from decodestep.families import glm4_moe, lfm2
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, ModelType
from decodestep.families.common.experts import ExpertKeys, Gating, file_experts
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import GroupedFile, GroupedKeys
from decodestep.families.common.limits import MAX_LAYERS
from decodestep.families.common.refusals import dense_layers, first_of
from decodestep.ops.expert_router.arguments import RouterRule

_DEFAULTS = lfm2.DEFAULTS | {
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_dense_layers": 2,
    "num_experts_per_tok": 4,
    "num_experts": 32,
    "use_expert_bias": True,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}
_EPS = 1e-6  # of the sum that weights are divided by


def _sparse(keys: Keys, layers: int) -> tuple[bool, ...]:
    dense = keys.size("num_dense_layers", least=0, most=MAX_LAYERS)
    return tuple(i >= dense for i in range(layers))


def _rule(keys: Keys) -> RouterRule:
    return RouterRule(
        keys.size("num_experts_per_tok"),
        "sigmoid",
        normalise=keys.flag("norm_topk_prob"),
        scale=keys.number("routed_scaling_factor", least=0.0, most=1e6),
        eps=_EPS,
    )


def _gating(keys: GgufKeys, common: Fields) -> Gating:
    """llama.cpp reads neither whether weights are normalised nor a factor."""
    return Gating("sigmoid", normalise=True, scale=1.0, eps=_EPS)


def _uncorrected(config: Config, vectors: object) -> str | None:
    return None if config.experts is None or config.experts.corrected else "no biases for the selection of experts"


_GGUF = Architecture(
    "lfm2moe",
    GroupedFile(),
    lfm2.LAYERS,
    rope_half_split=True,
    tensors=lfm2.FILE_TENSORS,
    outside=lfm2.FILE_OUTSIDE,
    mixers=lfm2.FILE_MIXERS,
    experts=file_experts(_gating),
    more=lfm2.file_convolution,
    output_bias=False,
    refused=first_of(lfm2.refused, dense_layers, _uncorrected),
    written=lambda config: lfm2.written(config) | glm4_moe.written(config),
)
FAMILY = Family(
    types=(
        ModelType(
            "lfm2_moe",
            written_as=_GGUF,
            attention=GroupedKeys(),
            defaults=_DEFAULTS,
            layers=lfm2.LAYERS,
            mixers=lfm2.MIXERS,
            norm_eps="norm_eps",
            aliases={"tie_embedding": "tie_word_embeddings", "num_local_experts": "num_experts"},
            experts=ExpertKeys(
                _sparse, _rule, count="num_experts", shared=None, corrected=lambda keys: keys.flag("use_expert_bias", True)
            ),
            more=lfm2.convolution,
            tensors=lfm2.TENSORS
            | {
                "router": "feed_forward.gate.weight",
                "correction": "feed_forward.expert_bias",
                "experts_gate": "feed_forward.experts.{e}.w1.weight",
                "experts_up": "feed_forward.experts.{e}.w3.weight",
                "experts_down": "feed_forward.experts.{e}.w2.weight",
            },
            outside=lfm2.OUTSIDE,
            pre_tokenizer="lfm2",
        ),
    ),
    gguf=_GGUF,
)
