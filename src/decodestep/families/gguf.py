"""Architectures of GGUF: sizes and rotary embedding from a file's metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from decodestep.decoding import rope
from decodestep.decoding.config import Config, LatentConfig
from decodestep.decoding.rope import Rope
from decodestep.errors import ModelError
from decodestep.families import gguf_grouped, names
from decodestep.families.gguf_experts import experts_of
from decodestep.families.gguf_keys import Described, GgufKeys
from decodestep.families.limits import LEAST_FACTOR, MAX_CONTEXT, MOST_FACTOR


def config_of(file: Described) -> Config:
    """A model's sizes from a file's metadata. Raises ModelError for an unsupported architecture or size."""
    purpose = file.metadata.get("general.type", "model")
    if purpose != "model":  # "adapter", "mmproj", "imatrix"
        raise ModelError(f"{file.path}: general.type is {purpose!r}: the file is no model, but made for one")
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _CONFIGS:
        supported = ", ".join(map(repr, _CONFIGS))
        raise ModelError(f"{file.path}: architecture {architecture!r} is not supported ({supported} are)")
    return _CONFIGS[architecture](GgufKeys(file, architecture))


def ropes_of(file: Described, config: Config, vector: Callable[[str, int], np.ndarray]) -> tuple[Rope, ...]:
    """The rotary embedding, and a second one if `config.grouped.ropes` refers to it. vector: reads a tensor of the file by its
    name and length."""
    keys = GgufKeys(file, config.architecture)
    first = _rope(keys, config, vector)
    return (first, gguf_grouped.second_rope(keys, config)) if any(config.grouped.ropes) else (first,)


def _rope(keys: GgufKeys, config: Config, vector: Callable[[str, int], np.ndarray]) -> Rope:
    width = config.latent_attention.rope_dim if config.latent_attention else config.head_dim
    if keys.architecture == "granite" and not keys.flag("rope.scaling.finetuned", True):
        return rope.none(width)  # the key says there whether positions are rotated, as in llama.cpp
    theta = keys.number("rope.freq_base", 10000.0, least=1.0, most=1e30)
    kind = keys.text("rope.scaling.type", "linear")  # without a type a factor is of this one, as in llama.cpp
    given = keys.number("rope.scaling.attn_factor", 1.0, least=LEAST_FACTOR, most=MOST_FACTOR)
    by_length = any(name in keys.file.tensors for name in names.ROPE_FACTORS.values())
    if given != 1 and config.latent_attention and not by_length:  # there llama.cpp scales scores by it too
        raise keys.refusal("rope.scaling.attn_factor is not supported in latent attention")
    if kind == "yarn":
        return _yarn(keys, theta, width, given)
    factor = 1.0 if kind == "none" else _factor(keys)
    if by_length:
        return _longrope(keys, theta, width, config.context, vector, factor)
    if kind == "longrope":
        raise keys.refusal("rope scaling 'longrope' without the tensors {long} and {short}".format(**names.ROPE_FACTORS))
    frequencies = rope.plain(theta, width)
    if names.ROPE_DIVISORS in keys.file.tensors:
        frequencies = frequencies / _factors(keys.file, names.ROPE_DIVISORS, width, vector)
    return Rope((frequencies / np.float32(factor)).astype(np.float32), given)


def _yarn(keys: GgufKeys, theta: float, width: int, given: float) -> Rope:
    """given: the file's factor of sine and cosine, beside YaRN's own."""
    factor, original = _stretch(keys)
    fast = keys.number("rope.scaling.yarn_beta_fast", 0.0, least=0.0, most=1e6) or rope.YARN_FAST
    slow = keys.number("rope.scaling.yarn_beta_slow", 0.0, least=0.0, most=1e6) or rope.YARN_SLOW
    if theta == 1:
        raise keys.refusal("rope.freq_base 1 and YaRN contradict each other")
    beside = next((name for name in (names.ROPE_DIVISORS, *names.ROPE_FACTORS.values()) if name in keys.file.tensors), None)
    if beside is not None:
        raise keys.refusal(f"rope scaling 'yarn' beside the tensor {beside} is not supported")
    frequencies = rope.yarn(theta, width, factor=factor, original=original, fast=fast, slow=slow)
    # The file has one of transformers' two factors, mscale_all_dim; published models have equal ones.
    strength = _yarn_strength(keys)
    usual = rope.yarn_factor(factor, strength, strength)
    # transformers' attention_factor, where llama.cpp's converter writes it
    growth = keys.number("rope.scaling.yarn_attn_factor", usual, least=LEAST_FACTOR, most=MOST_FACTOR)
    return Rope(frequencies, growth * given)


def _longrope(
    keys: GgufKeys, theta: float, width: int, context: int, vector: Callable[[str, int], np.ndarray], factor: float
) -> Rope:
    """factor: by which all positions are stretched, beside the tensors' factors, as in llama.cpp."""
    divisors = (factor * _factors(keys.file, name, width, vector) for name in names.ROPE_FACTORS.values())
    short, long = (rope.longrope(theta, width, each) for each in divisors)
    original = keys.size("rope.scaling.original_context_length", context, most=MAX_CONTEXT)
    usual = rope.long_factor(context / original, original)
    growth = keys.number("rope.scaling.attn_factor", usual, least=LEAST_FACTOR, most=MOST_FACTOR)
    return rope.by_length(short, long, growth, original=original, context=context)


