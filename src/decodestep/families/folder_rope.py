"""The rotary embedding of a folder's config.json, as transformers computes it."""

from __future__ import annotations

import numpy as np

from decodestep.decoding import rope
from decodestep.decoding.config import Config
from decodestep.decoding.rope import Rope
from decodestep.families.config_json import Keys, RopeParameters
from decodestep.families.limits import LEAST_FACTOR, MOST_FACTOR
from decodestep.files.model_folder import ModelFolder

_STRETCH = {"least": LEAST_FACTOR, "most": MOST_FACTOR}


def ropes_of(folder: ModelFolder, config: Config) -> tuple[Rope, ...]:
    """The rotary embedding of config.json, and a second one if `config.grouped.ropes` refers to it."""
    keys = Keys(folder)
    if keys.kind == "granitemoehybrid" and keys.get("position_embedding_type") != "rope":
        return (rope.none(config.head_dim),)
    if keys.kind == "gemma3_text":
        full, sliding = (_rope(keys, config, RopeParameters(keys, f"{kind}_attention")) for kind in ("full", "sliding"))
        if sliding.long_frequencies is not None:
            raise keys.refusal("rope_type 'longrope' of sliding_attention is not supported")
        first, second = full, sliding
    else:
        first, second = _rope(keys, config, RopeParameters(keys)), rope.none(config.head_dim)
    return (first, second) if any(config.grouped.ropes) else (first,)


def _rope(keys: Keys, config: Config, p: RopeParameters) -> Rope:
    width = config.latent_attention.rope_dim if config.latent_attention else config.head_dim
    match p.kind:
        case "default":
            return Rope(rope.plain(p.theta, width))
        case "linear":
            return Rope(rope.plain(p.theta, width) / np.float32(p.number("factor", **_STRETCH)))
        case "llama3":
            return Rope(_llama3(keys, p, width, p.original(config.context)))
        case "yarn":
            return _yarn(keys, p, width, config.context)
        case "longrope":
            return _longrope(p, width, config.context)
    raise keys.refusal(f"rope_type {p.kind!r} is not supported ('default', 'linear', 'llama3', 'yarn' and 'longrope' are)")


def _llama3(keys: Keys, p: RopeParameters, width: int, original: int) -> np.ndarray:
    low, high = p.number("low_freq_factor", **_STRETCH), p.number("high_freq_factor", **_STRETCH)
    if not low < high:
        raise keys.refusal(f"low_freq_factor {low:g} must be below high_freq_factor {high:g}")
    return rope.llama3(p.theta, width, factor=p.number("factor", **_STRETCH), low=low, high=high, original=original)


def _yarn(keys: Keys, p: RopeParameters, width: int, context: int) -> Rope:
    original = p.original(context)
    factor, given = p.number("factor", context / original, **_STRETCH), _attention_factor(p)
    if p.theta == 1:
        raise keys.refusal("rope_theta 1 and YaRN contradict each other")
    fast = p.number("beta_fast", 0.0, least=0.0, most=1e6) or rope.YARN_FAST
    slow = p.number("beta_slow", 0.0, least=0.0, most=1e6) or rope.YARN_SLOW
    mscale, all_dim = (p.number(name, 0.0, least=0.0, most=100.0) for name in ("mscale", "mscale_all_dim"))
    frequencies = rope.yarn(p.theta, width, factor=factor, original=original, fast=fast, slow=slow, truncate=p.truncate)
    return Rope(frequencies, rope.yarn_factor(factor, mscale, all_dim) if given is None else given)


def _longrope(p: RopeParameters, width: int, context: int) -> Rope:
    original = p.original(context)
    factor, given = p.number("factor", context / original, **_STRETCH), _attention_factor(p)
    short, long = (rope.longrope(p.theta, width, p.divisors(f"{name}_factor", width // 2)) for name in ("short", "long"))
    growth = rope.long_factor(factor, original) if given is None else given
    return rope.by_length(short, long, growth, original=original, context=context)


def _attention_factor(p: RopeParameters) -> float | None:
    """The factor of sine and cosine that replaces the one that a scaling has by itself."""
    return p.number("attention_factor", **_STRETCH) if "attention_factor" in p else None
