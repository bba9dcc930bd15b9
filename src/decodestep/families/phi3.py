"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: one weight of queries, keys and values, and one of gate and up; long-rope.

A file does not say that its rope is long-rope: it has the tensors of its factors.
"""

from __future__ import annotations

from decodestep.families import llama
from decodestep.families.common.config_json import Keys, RopeParameters
from decodestep.families.common.description import Architecture, Family, Fields, ModelType
from decodestep.families.common.grouped import GroupedFile, GroupedKeys, partial_rope, same_windows

_DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}


def _check(keys: Keys, common: Fields) -> None:
    """transformers refuses the others too."""
    kind = RopeParameters(keys).rope_type
    if kind not in ("default", "longrope"):
        raise keys.refusal(f"rope_type {kind!r} is not supported for {keys.model_type} ('default' and 'longrope' are)")


_GGUF = Architecture(
    "phi3",
    GroupedFile(long_rope=True, partial_rope=True),
    rope_half_split=True,
    tensors={"qkv": "attn_qkv.weight", "gate_up": "ffn_up.weight"},
)
FAMILY = Family(
    types=(
        ModelType(
            "phi3",
            written_as=_GGUF,
            attention=GroupedKeys(windows=same_windows, rope_dim=partial_rope(1.0)),
            defaults=_DEFAULTS,
            rope_types={"su": "longrope", "yarn": "longrope"},
            check=_check,
            tensors={"qkv": "self_attn.qkv_proj.weight", "gate_up": "mlp.gate_up_proj.weight"},
        ),
    ),
    gguf=_GGUF,
)
