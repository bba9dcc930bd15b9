"""Converts a folder's config.json to GGUF metadata with llama.cpp's names; refuses what these cannot express."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from decodestep.decoding import rope
from decodestep.decoding.config import Config, Experts, LatentConfig
from decodestep.decoding.rope import Rope
from decodestep.families import gguf, gguf_grouped, names
from decodestep.families.config_json import Keys, RopeParameters
from decodestep.families.gguf_experts import SCORES
from decodestep.families.names import Part
from decodestep.files.model_folder import ModelFolder

ARCHITECTURES = {
    **{kind: kind for kind in ("llama", "qwen2", "qwen3", "smollm3", "granite", "minicpm3")},
    **{kind: "llama" for kind in ("mistral", "ministral")},
    "granitemoehybrid": "granite",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
    **{kind: "deepseek2" for kind in ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "youtu")},
}
_HALF_SPLIT = ("qwen2", "qwen3", "qwen3moe", "gemma3", "minicpm3")  # whose rotated pairs lie half a head apart
_WITH_FREQUENCIES = ("llama", "granite")  # whose files may have a tensor that divides them
_WITHOUT_OUTPUT_BIAS = ("qwen3", "qwen3moe", "smollm3", "gemma3")  # in llama.cpp, which takes no tensor that it does not know
_GATING = {scores: function for function, scores in SCORES.items()}
# Fields of Config that a GGUF file expresses in another way, or not at all.
_UNSAID = ("name", "architecture", "skipped_layers", "grouped.scale", "latent_attention.scale")


@dataclass(frozen=True)
class Header:
    """A GGUF file that is not written yet. metadata: without the tokenizer. config: as read from that metadata. parts: its
    tensors, each with its layer or -1, except `vectors`, which belong to the rotation."""

    path: Path
    metadata: dict[str, Any]
    config: Config
    parts: list[tuple[int, Part]]
    vectors: dict[str, np.ndarray]


@dataclass(frozen=True)
class _Unwritten:
    """What `gguf.config_of` reads of a file."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Any]


def header_of(folder: ModelFolder, config: Config, ropes: tuple[Rope, ...]) -> Header:
    """config, ropes: the folder's.

    Raises ModelError for a model that would differ when the file is read back, and for one whose file llama.cpp would not load.
    """
    keys = Keys(folder)
    architecture = ARCHITECTURES[keys.kind]
    config = replace(config, experts=_with_groups_that_count(config.experts))
    rotation, vectors = _rope_keys(keys, config, architecture, ropes)
    refused = _refused_by_llama_cpp(config, architecture, vectors)
    if refused is not None:
        raise keys.refusal(f"llama.cpp does not load a file of {architecture} with {refused}")
    data = {f"{architecture}.{key}": value for key, value in (_size_keys(config, architecture) | rotation).items()}
    data = {"general.architecture": architecture, "general.name": config.name, **data}
    expected = replace(
        config, architecture=architecture, rope_half_split=architecture in _HALF_SPLIT, norm_shift=0.0, skipped_layers=0
    )
    parts = _parts(keys, expected)
    file = _Unwritten(folder.path, data, dict.fromkeys([part.name for _, part in parts]) | vectors)
    read = gguf.config_of(file)
    _check_config(keys, expected, read)
    for ours, again in zip(ropes, gguf.ropes_of(file, read, lambda name, _: vectors[name]), strict=True):
        if not _same_rope(ours, again):
            raise keys.refusal(f"a GGUF file of {architecture} cannot say its rotation")
    if architecture == "deepseek2" and (stretched := _scores_that_grow(rotation)) is not None:
        raise keys.refusal(f"llama.cpp scales the scores of a file of deepseek2 with {stretched}, unlike transformers")
    return Header(folder.path, data, read, parts, vectors)


