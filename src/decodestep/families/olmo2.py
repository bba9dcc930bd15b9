"""OLMo 2: norms after blocks alone, and of queries and keys over all heads of a token.

A file of it that has windows is one of OLMo 3.
"""

from __future__ import annotations

from decodestep.decoding import rope
from decodestep.decoding.config import Config
from decodestep.decoding.rope import Rope
from decodestep.families import llama
from decodestep.families.common.description import Architecture, Family, Fields, Layers, ModelType
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.grouped import (
    ATTENTION_BIAS,
    GroupedFile,
    GroupedKeys,
    patterned_file_windows,
    written_pattern,
)
from decodestep.families.common.refusals import attention_biases, first_of, tied_output, wide_heads

PERIOD = 4  # of which the last layer of OLMo 3 sees all positions
LAYERS = Layers(query_key_norm="row", block_norms="after")
DEFAULTS = llama.DEFAULTS | {"vocab_size": 50304, "rms_norm_eps": 1e-5}
# The usual name of the norm before the feed-forward block stands for another.
TENSORS = {
    "attention_post_norm": "post_attention_layernorm.weight",
    "ffn_post_norm": "post_feedforward_layernorm.weight",
}


def _sliding_rope(keys: GgufKeys, width: int) -> Rope:
    """What scales the rope of a file does so in layers without a window alone."""
    theta = keys.number("rope.freq_base", 10000.0, least=1.0, most=1e30)
    return Rope(rope.plain(keys.number("rope.freq_base_swa", theta, least=1.0, most=1e30), width))


def _written(config: Config) -> Fields:
    return written_pattern(config) if any(config.grouped.windows) else {}


GGUF = Architecture(
    "olmo2",
    GroupedFile(
        windows=patterned_file_windows(PERIOD),
        ropes=lambda windows, layers: tuple(int(window > 0) for window in windows),
    ),
    LAYERS,
    rope_half_split=True,
    second_rope=_sliding_rope,
    written=_written,
    refused=first_of(attention_biases, wide_heads, tied_output),
)
FAMILY = Family(
    types=(
        ModelType(
            "olmo2",
            written_as=GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS),
            defaults=DEFAULTS,
            layers=LAYERS,
            tensors=TENSORS,
            pre_tokenizer="dbrx",
        ),
    ),
    gguf=GGUF,
)
