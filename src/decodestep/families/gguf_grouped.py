"""Architectures of GGUF with grouped-query attention: a function for each, and the rotation of layers with their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from decodestep.decoding import rope
from decodestep.decoding.config import Config, GroupedConfig
from decodestep.decoding.rope import Rope
from decodestep.families import names
from decodestep.families.gguf_experts import SOFTMAX, experts_of
from decodestep.families.gguf_keys import GgufKeys
from decodestep.families.limits import LEAST_FACTOR, MAX_CONTEXT, MAX_HEADS, MOST_FACTOR

_BIASED = ("query", "key", "value", "attention_output")
FEED_FORWARD_BIASES = ("llama", "granite")  # whose files may have biases of feed-forward blocks
_LONG_ROPE = (("longrope", "llama"), ("longrope", "granite"))  # the files in which llama.cpp reads the tensors of its factors
_GEMMA_PERIOD = 6  # of which the last layer sees all positions
_SMOLLM3_PERIOD = 4  # of which the last layer is not rotated; the file has no key for it
_GEMMA3_27B_LAYERS = 62  # the one whose scores are scaled by another width than a head's


def second_rope(keys: GgufKeys, config: Config) -> Rope:
    """Rotation 1 of `config.grouped.ropes`: that of layers with windows, or in SmolLM3 none."""
    if keys.architecture == "smollm3":
        return rope.none(config.head_dim)
    factor = keys.number("rope.scaling.attn_factor", 1.0, least=LEAST_FACTOR, most=MOST_FACTOR)
    return Rope(rope.plain(keys.number("rope.freq_base_swa", 10000.0, least=1.0, most=1e30), config.head_dim), factor)


def _grouped_fields(keys: GgufKeys, *, window: bool = True, **more: Any) -> dict[str, Any]:
    """The fields that all have. window: whether the sliding window applies to all layers. more: further fields."""
    common = keys.common()
    hidden, heads, layers = common["hidden"], common["heads"], common["layers"]
    kv_heads = keys.size_of_layers("attention.head_count_kv", heads, most=MAX_HEADS)
    head_dim = keys.size("attention.key_length", hidden // heads)
    values = keys.size("attention.value_length", head_dim)
    rotated = keys.size("rope.dimension_count", head_dim)
    if heads % kv_heads or head_dim % 2 or not head_dim == values == rotated:
        raise keys.refusal(
            f"{heads} query heads on {kv_heads} key heads of {head_dim} values, {values} of them read, {rotated} rotated: "
            "not supported"
        )
    scaling = keys.text("rope.scaling.type", "none")
    if scaling not in ("none", "linear", "yarn") and (scaling, keys.architecture) not in _LONG_ROPE:
        raise keys.refusal(f"rope scaling {scaling!r} is not supported")
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        if keys.number(key, 0.0, least=-1e6, most=1e6):
            raise keys.refusal(f"{key} is not supported")
    size = keys.size("attention.sliding_window", 0, least=0, most=MAX_CONTEXT) if window else 0
    biases = tuple(part for part in _BIASED if _has_bias(keys, part))
    options: dict[str, Any] = {"biases": biases, "windows": (size,) * layers if size else (), **more}
    return {**common, "kv_heads": kv_heads, "head_dim": head_dim, "grouped": GroupedConfig(**options)}


def _has_bias(keys: GgufKeys, part: str) -> bool:
    return names.GGUF[f"{part}_bias"].format(i=0) in keys.file.tensors


def _dense(keys: GgufKeys, *, rope_half_split: bool, **more: Any) -> Config:
    if keys.size("expert_count", 0, least=0):
        raise keys.refusal("experts are not supported")
    sizes, width = _grouped_fields(keys, **more), keys.size_of_layers("feed_forward_length")
    biases = keys.architecture in FEED_FORWARD_BIASES and any(_has_bias(keys, part) for part in names.FEED_FORWARD)
    return Config(**sizes, feed_forward=width, rope_half_split=rope_half_split, biases=biases)


def _llama(keys: GgufKeys) -> Config:
    return _dense(keys, rope_half_split=False)


def _qwen2(keys: GgufKeys) -> Config:
    return _dense(keys, rope_half_split=True)


def _qwen3(keys: GgufKeys) -> Config:
    return _dense(keys, rope_half_split=True, head_norms=True)


def _qwen3moe(keys: GgufKeys) -> Config:
    sizes = _grouped_fields(keys, head_norms=True)
    experts = experts_of(keys, sizes, SOFTMAX)  # whatever the keys say, which llama.cpp does not read here
    width = keys.size_of_layers("feed_forward_length", None if experts is None else experts.width)
    return Config(**sizes, feed_forward=width, rope_half_split=True, experts=experts)


def _smollm3(keys: GgufKeys) -> Config:
    layers = keys.common()["layers"]
    return _dense(keys, rope_half_split=False, ropes=tuple(int((i + 1) % _SMOLLM3_PERIOD == 0) for i in range(layers)))


def _granite(keys: GgufKeys) -> Config:
    factors = {"least": -1e6, "most": 1e6}
    return replace(
        _dense(keys, rope_half_split=False, scale=keys.number("attention.scale", 0.0, **factors) or None),
        embedding_scale=keys.number("embedding_scale", 1.0, **factors) or 1.0,
        residual_scale=keys.number("residual_scale", 1.0, **factors) or 1.0,
        logits_divisor=keys.number("logit_scale", least=1e-6, most=1e6),
    )


def _gemma3(keys: GgufKeys) -> Config:
    common = keys.common()
    hidden, heads, layers = common["hidden"], common["heads"], common["layers"]
    head_dim = keys.size("attention.key_length", hidden // heads)
    for key in ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"):
        if keys.size(key, head_dim) != head_dim:
            raise keys.refusal(f"{key}, another width of the heads of layers with windows, is not supported")
    size = keys.size("attention.sliding_window", 0, least=0, most=MAX_CONTEXT)
    slides = _slides(keys, layers) if size else (False,) * layers
    sizes = _grouped_fields(
        keys,
        window=False,
        head_norms=True,
        scale=(hidden // heads if layers == _GEMMA3_27B_LAYERS else head_dim) ** -0.5,
        windows=tuple(size if slide else 0 for slide in slides),
        ropes=tuple(int(slide) for slide in slides),
    )
    return Config(
        **sizes,
        feed_forward=keys.size_of_layers("feed_forward_length"),
        rope_half_split=True,
        activation="gelu_gated",
        post_norms=True,
        embedding_scale=float(np.sqrt(np.float32(hidden))),
    )


def _slides(keys: GgufKeys, layers: int) -> tuple[bool, ...]:
    """Which layers have a window: from a list, or all except every n-th."""
    found = keys.file.metadata.get(f"{keys.architecture}.attention.sliding_window_pattern")
    if isinstance(found, np.ndarray):
        if found.dtype.kind not in "iub" or len(found) != layers:
            raise keys.refusal(f"attention.sliding_window_pattern must be a number, or one for each of {layers} layers")
        return tuple(map(bool, found))
    period = keys.size("attention.sliding_window_pattern", _GEMMA_PERIOD)
    return tuple(i % period < period - 1 for i in range(layers))


CONFIGS: dict[str, Callable[[GgufKeys], Config]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "smollm3": _smollm3,
    "granite": _granite,
    "gemma3": _gemma3,
}