def _parts(keys: Keys, config: Config) -> list[tuple[int, Part]]:
    """The tensors of the file, each with its layer or -1."""

    def has(name: str) -> bool:
        """Of the two forms that a part may have: new files of deepseek2 have the latents' keys and values apart."""
        return config.architecture != "deepseek2" and "attn_kv_b" in name

    try:
        parts = list(names.parts_of(config, names.GGUF, has))
    except KeyError as error:
        raise keys.refusal(f"a GGUF file has no name for {error}") from error
    empty = next((part.name for _, part in parts if 0 in part.shape), None)
    if empty is not None:
        raise keys.refusal(f"a GGUF file cannot have a tensor without values, as {empty} would be")
    return parts


def _check_config(keys: Keys, expected: Config, read: Config) -> None:
    """Refuses a model that the file's keys turn into another one."""
    theirs = _facts(read)
    for name, value in _facts(expected).items():
        if not _same(value, theirs.get(name)):
            raise keys.refusal(
                f"a GGUF file of {expected.architecture} would be read with {name} {theirs.get(name)}, not {value}"
            )


def _refused_by_llama_cpp(config: Config, architecture: str, vectors: dict[str, np.ndarray]) -> str | None:
    """What llama.cpp refuses of an architecture, or None."""
    latent = config.latent_attention
    if "attention_output" in config.grouped.biases and architecture in _WITHOUT_OUTPUT_BIAS:
        return "a bias of the attention's output"
    if config.biases and architecture not in gguf_grouped.FEED_FORWARD_BIASES:
        return "biases of feed-forward blocks"
    if architecture == "qwen2" and config.heads * config.head_dim != config.hidden:
        return f"{config.heads} heads of {config.head_dim} values in a hidden state of {config.hidden}"
    if architecture == "minicpm3" and latent is not None and latent.query_rank is None:
        return "queries that have no latent"
    if architecture == "qwen3moe" and config.experts is None:
        return "dense layers alone"
    return "long-rope" if architecture == "deepseek2" and vectors else None


def _scores_that_grow(rotation: dict[str, Any]) -> str | None:
    """By which of deepseek2's rotations llama.cpp multiplies scores as transformers does not, or None."""
    stretch = rotation.get("rope.scaling.factor", 1.0)
    if stretch == 1:
        return None
    if rotation["rope.scaling.type"] == "linear":
        return f"a linear factor of {stretch:g}"
    if "rope.scaling.yarn_log_multiplier" not in rotation:
        return "YaRN and no mscale_all_dim"
    return f"YaRN's factor {stretch:g} below 1" if stretch < 1 else None


def _size_keys(config: Config, architecture: str) -> dict[str, Any]:
    latent = config.latent_attention
    split = architecture == "deepseek2"  # as one latent group
    made: dict[str, Any] = {
        "block_count": config.layers,
        "context_length": config.context,
        "embedding_length": config.hidden,
        "feed_forward_length": config.feed_forward,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.heads,
        "attention.head_count_kv": 1 if split else config.kv_heads,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
    }
    made |= _grouped_keys(config) if latent is None else _latent_keys(latent)
    if split and latent is not None:
        made |= _deepseek2_keys(config, latent)
    if architecture == "gemma3":
        windows = config.grouped.windows
        made["attention.sliding_window_pattern"] = windows.index(0) + 1 if 0 in windows else config.layers + 1
    if architecture == "granite":
        made |= {"attention.scale": config.scale, "embedding_scale": config.embedding_scale}
        made |= {"residual_scale": config.residual_scale, "logit_scale": config.logits_divisor}
    return made | _expert_keys(config)


def _grouped_keys(config: Config) -> dict[str, Any]:
    made = dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), config.head_dim)
    return made | ({"attention.sliding_window": max(config.grouped.windows)} if any(config.grouped.windows) else {})


def _latent_keys(latent: LatentConfig) -> dict[str, Any]:
    made = {
        "attention.kv_lora_rank": latent.latent_dim,
        "rope.dimension_count": latent.rope_dim,
        "attention.key_length": latent.nope_dim + latent.rope_dim,
    }
    return made | ({} if latent.query_rank is None else {"attention.q_lora_rank": latent.query_rank})


