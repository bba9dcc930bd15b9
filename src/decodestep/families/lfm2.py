"""LFM2 and LFM2.5: short convolutions in most layers, in the others attention with norms of heads.

The norm before the logits is named as one of the embedding, in folders and in files.
"""

from __future__ import annotations

from typing import Any

from decodestep.decoding.config import Config, ConvolutionConfig, Mixer
from decodestep.families import llama
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, Fields, Layers, ModelType
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import GroupedFile, GroupedKeys
from decodestep.families.common.limits import MAX_WIDTH
from decodestep.families.common.mixers import file_mixers, mixers_by_type, written_head_counts
from decodestep.families.common.refusals import first_of, wide_heads

LAYERS = Layers(query_key_norm="head")
DEFAULTS: dict[str, Any] = llama.DEFAULTS | {
    "vocab_size": 65536,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_theta": 1000000.0,
    "conv_bias": False,
    "conv_L_cache": 3,
}
_WIDTHS = {
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
    "full_attn_idxs": None,
}
TENSORS = {
    "attention_norm": "operator_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "attention_output": "self_attn.out_proj.weight",
    "queries_norm": "self_attn.q_layernorm.weight",
    "keys_norm": "self_attn.k_layernorm.weight",
    "gate": "feed_forward.w1.weight",
    "up": "feed_forward.w3.weight",
    "down": "feed_forward.w2.weight",
    "mixer_input": "conv.in_proj.weight",
    "mixer_input_bias": "conv.in_proj.bias",
    "convolution": "conv.conv.weight",
    "convolution_bias": "conv.conv.bias",
    "mixer_output": "conv.out_proj.weight",
    "mixer_output_bias": "conv.out_proj.bias",
}
OUTSIDE = {"norm": "model.embedding_norm.weight"}
FILE_TENSORS = {
    "mixer_input": "shortconv.in_proj.weight",
    "convolution": "shortconv.conv.weight",
    "convolution_bias": "shortconv.conv.bias",
    "mixer_output": "shortconv.out_proj.weight",
}
FILE_OUTSIDE = {"norm": "token_embd_norm.weight"}
_MAX_TAPS = 1 << 10


def _unsaid(keys: Keys, layers: int) -> tuple[Mixer, ...]:
    attend = keys.get("full_attn_idxs")
    if attend is not None and not isinstance(attend, list):
        raise keys.refusal("full_attn_idxs must be a list")
    return tuple("attention" if attend is None or i in attend else "convolution" for i in range(layers))


MIXERS = mixers_by_type("convolution", _unsaid)
FILE_MIXERS = file_mixers("convolution", FILE_TENSORS)


def convolution(keys: Keys, common: Fields) -> Fields:
    if not common["mixers"]:
        return {}
    return {"convolution": ConvolutionConfig(keys.size("conv_L_cache", most=_MAX_TAPS), keys.flag("conv_bias"))}


def _more(keys: Keys, common: Fields) -> Fields:
    """The width of a feed-forward block may be made of the one that is said."""
    width = common["feed_forward"]
    if keys.flag("block_auto_adjust_ff_dim", True):
        width = int(2 * width / 3)
        if keys.get("block_ffn_dim_multiplier") is not None:
            width = int(keys.number("block_ffn_dim_multiplier", least=0.0, most=1e3) * width)
            multiple = keys.size("block_multiple_of", most=MAX_WIDTH)
            width = multiple * -(-width // multiple)
    return convolution(keys, common) | {"feed_forward": width}


def file_convolution(keys: GgufKeys, common: Fields) -> Fields:
    return {"convolution": ConvolutionConfig(keys.size("shortconv.l_cache", most=_MAX_TAPS))} if common["mixers"] else {}


def written(config: Config) -> Fields:
    made = written_head_counts(config)
    return made | ({} if config.convolution is None else {"shortconv.l_cache": config.convolution.taps})


def _biases(config: Config, vectors: object) -> str | None:
    c = config.convolution
    return "biases of convolutions" if c is not None and c.bias else None


def _attention_alone(config: Config, vectors: object) -> str | None:
    return None if config.convolution is not None else "no convolutions"


refused = first_of(_biases, _attention_alone, wide_heads)
_GGUF = Architecture(
    "lfm2",
    GroupedFile(),
    LAYERS,
    rope_half_split=True,
    tensors=FILE_TENSORS,
    outside=FILE_OUTSIDE,
    mixers=FILE_MIXERS,
    more=file_convolution,
    output_bias=False,
    refused=refused,
    written=written,
)
FAMILY = Family(
    types=(
        ModelType(
            "lfm2",
            written_as=_GGUF,
            attention=GroupedKeys(),
            defaults=DEFAULTS | _WIDTHS,
            layers=LAYERS,
            mixers=MIXERS,
            norm_eps="norm_eps",
            aliases={"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"},
            more=_more,
            tensors=TENSORS,
            outside=OUTSIDE,
            pre_tokenizer="lfm2",
        ),
    ),
    gguf=_GGUF,
)
