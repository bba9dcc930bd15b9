"""GGUF's architectures: sizes and rotary embedding by a file's metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from decodestep.models import metadata as md
from decodestep.models import rope
from decodestep.models.architectures import names
from decodestep.models.architectures.limits import (
    LEAST_FACTOR,
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    MOST_FACTOR,
    checked,
)
from decodestep.models.config import Config, Experts, LatentAttention
from decodestep.models.errors import ModelError
from decodestep.models.gguf_file import GgufFile
from decodestep.models.rope import Rope
from decodestep.ops.expert_router.arguments import RouterRule

_SCORES = {1: "softmax", 2: "sigmoid"}  # by expert_gating_func


@dataclass
class _Keys:
    """A file's metadata under the prefix of its architecture."""

    file: GgufFile
    architecture: str

    def __contains__(self, key: str) -> bool:
        return self._key(key) in self.file.metadata

    def _key(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def size(self, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_WIDTH) -> int:
        return md.integer(self.file.metadata, self._key(key), default, least=least, most=most)

    def number(self, key: str, default: float | None = None, *, least: float, most: float) -> float:
        return md.number(self.file.metadata, self._key(key), default, least=least, most=most)

    def text(self, key: str, default: str) -> str:
        return md.text(self.file.metadata, self._key(key), default)

    def flag(self, key: str) -> bool:
        return md.flag(self.file.metadata, self._key(key), False)

    def common(self) -> dict[str, Any]:
        """The sizes that all architectures have."""
        data = self.file.metadata
        skipped = self.size("nextn_predict_layers", 0, least=0, most=MAX_LAYERS)
        layers = self.size("block_count", most=MAX_LAYERS) - skipped
        if layers < 1:
            raise ModelError(f"{self.file.path}: {self._key('nextn_predict_layers')} {skipped} leaves no layers")
        return {
            "architecture": self.architecture,
            "name": md.text(data, "general.name", self.file.path.stem),
            "vocab_size": len(md.texts(data, "tokenizer.ggml.tokens")) or self.size("vocab_size"),
            "hidden": self.size("embedding_length"),
            "layers": layers,
            "skipped_layers": skipped,
            "heads": self.size("attention.head_count", most=MAX_HEADS),
            "context": self.size("context_length", most=MAX_CONTEXT),
            "norm_eps": self.number("attention.layer_norm_rms_epsilon", least=1e-30, most=1.0),
            "tied": names.GGUF["output"] not in self.file.tensors,
        }

    def refuse(self, what: str) -> ModelError:
        return ModelError(f"{self.file.path}: {what}")


def config_of(file: GgufFile) -> Config:
    """The sizes that a file's metadata give. Raises ModelError for another architecture, or sizes that are not supported."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _CONFIGS:
        supported = ", ".join(map(repr, _CONFIGS))
        raise ModelError(f"{file.path}: architecture {architecture!r} is not supported ({supported} are)")
    return _CONFIGS[architecture](_Keys(file, architecture))


def rope_of(file: GgufFile, config: Config, vector: Callable[[str, int], np.ndarray]) -> Rope:
    """The rotary embedding. vector: reads a tensor of the file by its name and length."""
    keys = _Keys(file, config.architecture)
    width = config.latent_attention.rope if config.latent_attention else config.head_dim
    theta = keys.number("rope.freq_base", 10000.0, least=1.0, most=1e30)
    kind = keys.text("rope.scaling.type", "none")
    if kind == "yarn":
        factor, original = _stretch(keys)
        fast, slow = (keys.number(f"rope.scaling.yarn_beta_{name}", 0.0, least=0.0, most=1e6) for name in ("fast", "slow"))
        if theta == 1:
            raise keys.refuse("rope.freq_base 1 and YaRN contradict each other")
        # The file has one of transformers' two factors, mscale_all_dim; published models have equal ones.
        strength = _yarn_strength(keys)
        frequencies = rope.yarn(theta, width, factor=factor, original=original, fast=fast or 32.0, slow=slow or 1.0)
        return Rope(frequencies, rope.yarn_factor(factor, strength, strength))
    if "rope_factors_short.weight" in file.tensors:
        short, long = (_factors(file, f"rope_factors_{name}.weight", width, vector) for name in ("short", "long"))
        original = keys.size("rope.scaling.original_context_length", config.context, most=MAX_CONTEXT)
        lengths = rope.divided(theta, width, short), rope.divided(theta, width, long)
        growth = rope.long_factor(config.context / original, max(original, 2))
        return Rope(lengths[0], growth, None if original >= config.context else lengths[1], original)
    if kind == "longrope":
        raise keys.refuse("rope scaling 'longrope' without the tensors rope_factors_long.weight and rope_factors_short.weight")
    frequencies = rope.plain(theta, width)
    if "rope_freqs.weight" in file.tensors:
        frequencies = frequencies / _factors(file, "rope_freqs.weight", width, vector)
    factor = keys.number("rope.scaling.factor", 1.0, least=LEAST_FACTOR, most=MOST_FACTOR) if kind == "linear" else 1.0
    return Rope((frequencies / np.float32(factor)).astype(np.float32))


def _factors(file: GgufFile, name: str, width: int, vector: Callable[[str, int], np.ndarray]) -> np.ndarray:
    divisors = vector(name, width // 2)
    if not ((divisors >= LEAST_FACTOR) & (divisors <= MOST_FACTOR)).all():
        raise ModelError(f"{file.path}: tensor {name} must hold {width // 2} numbers in [{LEAST_FACTOR:g}, {MOST_FACTOR:g}]")
    return divisors


def _stretch(keys: _Keys) -> tuple[float, int]:
    factor = keys.number("rope.scaling.factor", 1.0, least=LEAST_FACTOR, most=MOST_FACTOR)
    return factor, keys.size("rope.scaling.original_context_length", keys.size("context_length"), most=MAX_CONTEXT)


def _yarn_strength(keys: _Keys) -> float:
    """transformers' mscale_all_dim, of which the file has a tenth; 0: it has none."""
    return keys.number("rope.scaling.yarn_log_multiplier", 0.0, least=0.0, most=100.0) / 0.1


def _llama(keys: _Keys) -> Config:
    common = keys.common()
    hidden, heads = common["hidden"], common["heads"]
    groups = keys.size("attention.head_count_kv", heads, most=MAX_HEADS)
    head_dim = keys.size("attention.key_length", hidden // heads)
    values = keys.size("attention.value_length", head_dim)
    rotated = keys.size("rope.dimension_count", head_dim)
    if heads % groups or head_dim % 2 or not head_dim == values == rotated:
        raise keys.refuse(
            f"{heads} query heads on {groups} key heads of {head_dim} values, {values} of them read, {rotated} rotated: "
            "not supported"
        )
    scaling = keys.text("rope.scaling.type", "none")
    if scaling not in ("none", "linear") or keys.size("expert_count", 0, least=0):
        raise keys.refuse(f"rope scaling {scaling!r} or experts are not supported")
    return Config(**common, groups=groups, head_dim=head_dim, feed_forward=keys.size("feed_forward_length"))


def _latent(keys: _Keys, common: dict[str, Any], head: int, value: int, *, query_rank: int | None) -> dict[str, Any]:
    """What all architectures with latent attention have. head, value: the widths of a head of keys and of values."""
    turned = keys.size("rope.dimension_count")
    if turned > head or turned % 2:
        raise keys.refuse(f"rope.dimension_count {turned} is odd, or more than a head's {head} values")
    scaling = keys.text("rope.scaling.type", "none")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise keys.refuse(f"rope scaling {scaling!r} is not supported")
    scale = head**-0.5
    if scaling == "yarn" and (strength := _yarn_strength(keys)):
        scale *= rope.yarn_growth(_stretch(keys)[0], strength) ** 2
    attention = LatentAttention(query_rank, keys.size("attention.kv_lora_rank"), head - turned, turned, value, scale)
    return {**common, "groups": common["heads"], "head_dim": head, "latent_attention": attention}


def _query_rank(keys: _Keys) -> int | None:
    """The tensors say whether queries have a latent; llama.cpp counts layers."""
    return None if names.GGUF["query"].format(i=0) in keys.file.tensors else keys.size("attention.q_lora_rank")


def _deepseek2(keys: _Keys) -> Config:
    common = keys.common()
    whole = "attention.key_length_mla" not in keys  # an older file: the true head sizes have the plain names
    head, value = (keys.size(f"attention.{name}_length{'' if whole else '_mla'}") for name in ("key", "value"))
    latent = _latent(keys, common, head, value, query_rank=_query_rank(keys))
    config = Config(**latent, feed_forward=keys.size("feed_forward_length"), experts=_experts(keys, common))
    return checked(keys.file.path, config)


def _experts(keys: _Keys, common: dict[str, Any]) -> Experts | None:
    count, layers = keys.size("expert_count", 0, least=0, most=MAX_EXPERTS), common["layers"]
    dense = keys.size("leading_dense_block_count", 0, least=0, most=MAX_LAYERS)
    if not count or dense >= layers:
        return None
    # Files from before the key are DeepSeek-V2's; those of GLM-4.7-Flash without it are told by their sizes.
    lite_glm = common["vocab_size"] == 154880 and layers in (47, 48)
    gating = keys.size("expert_gating_func", 2 if lite_glm else 1, least=0) or 1
    if gating not in _SCORES:
        raise keys.refuse(f"expert_gating_func {gating} is not supported (1, softmax, and 2, sigmoid, are)")
    width = keys.size("expert_feed_forward_length")
    groups = keys.size("expert_group_count", 1, least=0, most=MAX_EXPERTS) or 1
    rule = RouterRule(
        used=keys.size("expert_used_count", most=MAX_WIDTH),
        scores=_SCORES[gating],
        groups=groups,
        kept_groups=(keys.size("expert_group_used_count", groups, least=0) or groups) if groups > 1 else 1,
        group_score="maximum" if groups == 1 or _SCORES[gating] == "softmax" else "top_two",
        normalise=keys.flag("expert_weights_norm"),
        scale=keys.number("expert_weights_scale", 1.0, least=0.0, most=1e6) or 1.0,
    )
    return Experts(
        count,
        width,
        shared=width * keys.size("expert_shared_count", 0, least=0, most=MAX_EXPERTS),
        rule=rule,
        corrected=names.GGUF["correction"].format(i=dense) in keys.file.tensors,
        layers=tuple(i >= dense for i in range(layers)),
    )


def _minicpm3(keys: _Keys) -> Config:
    common = keys.common()
    hidden, heads, layers = (common[name] for name in ("hidden", "heads", "layers"))
    head = keys.size("attention.key_length")
    latent = _latent(keys, common, head, hidden // heads, query_rank=_query_rank(keys))
    return checked(
        keys.file.path,
        Config(
            **latent,
            feed_forward=keys.size("feed_forward_length"),
            halves=True,
            # Of MiniCPM3-4B; the file has no keys for them.
            embedding_scale=12.0,
            branch_scale=1.4 / layers**0.5,
            logits_scale=hidden / 256,
        ),
    )


def _plm(keys: _Keys) -> Config:
    common = keys.common()
    head, value = keys.size("attention.key_length"), keys.size("attention.value_length")
    latent = _latent(keys, common, head, value, query_rank=None)
    feed_forward = keys.size("feed_forward_length")
    return checked(keys.file.path, Config(**latent, feed_forward=feed_forward, activation="relu_squared"))


_CONFIGS: dict[str, Callable[[_Keys], Config]] = {
    "llama": _llama,
    "deepseek2": _deepseek2,
    "minicpm3": _minicpm3,
    "plm": _plm,
}
