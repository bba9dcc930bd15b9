"""MiniCPM3: latent attention in dense layers, and factors of the embedding, the residual stream and the logits."""

from __future__ import annotations

import math

from decodestep.decoding.config import Config
from decodestep.families import deepseek2
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, ModelType
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.latent import LatentFile, LatentKeys

_DEFAULTS = deepseek2.LATENT_DEFAULTS | {
    "vocab_size": 73448,
    "hidden_size": 2560,
    "intermediate_size": 6400,
    "num_hidden_layers": 62,
    "num_attention_heads": 40,
    "kv_lora_rank": 256,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": None,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
}


def _widths(keys: GgufKeys, common: Fields) -> tuple[int, int]:
    return keys.size("attention.key_length"), common["hidden"] // common["heads"]


def _file_factors(keys: GgufKeys, common: Fields) -> Fields:
    """Those of MiniCPM3-4B; a file has no keys for them."""
    return {
        "embedding_scale": 12.0,
        "residual_scale": 1.4 / common["layers"] ** 0.5,
        "logits_divisor": common["hidden"] / 256,
    }


def _factors(keys: Keys, common: Fields) -> Fields:
    layers, hidden = common["layers"], common["hidden"]
    depth, base = keys.get("scale_depth"), keys.size_or_none("dim_model_base")
    depth = math.sqrt(layers) if depth is None else keys.number("scale_depth", least=-1e6, most=1e6)
    return {
        "embedding_scale": keys.number("scale_emb", least=-1e6, most=1e6),
        "residual_scale": depth / math.sqrt(layers),
        "logits_divisor": hidden / (base or hidden),
    }


def _refused(config: Config, vectors: object) -> str | None:
    latent = config.latent_attention
    return "queries that have no latent" if latent is not None and latent.query_rank is None else None


_GGUF = Architecture("minicpm3", LatentFile(_widths), rope_half_split=True, more=_file_factors, refused=_refused)
FAMILY = Family(
    types=(
        ModelType(
            "minicpm3",
            written_as=_GGUF,
            attention=LatentKeys(half_split=lambda keys: True),
            defaults=_DEFAULTS,
            mlp_bias="mlp_bias",
            more=_factors,
        ),
    ),
    gguf=_GGUF,
)
