"""The rotary embedding of a folder's config.json, as transformers computes it."""

from __future__ import annotations

import numpy as np

from decodestep.models import rope
from decodestep.models.architectures.config_json import Keys, RopeParameters
from decodestep.models.architectures.limits import LEAST_FACTOR, MOST_FACTOR
from decodestep.models.config import Config
from decodestep.models.model_folder import ModelFolder
from decodestep.models.rope import Rope


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
    stretch = {"least": LEAST_FACTOR, "most": MOST_FACTOR}
    if p.kind == "default":
        return Rope(rope.plain(p.theta, width))
    if p.kind == "linear":
        return Rope(rope.plain(p.theta, width) / np.float32(p.number("factor", **stretch)))
    original = p.original(config.context)
    if p.kind == "llama3":
        low, high = p.number("low_freq_factor", **stretch), p.number("high_freq_factor", **stretch)
        if not low < high:
            raise keys.refusal(f"low_freq_factor {low:g} must be below high_freq_factor {high:g}")
        return Rope(rope.llama3(p.theta, width, factor=p.number("factor", **stretch), low=low, high=high, original=original))
    factor = p.number("factor", config.context / original, **stretch)
    given = p.number("attention_factor", **stretch) if "attention_factor" in p else None
    if p.kind == "yarn":
        if p.theta == 1:
            raise keys.refusal("rope_theta 1 and YaRN contradict each other")
        fast, slow = (p.number(name, 0.0, least=0.0, most=1e6) for name in ("beta_fast", "beta_slow"))
        mscale, all_dim = (p.number(name, 0.0, least=0.0, most=100.0) for name in ("mscale", "mscale_all_dim"))
        frequencies = rope.yarn(
            p.theta,
            width,
            factor=factor,
            original=original,
            fast=fast or 32.0,
            slow=slow or 1.0,
            truncate=p.truncate,
        )
        return Rope(frequencies, rope.yarn_factor(factor, mscale, all_dim) if given is None else given)
    if p.kind == "longrope":
        short, long = (rope.longrope(p.theta, width, p.divisors(f"{name}_factor", width // 2)) for name in ("short", "long"))
        growth = rope.long_factor(factor, max(original, 2)) if given is None else given
        switches = original < config.context and not np.array_equal(short, long)
        return Rope(short, growth, long if switches else None, original)
    raise keys.refusal(f"rope_type {p.kind!r} is not supported ('default', 'linear', 'llama3', 'yarn' and 'longrope' are)")
