"""Qwen3.5: Qwen3-Next's layers with dense feed-forward blocks; of folders with images beside them, the text model.

A GGUF file has value heads that share a key head apart by the number of key heads.
"""

from __future__ import annotations

from typing import Any

from decodestep.decoding.config import Config
from decodestep.families import qwen3_next
from decodestep.families.common.description import TEXT_PREFIXES, Architecture, Family, Fields, ModelType, Wrapper
from decodestep.families.common.mixers import file_mixers
from decodestep.families.common.refusals import first_of

DEFAULTS: dict[str, Any] = qwen3_next.DEFAULTS | {
    "vocab_size": 248320,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
}
TENSORS = {
    "delta_qkv": "linear_attn.in_proj_qkv.weight",
    "delta_gate": "linear_attn.in_proj_z.weight",
    "delta_beta": "linear_attn.in_proj_b.weight",
    "delta_alpha": "linear_attn.in_proj_a.weight",
}
PREFIXES = {"model.mtp.": "mtp."}  # of the layer for next-token prediction in some folders
WRAPPED = {**TEXT_PREFIXES, **PREFIXES, "mtp.": "mtp."}
# For texts the positions of all three axes are equal, so that these sections of a rope change nothing.
_SECTIONS = [11, 11, 10, 0]


def written(config: Config) -> Fields:
    return qwen3_next.written(config) | {"rope.dimension_sections": _SECTIONS}


GGUF = Architecture(
    "qwen35",
    qwen3_next.FILE_ATTENTION,
    qwen3_next.LAYERS,
    rope_half_split=True,
    tensors=qwen3_next.FILE_TENSORS,
    mixers=file_mixers("delta"),
    more=qwen3_next.file_more(tiled=True),
    output_bias=False,
    tiled_heads=True,
    refused=first_of(qwen3_next.values_as_wide_as_keys, qwen3_next.delta_layers),
    written=written,
)
FAMILY = Family(
    types=(
        ModelType(
            "qwen3_5_text",
            written_as=GGUF,
            attention=qwen3_next.ATTENTION,
            defaults=DEFAULTS,
            layers=qwen3_next.LAYERS,
            mixers=qwen3_next.MIXERS,
            next_token_layers=True,
            next_token_names=qwen3_next.NEXT_TOKEN_NAMES,
            more=qwen3_next.more,
            check=qwen3_next.check,
            tensors=TENSORS,
            prefixes=PREFIXES,
            norm_shift=1.0,
        ),
    ),
    gguf=GGUF,
    wrappers=(Wrapper("qwen3_5", unsaid="qwen3_5_text", prefixes=WRAPPED),),
)
