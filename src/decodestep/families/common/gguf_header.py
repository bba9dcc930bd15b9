"""Converts a folder's config.json to GGUF metadata with llama.cpp's names; refuses what these cannot express."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from decodestep.decoding import rope
from decodestep.decoding.config import Config, DeltaConfig, Experts
from decodestep.decoding.rope import Rope
from decodestep.families.common import gguf, names
from decodestep.families.common.config_json import Keys, RopeParameters
from decodestep.families.common.description import Architecture, Fields, ModelType
from decodestep.families.common.experts import written_experts
from decodestep.families.common.folder import read_keys
from decodestep.families.common.gguf_keys import NORM_EPS
from decodestep.families.common.mixers import written_sizes
from decodestep.families.common.names import NamedTensor
from decodestep.files.model_folder import ModelFolder

# Fields of Config that a GGUF file expresses in another way, or not at all.
_UNSAID = ("name", "architecture", "skipped_layers", "context_reason", "grouped.scale", "latent_attention.scale")


@dataclass(frozen=True)
class Header:
    """A GGUF file that is not written yet. metadata: without the tokenizer. config: as read from that metadata. tensors:
    each with its layer or -1, except `vectors`, which belong to the rope."""

    path: Path
    metadata: dict[str, Any]
    config: Config
    tensors: list[tuple[int, NamedTensor]]
    vectors: dict[str, np.ndarray]


@dataclass(frozen=True)
class _Unwritten:
    """What `gguf.read_config` reads of a file."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Any]


def build_header(folder: ModelFolder, config: Config, ropes: tuple[Rope, ...]) -> Header:
    """config, ropes: the folder's.

    Raises ModelError for a model that would differ when the file is read back, and for one whose file llama.cpp would not load.
    """
    model_type, keys = read_keys(folder)
    architecture = model_type.written_otherwise(config) or model_type.written_as
    config = replace(config, experts=_with_groups_that_count(config.experts))
    rope_fields, vectors = _rope_keys(model_type, architecture, keys, config, ropes)
    refused = _refused_by_llama_cpp(architecture, config, vectors)
    if refused is not None:
        raise keys.refusal(f"llama.cpp does not load a file of {architecture.name} with {refused}")
    data = {f"{architecture.name}.{key}": value for key, value in (_size_keys(architecture, config) | rope_fields).items()}
    data = {"general.architecture": architecture.name, "general.name": config.name, **data}
    expected = replace(
        config,
        architecture=architecture.name,
        rope_half_split=architecture.rope_half_split,
        norm_shift=0.0,
        skipped_layers=0,
        delta=_with_tiles(config.delta) if architecture.tiled_heads else config.delta,
    )
    tensors = _tensors(architecture, keys, expected)
    file = _Unwritten(folder.path, data, dict.fromkeys([tensor.name for _, tensor in tensors]) | vectors)
    read = gguf.read_config(file)
    _check_config(keys, expected, read)
    for ours, again in zip(ropes, gguf.read_ropes(file, read, lambda name, _: vectors[name]), strict=True):
        if not _same_rope(ours, again):
            raise keys.refusal(f"a GGUF file of {architecture.name} cannot say its rope")
    if (stretched := architecture.scaled_scores(rope_fields)) is not None:
        raise keys.refusal(
            f"llama.cpp scales the scores of a file of {architecture.name} with {stretched}, unlike transformers"
        )
    return Header(folder.path, data, read, tensors, vectors)


def _tensors(architecture: Architecture, keys: Keys, config: Config) -> list[tuple[int, NamedTensor]]:
    """The tensors of the file, each with its layer or -1."""

    def has(name: str) -> bool:
        """Of the two forms that a part may have, and of parts that a file may leave out."""
        return ("attn_kv_b" in name and not architecture.split_up_projections) or ".nextn." in name

    try:
        tensors = list(names.list_tensors(config, architecture.tensor_names, has))
    except KeyError as error:
        raise keys.refusal(f"a GGUF file has no name for {error}") from error
    empty = next((tensor.name for _, tensor in tensors if 0 in tensor.shape), None)
    if empty is not None:
        raise keys.refusal(f"a GGUF file cannot have a tensor without values, as {empty} would be")
    return tensors


def _check_config(keys: Keys, expected: Config, read: Config) -> None:
    """Refuses a model that the file's keys turn into another one."""
    theirs = _facts(read)
    for name, value in _facts(expected).items():
        if not _same(value, theirs.get(name)):
            raise keys.refusal(
                f"a GGUF file of {expected.architecture} would be read with {name} {theirs.get(name)}, not {value}"
            )


def _refused_by_llama_cpp(architecture: Architecture, config: Config, vectors: dict[str, np.ndarray]) -> str | None:
    """What llama.cpp refuses of a family, or None."""
    if "attention_output" in config.grouped.biases and not architecture.output_bias:
        return "a bias of the attention's output"
    if config.biases and not architecture.feed_forward_biases:
        return "biases of feed-forward blocks"
    return architecture.refused(config, vectors)


def _size_keys(architecture: Architecture, config: Config) -> Fields:
    made: Fields = {
        "block_count": config.layers + config.next_token_layers,
        "context_length": config.context,
        "embedding_length": config.hidden,
        "feed_forward_length": config.feed_forward,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        f"attention.{NORM_EPS[config.centred_norms]}": config.norm_eps,
    }
    if config.next_token_layers:
        made["nextn_predict_layers"] = config.next_token_layers
    made |= architecture.attention.written(config) | written_sizes(config)
    return made | architecture.written(config) | written_experts(config)


