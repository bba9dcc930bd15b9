"""Granite 3, and of Granite 4 the dense models: factors of the embedding, the residual stream, scores and logits."""

from __future__ import annotations

from decodestep.decoding.config import Config
from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, ModelType
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import ATTENTION_BIAS, FACTOR, GroupedFile, GroupedKeys

_DEFAULTS = llama.DEFAULTS | {
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}


def _file_scale(keys: GgufKeys, common: Fields, head_dim: int) -> float | None:
    return keys.number("attention.scale", 0.0, **FACTOR) or None


def _file_factors(keys: GgufKeys, common: Fields) -> Fields:
    return {
        "embedding_scale": keys.number("embedding_scale", 1.0, **FACTOR) or 1.0,
        "residual_scale": keys.number("residual_scale", 1.0, **FACTOR) or 1.0,
        "logits_divisor": keys.number("logit_scale", least=1e-6, most=1e6),
    }


def _written(config: Config) -> Fields:
    return {
        "attention.scale": config.scale,
        "embedding_scale": config.embedding_scale,
        "residual_scale": config.residual_scale,
        "logit_scale": config.logits_divisor,
    }


def _factors(keys: Keys, common: Fields) -> Fields:
    return {
        "embedding_scale": keys.number("embedding_multiplier", **FACTOR),
        "residual_scale": keys.number("residual_multiplier", **FACTOR),
        "logits_divisor": keys.number("logits_scaling", least=1e-6, most=1e6),
    }


def _check_hybrid(keys: Keys, common: Fields) -> None:
    """Granite 4's class has Mamba layers and experts, of which its dense models have none."""
    if keys.size("num_local_experts", least=0):
        raise keys.refusal(
            f"num_local_experts {keys.get('num_local_experts')}, experts, is not supported for {keys.model_type}"
        )
    kinds, layers = keys.get("layer_types"), common["layers"]
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != layers):
        raise keys.refusal(f"layer_types must have one for each of {layers} layers")
    other = next((kind for kind in kinds or ["mamba"] if kind not in ("attention", "full_attention")), None)
    if other is not None:
        raise keys.refusal(f"layer_types with {other!r} is not supported for {keys.model_type} ('attention' is)")


_GGUF = Architecture(
    "granite",
    GroupedFile(scale=_file_scale, long_rope=True),
    more=_file_factors,
    rope_flag="rope.scaling.finetuned",
    feed_forward_biases=True,
    rope_divisors=True,
    written=_written,
)
_ATTENTION = GroupedKeys(bias_keys=ATTENTION_BIAS, scale=lambda keys: keys.number("attention_multiplier", **FACTOR))
FAMILY = Family(
    types=(
        ModelType(
            "granite",
            written_as=_GGUF,
            attention=_ATTENTION,
            defaults=_DEFAULTS,
            mlp_bias="mlp_bias",
            more=_factors,
            pre_tokenizer="refact",
        ),
        ModelType(
            "granitemoehybrid",
            written_as=_GGUF,
            attention=_ATTENTION,
            defaults=_DEFAULTS | {"num_local_experts": 8, "shared_intermediate_size": 1024},
            aliases={"layers_block_type": "layer_types"},
            feed_forward="shared_intermediate_size",  # intermediate_size is that of experts
            more=_factors,
            check=_check_hybrid,
            has_rope=lambda keys: keys.get("position_embedding_type") == "rope",
            tensors={"gate_up": "shared_mlp.input_linear.weight", "down": "shared_mlp.output_linear.weight"},
            pre_tokenizer="dbrx",
        ),
    ),
    gguf=_GGUF,
)
