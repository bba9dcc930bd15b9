"""Granite 3: factors of the embedding, the residual stream, scores and logits."""

from __future__ import annotations

from decodestep.decoding.config import Config
from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, ModelType
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import ATTENTION_BIAS, FACTOR, GroupedFile, GroupedKeys

DEFAULTS = llama.DEFAULTS | {
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}


def file_scale(keys: GgufKeys, common: Fields, head_dim: int) -> float | None:
    return keys.number("attention.scale", 0.0, **FACTOR) or None


def file_factors(keys: GgufKeys, common: Fields) -> Fields:
    return {
        "embedding_scale": keys.number("embedding_scale", 1.0, **FACTOR) or 1.0,
        "residual_scale": keys.number("residual_scale", 1.0, **FACTOR) or 1.0,
        "logits_divisor": keys.number("logit_scale", least=1e-6, most=1e6),
    }


def written(config: Config) -> Fields:
    return {
        "attention.scale": config.scale,
        "embedding_scale": config.embedding_scale,
        "residual_scale": config.residual_scale,
        "logit_scale": config.logits_divisor,
    }


def factors(keys: Keys, common: Fields) -> Fields:
    return {
        "embedding_scale": keys.number("embedding_multiplier", **FACTOR),
        "residual_scale": keys.number("residual_multiplier", **FACTOR),
        "logits_divisor": keys.number("logits_scaling", least=1e-6, most=1e6),
    }


GGUF = Architecture(
    "granite",
    GroupedFile(scale=file_scale, long_rope=True),
    more=file_factors,
    rope_flag="rope.scaling.finetuned",
    feed_forward_biases=True,
    rope_divisors=True,
    written=written,
)
ATTENTION = GroupedKeys(bias_keys=ATTENTION_BIAS, scale=lambda keys: keys.number("attention_multiplier", **FACTOR))
FAMILY = Family(
    types=(
        ModelType(
            "granite",
            written_as=GGUF,
            attention=ATTENTION,
            defaults=DEFAULTS,
            mlp_bias="mlp_bias",
            more=factors,
            pre_tokenizer="refact",
        ),
    ),
    gguf=GGUF,
)