def _with_tiles(delta: DeltaConfig | None) -> DeltaConfig | None:
    """Heads in the order that a file has them in, which is the same where none share a key head."""
    return None if delta is None else replace(delta, tiled=delta.value_heads > delta.key_heads)


def _with_groups_that_count(experts: Experts | None) -> Experts | None:
    """Groups that are all kept exclude no expert, and llama.cpp ends the process that loads a file with such groups."""
    if experts is None or experts.rule.kept_groups < experts.rule.groups:
        return experts
    return replace(experts, rule=replace(experts.rule, groups=1, kept_groups=1, group_score="maximum"))


def _rope_keys(
    model_type: ModelType, architecture: Architecture, keys: Keys, config: Config, ropes: tuple[Rope, ...]
) -> tuple[Fields, dict[str, np.ndarray]]:
    """The keys of the rope, and its tensors by name."""
    if not architecture.has_rope:
        return {}, {}
    if architecture.rope_flag is not None and not ropes[0].inverse_frequencies.any():
        return {architecture.rope_flag: False}, {}
    p = RopeParameters(keys, "full_attention" if model_type.ropes_by_layer_type else None)
    made: Fields = {"rope.freq_base": p.base(config.rotated)}
    if ropes[0].query_growth:
        made["attention.temperature_scale"] = ropes[0].query_growth
    if model_type.ropes_by_layer_type:
        made["rope.freq_base_swa"] = RopeParameters(keys, "sliding_attention").theta
    if p.rope_type in ("linear", "yarn"):
        original = p.original(config.context)
        stretch = p.number("factor", config.context / original, least=0.0, most=math.inf)
        made |= {"rope.scaling.type": p.rope_type, "rope.scaling.factor": stretch}
    if p.rope_type == "yarn":
        made |= _yarn_keys(p, architecture, config, original, ropes[0].factor / rope.yarn_growth(stretch))
    if p.rope_type == "llama3" and architecture.rope_divisors:
        return made, {names.ROPE_DIVISORS: rope.plain(p.theta, config.rotated) / ropes[0].inverse_frequencies}
    if p.rope_type == "proportional":
        turned, every = ropes[0].inverse_frequencies, rope.plain(p.theta, config.rope_width(0))
        divisors = np.divide(every, turned, out=np.full_like(every, 1e30), where=turned > 0)
        return made, {names.ROPE_DIVISORS: divisors}
    if p.rope_type == "longrope":
        made |= {"rope.scaling.type": p.rope_type, "rope.scaling.original_context_length": p.original(config.context)}
        made |= {"rope.scaling.attn_factor": ropes[0].factor}
        return made, _longrope_factors(p, len(ropes[0].inverse_frequencies))
    return made, {}


def _yarn_keys(p: RopeParameters, architecture: Architecture, config: Config, original: int, more: float) -> Fields:
    """more: the factor of sine and cosine beside the one that llama.cpp computes."""
    numbers = ("beta_fast", "beta_slow", "mscale_all_dim")
    fast, slow, strength = (p.number(name, 0.0, least=0.0, most=1e6) for name in numbers)
    made = {
        "rope.scaling.original_context_length": original,
        "rope.scaling.yarn_beta_fast": fast or rope.YARN_FAST,
        "rope.scaling.yarn_beta_slow": slow or rope.YARN_SLOW,
    }
    if architecture.yarn_multiplier is not None:
        return made | ({"rope.scaling.yarn_log_multiplier": architecture.yarn_multiplier * strength} if strength else {})
    if config.latent_attention is None and not _same(more, 1.0):
        made["rope.scaling.attn_factor"] = more
    return made


def _longrope_factors(p: RopeParameters, count: int) -> dict[str, np.ndarray]:
    factors = {names.ROPE_FACTORS[name]: p.divisors(f"{name}_factor", count) for name in ("long", "short")}
    return {name: np.asarray(values, np.float32) for name, values in factors.items()}


def _facts(config: Config) -> dict[str, Any]:
    """What has to be the same, flat."""
    return dict(_flat("", asdict(config) | {"score scale": config.scale}))


def _flat(prefix: str, value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else key, item)
    elif prefix in _UNSAID:
        return
    elif isinstance(value, tuple) and not any(value):  # of all layers, that they have none
        yield prefix, ()
    else:
        yield prefix, value


def _same(a: object, b: object) -> bool:
    """Equal up to rounding to float32."""
    return math.isclose(a, b, rel_tol=1e-6) if isinstance(a, float) and isinstance(b, float) else bool(a == b)


def _same_rope(a: Rope, b: Rope) -> bool:
    if (a.long_frequencies is None) != (b.long_frequencies is None) or not _same(a.factor, b.factor):
        return False
    pairs = [(a.inverse_frequencies, b.inverse_frequencies)]
    if a.long_frequencies is not None and b.long_frequencies is not None:
        pairs += [(a.long_frequencies, b.long_frequencies)]
    same_place = a.long_frequencies is None or a.original == b.original
    grow_alike = _same(a.query_growth, b.query_growth) and (not a.query_growth or a.query_interval == b.query_interval)
    return same_place and grow_alike and all(np.allclose(mine, theirs, rtol=1e-6, atol=0) for mine, theirs in pairs)
