"""The rotary embedding of a GGUF file, as llama.cpp computes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from decodestep.decoding import rope
from decodestep.decoding.config import Config
from decodestep.decoding.rope import Rope
from decodestep.errors import ModelError
from decodestep.families.common import names
from decodestep.families.common.description import Architecture
from decodestep.families.common.gguf_keys import Described, GgufKeys
from decodestep.families.common.limits import LEAST_FACTOR, MAX_CONTEXT, MOST_FACTOR

NO_ROPE = 1e20  # a divisor from here on leaves its pair as it is


def first_rope(keys: GgufKeys, architecture: Architecture, config: Config, vector: Callable[[str, int], np.ndarray]) -> Rope:
    """The rope of all layers without one of their own. vector: reads a tensor of the file by its name and length."""
    width = config.rope_width(0)
    if not architecture.has_rope or (architecture.rope_flag is not None and not keys.flag(architecture.rope_flag, True)):
        return rope.none(width)
    made = _first_rope(keys, architecture, config, vector, width)
    growth = 0.0 if config.latent_attention else keys.number("attention.temperature_scale", 0.0, least=0.0, most=1e3)
    if not growth:
        return made
    interval = keys.size("rope.scaling.original_context_length", config.context, most=MAX_CONTEXT)
    return replace(made, query_growth=growth, query_interval=interval)


def _first_rope(
    keys: GgufKeys, architecture: Architecture, config: Config, vector: Callable[[str, int], np.ndarray], width: int
) -> Rope:
    theta = keys.number("rope.freq_base", 10000.0, least=1.0, most=1e30)
    if (alpha := keys.number("rope.scaling.alpha", 0.0, least=0.0, most=MOST_FACTOR)) and width > 2:
        theta *= alpha ** (width / (width - 2))
    scaling = keys.text("rope.scaling.type", "linear")  # without a type a factor is of this one, as in llama.cpp
    given = keys.number("rope.scaling.attn_factor", 1.0, least=LEAST_FACTOR, most=MOST_FACTOR)
    by_length = any(name in keys.file.tensors for name in names.ROPE_FACTORS.values())
    if given != 1 and config.latent_attention and not by_length:  # there llama.cpp scales scores by it too
        raise keys.refusal("rope.scaling.attn_factor is not supported in latent attention")
    if scaling == "yarn":
        return _yarn(keys, architecture, theta, width, given)
    factor = 1.0 if scaling == "none" else keys.rope_factor()
    if by_length:
        return _longrope(keys, theta, width, config.context, vector, factor)
    if scaling == "longrope":
        raise keys.refusal("rope scaling 'longrope' without the tensors {long} and {short}".format(**names.ROPE_FACTORS))
    frequencies = rope.plain(theta, width)
    if names.ROPE_DIVISORS in keys.file.tensors:
        divisors = _factors(keys.file, names.ROPE_DIVISORS, width, vector)
        frequencies = np.where(divisors < NO_ROPE, frequencies / divisors, 0).astype(np.float32)
    return Rope((frequencies / np.float32(factor)).astype(np.float32), given)


def _yarn(keys: GgufKeys, architecture: Architecture, theta: float, width: int, given: float) -> Rope:
    """given: the file's factor of sine and cosine, beside YaRN's own."""
    factor = keys.rope_factor()
    original = keys.size("rope.scaling.original_context_length", keys.size("context_length"), most=MAX_CONTEXT)
    fast = keys.number("rope.scaling.yarn_beta_fast", 0.0, least=0.0, most=1e6) or rope.YARN_FAST
    slow = keys.number("rope.scaling.yarn_beta_slow", 0.0, least=0.0, most=1e6) or rope.YARN_SLOW
    if theta == 1:
        raise keys.refusal("rope.freq_base 1 and YaRN contradict each other")
    beside = next((name for name in (names.ROPE_DIVISORS, *names.ROPE_FACTORS.values()) if name in keys.file.tensors), None)
    if beside is not None:
        raise keys.refusal(f"rope scaling 'yarn' beside the tensor {beside} is not supported")
    frequencies = rope.yarn(
        theta, width, factor=factor, original=original, fast=fast, slow=slow, truncate=architecture.yarn_truncates
    )
    # The file has one of transformers' two factors, mscale_all_dim; published models have equal ones.
    strength = architecture.yarn_strength(keys)
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
    if not ((divisors >= LEAST_FACTOR) & ((divisors <= MOST_FACTOR) | (divisors >= NO_ROPE))).all():
        raise ModelError(f"{file.path}: tensor {name} must hold {width // 2} numbers in [{LEAST_FACTOR:g}, {MOST_FACTOR:g}]")
    return divisors