def _factors(file: Described, name: str, width: int, vector: Callable[[str, int], np.ndarray]) -> np.ndarray:
    divisors = vector(name, width // 2)
    if not ((divisors >= LEAST_FACTOR) & (divisors <= MOST_FACTOR)).all():
        raise ModelError(f"{file.path}: tensor {name} must hold {width // 2} numbers in [{LEAST_FACTOR:g}, {MOST_FACTOR:g}]")
    return divisors


def _factor(keys: GgufKeys) -> float:
    """By how much positions are stretched. The second name is that of files from before August 2023."""
    old = keys.number("rope.scale_linear", 1.0, least=LEAST_FACTOR, most=MOST_FACTOR)
    return keys.number("rope.scaling.factor", old, least=LEAST_FACTOR, most=MOST_FACTOR)


def _stretch(keys: GgufKeys) -> tuple[float, int]:
    return _factor(keys), keys.size("rope.scaling.original_context_length", keys.size("context_length"), most=MAX_CONTEXT)


def _yarn_strength(keys: GgufKeys) -> float:
    """transformers' mscale_all_dim, which the file stores divided by ten; 0 if it has none. llama.cpp reads the key of no other
    architecture here."""
    if keys.architecture != "deepseek2":
        return 0.0
    return keys.number("rope.scaling.yarn_log_multiplier", 0.0, least=0.0, most=100.0) / 0.1


def _latent(keys: GgufKeys, common: dict[str, Any], head: int, value: int, *, query_rank: int | None) -> dict[str, Any]:
    """The sizes of latent attention. head, value: the widths of a head of keys and of values."""
    rotated = keys.size("rope.dimension_count")
    if rotated > head or rotated % 2:
        raise keys.refusal(f"rope.dimension_count {rotated} is odd, or more than a head's {head} values")
    scaling = keys.text("rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise keys.refusal(f"rope scaling {scaling!r} is not supported")
    scale = head**-0.5
    if scaling != "none" and (strength := _yarn_strength(keys)):  # as in transformers, whatever stretches positions
        scale *= rope.yarn_growth(_factor(keys), strength) ** 2
    attention = LatentConfig(query_rank, keys.size("attention.kv_lora_rank"), head - rotated, rotated, value, scale)
    return {**common, "kv_heads": common["heads"], "head_dim": head, "latent_attention": attention}


def _query_rank(keys: GgufKeys) -> int | None:
    """The tensors say whether queries have a latent; llama.cpp counts layers."""
    return None if names.GGUF["query"].format(i=0) in keys.file.tensors else keys.size("attention.q_lora_rank")


def _deepseek2(keys: GgufKeys) -> Config:
    common = keys.common()
    if keys.number("attention.temperature_scale", 0.0, least=-1e6, most=1e6):
        raise keys.refusal("attention.temperature_scale, by which scores grow with the position, is not supported")
    whole = "attention.key_length_mla" not in keys  # an older file: the true head sizes have the plain names
    head, value = (keys.size(f"attention.{name}_length{'' if whole else '_mla'}") for name in ("key", "value"))
    latent = _latent(keys, common, head, value, query_rank=_query_rank(keys))
    return Config(**latent, feed_forward=keys.size_of_layers("feed_forward_length"), experts=experts_of(keys, common))


def _minicpm3(keys: GgufKeys) -> Config:
    common = keys.common()
    hidden, heads, layers = (common[name] for name in ("hidden", "heads", "layers"))
    head = keys.size("attention.key_length")
    latent = _latent(keys, common, head, hidden // heads, query_rank=_query_rank(keys))
    return Config(
        **latent,
        feed_forward=keys.size_of_layers("feed_forward_length"),
        rope_half_split=True,
        # Of MiniCPM3-4B; the file has no keys for them.
        embedding_scale=12.0,
        residual_scale=1.4 / layers**0.5,
        logits_divisor=hidden / 256,
    )


def _plm(keys: GgufKeys) -> Config:
    common = keys.common()
    head, value = keys.size("attention.key_length"), keys.size("attention.value_length")
    latent = _latent(keys, common, head, value, query_rank=None)
    return Config(**latent, feed_forward=keys.size_of_layers("feed_forward_length"), activation="relu_squared")


_CONFIGS: dict[str, Callable[[GgufKeys], Config]] = {
    **gguf_grouped.CONFIGS,
    "deepseek2": _deepseek2,
    "minicpm3": _minicpm3,
    "plm": _plm,
}