def _deepseek2_keys(config: Config, latent: LatentConfig) -> dict[str, Any]:
    """Its plain lengths are those of the one latent group, and the true ones have names of their own."""
    return {
        "attention.key_length": latent.latent_dim + latent.rope_dim,
        "attention.value_length": latent.latent_dim,
        "attention.key_length_mla": latent.nope_dim + latent.rope_dim,
        "attention.value_length_mla": latent.value_dim,
        # llama.cpp takes a file without the key for one with a latent of queries, unless it has as many layers as V2-Lite.
        "attention.q_lora_rank": latent.query_rank or 0,
        "leading_dense_block_count": config.experts.layers.index(True) if config.experts else config.layers,
        # llama.cpp asks for these where all layers are dense too.
        "expert_feed_forward_length": config.feed_forward,
        "expert_shared_count": 0,
    }


def _with_groups_that_count(experts: Experts | None) -> Experts | None:
    """Groups that are all kept exclude no expert, and llama.cpp ends the process that loads a file with such groups."""
    if experts is None or experts.rule.kept_groups < experts.rule.groups:
        return experts
    return replace(experts, rule=replace(experts.rule, groups=1, kept_groups=1, group_score="maximum"))


def _expert_keys(config: Config) -> dict[str, Any]:
    experts = config.experts
    if experts is None:
        return {}
    rule = experts.rule
    made: dict[str, Any] = {
        "expert_count": experts.count,
        "expert_used_count": rule.used,
        "expert_feed_forward_length": experts.width,
        "expert_shared_count": experts.shared // experts.width,
        "expert_weights_scale": rule.scale,
        "expert_gating_func": _GATING[rule.scores],
        "expert_weights_norm": rule.normalise,
    }
    if rule.groups > 1:
        made |= {"expert_group_count": rule.groups, "expert_group_used_count": rule.kept_groups}
    return made


def _rope_keys(
    keys: Keys, config: Config, architecture: str, ropes: tuple[Rope, ...]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The keys of the rotation, and its tensors by name."""
    if not ropes[0].inverse_frequencies.any():
        return {"rope.scaling.finetuned": False}, {}  # what says in files of granite that positions are not rotated
    gemma = architecture == "gemma3"
    p = RopeParameters(keys, "full_attention" if gemma else None)
    made: dict[str, Any] = {"rope.freq_base": p.theta}
    if gemma:
        made["rope.freq_base_swa"] = RopeParameters(keys, "sliding_attention").theta
    if p.kind in ("linear", "yarn"):
        original = p.original(config.context)
        stretch = p.number("factor", config.context / original, least=0.0, most=math.inf)
        made |= {"rope.scaling.type": p.kind, "rope.scaling.factor": stretch}
    if p.kind == "yarn":
        made |= _yarn_keys(p, config, architecture, original, ropes[0].factor / rope.yarn_growth(stretch))
    if p.kind == "llama3" and architecture in _WITH_FREQUENCIES:
        return made, {names.ROPE_DIVISORS: rope.plain(p.theta, config.head_dim) / ropes[0].inverse_frequencies}
    if p.kind == "longrope":
        made |= {"rope.scaling.type": p.kind, "rope.scaling.original_context_length": p.original(config.context)}
        made |= {"rope.scaling.attn_factor": ropes[0].factor}
        return made, _longrope_factors(p, len(ropes[0].inverse_frequencies))
    return made, {}


def _yarn_keys(p: RopeParameters, config: Config, architecture: str, original: int, more: float) -> dict[str, Any]:
    """more: the factor of sine and cosine beside the one that llama.cpp computes."""
    numbers = ("beta_fast", "beta_slow", "mscale_all_dim")
    fast, slow, strength = (p.number(name, 0.0, least=0.0, most=1e6) for name in numbers)
    made = {
        "rope.scaling.original_context_length": original,
        "rope.scaling.yarn_beta_fast": fast or rope.YARN_FAST,
        "rope.scaling.yarn_beta_slow": slow or rope.YARN_SLOW,
    }
    if architecture == "deepseek2":
        return made | ({"rope.scaling.yarn_log_multiplier": 0.1 * strength} if strength else {})
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
    return same_place and all(np.allclose(mine, theirs, rtol=1e-6, atol=0) for mine, theirs in pairs)
