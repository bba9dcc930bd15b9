"""A model's sizes and ropes from a folder's config.json."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, takewhile

import numpy as np

from decodestep.decoding import rope
from decodestep.decoding.config import Config
from decodestep.decoding.rope import Rope
from decodestep.families.common import config_json, names
from decodestep.families.common.config_json import Keys, RopeParameters
from decodestep.families.common.description import Fields, ModelType
from decodestep.families.common.limits import LEAST_FACTOR, MAX_CONTEXT, MAX_HEADS, MOST_FACTOR
from decodestep.families.common.registry import read_model_type
from decodestep.files.model_folder import ModelFolder

_STRETCH = {"least": LEAST_FACTOR, "most": MOST_FACTOR}


def read_keys(folder: ModelFolder) -> tuple[ModelType, Keys]:
    """Raises ModelError for a model_type that is not supported."""
    found = read_model_type(folder)
    return found, Keys(folder, found.name, found.defaults, found.aliases, found.rope_types)


def read_config(folder: ModelFolder) -> Config:
    """A model's sizes from config.json. Raises ModelError for an unsupported architecture or size."""
    model_type, keys = read_keys(folder)
    _check_quantization(keys, model_type)
    if "is_causal" in folder.config and folder.config["is_causal"] is not True:
        raise keys.refusal("is_causal false, bidirectional attention, is not supported")
    if keys.get("per_layer_config") and not model_type.sizes_by_layer:
        raise keys.refusal("per_layer_config, sizes of single layers, is not supported")
    activation, layers = model_type.activation, model_type.layer_count(keys)
    norm_eps = model_type.norm_eps or f"{'layer' if model_type.layers.centred_norms else 'rms'}_norm_eps"
    if keys.get(activation.key) not in activation.names:
        raise keys.refusal(f"{activation.key} {keys.get(activation.key)!r} is not supported ({activation.names[0]!r} is)")
    name = folder.config.get("_name_or_path") or folder.path.resolve().name
    common: Fields = {
        "architecture": keys.model_type,
        "name": name if isinstance(name, str) else folder.path.name,
        "vocab_size": keys.size("vocab_size"),
        "hidden": keys.size("hidden_size"),
        "layers": layers,
        "heads": keys.size("num_attention_heads", most=MAX_HEADS),
        "feed_forward": keys.size(model_type.feed_forward),
        "context": keys.size("max_position_embeddings", most=MAX_CONTEXT),
        "norm_eps": keys.number(norm_eps, least=1e-30, most=1.0),
        # A head of its own counts, as in transformers, which ties nothing where the two differ.
        "tied": keys.flag("tie_word_embeddings") and names.FOLDER["output"] not in folder.tensors,
        "mixers": model_type.mixers(keys, layers),
        "biases": model_type.mlp_bias is not None and keys.flag(model_type.mlp_bias),
        "activation": model_type.layers.activation,
        "block_norms": model_type.layers.block_norms,
        "centred_norms": model_type.layers.centred_norms,
        "norm_shift": model_type.norm_shift,
    }
    attention = model_type.attention.read(keys, common, model_type)
    model_type.check(keys, common)
    config = Config(
        **(common | attention | model_type.more(keys, common)),
        experts=None if model_type.experts is None else model_type.experts(keys, layers),
    )
    return _with_next_token_layers(config, folder, model_type.tensor_names) if model_type.next_token_layers else config


def _with_next_token_layers(config: Config, folder: ModelFolder, table: dict[str, str]) -> Config:
    """By the folder's tensors: keys announce layers that folders do not have."""
    has = folder.tensors.__contains__
    found = takewhile(lambda i: has(table["next_join"].format(i=i)), count(config.layers))
    return names.with_next_token_layers(config, table, has, sum(1 for _ in found))


def _check_quantization(keys: Keys, model_type: ModelType) -> None:
    """Refuses quantised weights, except float8 with a scale for each 128 x 128 or each weight, and experts in MXFP4."""
    found = keys.get("quantization_config")
    if found is None:
        return
    if not isinstance(found, dict):
        raise keys.refusal("quantization_config must be an object")
    if "experts_gate_up_in_turn_blocks" in model_type.tensors and found.get("quant_method") == "mxfp4":
        return
    for name, supported in {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}.items():
        value = found.get(name, "e4m3" if name == "fmt" else None)
        per_tensor = name == "weight_block_size" and name in found and value is None
        if value != supported and not per_tensor:
            raise keys.refusal(f"quantization_config of {name} {value!r} is not supported ({supported!r} is)")


def read_ropes(folder: ModelFolder, config: Config) -> tuple[Rope, ...]:
    """The rotary embedding of config.json, and a second one if `config.grouped.ropes` refers to it."""
    model_type, keys = read_keys(folder)
    if not model_type.has_rope(keys):
        return (rope.none(config.head_dim),)
    if model_type.ropes_by_layer_type:
        full, sliding = (
            _rope(keys, config, RopeParameters(keys, f"{kind}_attention"), config.rope_width(index))
            for index, kind in enumerate(("full", "sliding"))
        )
        if sliding.long_frequencies is not None:
            raise keys.refusal("rope_type 'longrope' of sliding_attention is not supported")
        first, second = full, sliding
    else:
        first, second = _rope(keys, config, RopeParameters(keys), config.rotated), rope.none(config.rotated)
        if model_type.query_growth is not None:
            first = _growing(first, RopeParameters(keys), model_type.query_growth, config.context)
    return (first, second) if any(config.grouped.ropes) else (first,)


def _growing(first: Rope, p: RopeParameters, key: str, context: int) -> Rope:
    """The rope of queries that grow, from the context before it was extended on."""
    return replace(first, query_growth=p.number(key, least=0.0, most=1e3), query_interval=p.original(context))


def _rope(keys: Keys, config: Config, p: RopeParameters, width: int) -> Rope:
    if p.rope_type == "proportional":
        return Rope(rope.proportional(p.theta, width, p.part or 1.0) / np.float32(p.number("factor", 1.0, **_STRETCH)))
    if p.part not in (None, 1.0) and config.grouped.rope_dim is None:
        raise keys.refusal("partial_rotary_factor is not supported")
    match p.rope_type:
        case "default" | config_json.FIXED:
            return Rope(rope.plain(p.base(width), width))
        case "linear":
            return Rope(rope.plain(p.theta, width) / np.float32(p.number("factor", **_STRETCH)))
        case "llama3":
            return Rope(_llama3(keys, p, width, p.original(config.context)))
        case "yarn":
            return _yarn(keys, p, width, config.context)
        case "longrope":
            return _longrope(p, width, config.context)
    raise keys.refusal(f"rope_type {p.rope_type!r} is not supported ('default', 'linear', 'llama3', 'yarn' and 'longrope' are)")


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
