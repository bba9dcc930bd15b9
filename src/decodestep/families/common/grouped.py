"""Grouped-query attention, from config.json or from a GGUF file's metadata, and the keys of one that is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from decodestep.decoding import rope
from decodestep.decoding.config import Config, GroupedConfig
from decodestep.decoding.rope import Rope
from decodestep.families.common import names
from decodestep.families.common.config_json import Keys, RopeParameters
from decodestep.families.common.description import Architecture, Fields, ModelType
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.limits import LEAST_FACTOR, MAX_CONTEXT, MAX_HEADS, MOST_FACTOR
from decodestep.files import metadata as md

FACTOR = {"least": -1e6, "most": 1e6}  # of what is multiplied by a key's value
QKV = ("query", "key", "value")
ATTENTION_PRODUCTS = (*QKV, "attention_output")
ATTENTION_BIAS = dict.fromkeys(ATTENTION_PRODUCTS, "attention_bias")
CAPS = {"score": "attn_logit_softcapping", "logits": "final_logit_softcapping"}  # keys, in folders and in files


def sliding_rope(keys: GgufKeys, width: int) -> Rope:
    """The rope of layers with windows, where it has a base of its own and no scaling."""
    factor = keys.number("rope.scaling.attn_factor", 1.0, least=LEAST_FACTOR, most=MOST_FACTOR)
    return Rope(rope.plain(keys.number("rope.freq_base_swa", 10000.0, least=1.0, most=1e30), width), factor)


def file_window(keys: GgufKeys, unsaid: int = 0) -> int:
    """The number of positions of a sliding window; 0: none."""
    return keys.size("attention.sliding_window", unsaid, least=0, most=MAX_CONTEXT)


def same_file_windows(keys: GgufKeys, layers: int) -> tuple[int, ...]:
    """The same window for all layers."""
    size = file_window(keys)
    return (size,) * layers if size else ()


def patterned_file_windows(period: int, unsaid: int = 0) -> Callable[[GgufKeys, int], tuple[int, ...]]:
    """Windows of the layers that attention.sliding_window_pattern lists, or of all except every n-th. period, unsaid: n, and
    the size of a window, of a file without the key."""

    def windows(keys: GgufKeys, layers: int) -> tuple[int, ...]:
        size = file_window(keys, unsaid)
        slides = _slides(keys, layers, period) if size else (False,) * layers
        return tuple(size if slide else 0 for slide in slides)

    return windows


def _slides(keys: GgufKeys, layers: int, period: int) -> tuple[bool, ...]:
    key = keys.key("attention.sliding_window_pattern")
    found = keys.file.metadata.get(key)
    if isinstance(found, list):  # of a file that is not written yet
        found = np.array(found)
    if isinstance(found, np.ndarray):
        if found.dtype.kind not in "iub" or not layers <= len(found) <= layers + keys.next_token_layers():
            md.refuse(key, f"an integer, or an array of true or false for each of {layers} layers", found)
        return tuple(map(bool, found[:layers]))
    period = keys.size("attention.sliding_window_pattern", period)
    return tuple(i % period < period - 1 for i in range(layers))


def written_pattern(config: Config) -> Fields:
    """The key of a file that says which layers have a window."""
    return {"attention.sliding_window_pattern": [window > 0 for window in config.grouped.windows]}


# What a file says of a family whose scores always have a cap in llama.cpp, for none: a power of two so large that
# c * tanh(x / c) is x. A cap of 0 would be divided by.
NO_CAP = 2.0**64


def file_cap(kind: str, unsaid: float) -> Callable[[GgufKeys], float]:
    """The soft cap of "score" or "logits" in a file. unsaid: that of one without the key."""

    def read(keys: GgufKeys) -> float:
        cap = keys.number(CAPS[kind], unsaid, least=0.0, most=NO_CAP)
        return 0.0 if cap == NO_CAP else cap

    return read


def folder_cap(kind: str) -> Callable[[Keys], float]:
    """The same in config.json; null is none."""
    return lambda keys: 0.0 if keys.get(CAPS[kind]) is None else keys.number(CAPS[kind], least=0.0, most=1e6)


@dataclass(frozen=True)
class GroupedFile:
    """In a GGUF file.

    windows: the window of every layer, as in `GroupedConfig`. ropes: the index of its rope, by the windows and the number
    of layers; None: one for all. scale: of the scores, by the fields that all models have and the width of a head; None: the
    usual one. long_rope: whether llama.cpp reads the tensors of long-rope. partial_rope: whether it rotates a part of a head
    where rope.dimension_count says so. optional_norms: whether a file may have no norms of queries and keys. score_cap: of the
    scores, as in `GroupedConfig`; None: a file with one is refused. gated: as there.
    """

    windows: Callable[[GgufKeys, int], tuple[int, ...]] = same_file_windows
    ropes: Callable[[tuple[int, ...], int], tuple[int, ...]] | None = None
    scale: Callable[[GgufKeys, Fields, int], float | None] | None = None
    long_rope: bool = False
    partial_rope: bool = False
    optional_norms: bool = False
    score_cap: Callable[[GgufKeys], float] | None = None
    gated: bool = False
    parts = frozenset(QKV)

    def read(self, keys: GgufKeys, common: Fields, architecture: Architecture) -> Fields:
        hidden, heads, layers = common["hidden"], common["heads"], common["layers"]
        attend = [mixer == "attention" for mixer in common["mixers"]] or [True] * layers
        of = None if all(attend) else attend
        kv_heads = keys.size_of_layers("attention.head_count_kv", heads, most=MAX_HEADS, of=of)
        head_dim = keys.size("attention.key_length", hidden // heads)
        values = keys.size("attention.value_length", head_dim)
        rope_dim = keys.size("rope.dimension_count", head_dim) if architecture.has_rope else head_dim
        partial = self.partial_rope and rope_dim < head_dim and rope_dim % 2 == 0
        if heads % kv_heads or head_dim % 2 or head_dim != values or not (rope_dim == head_dim or partial):
            raise keys.refusal(
                f"{heads} query heads on {kv_heads} key heads of {head_dim} values, {values} of them read, "
                f"{rope_dim} with rope: not supported"
            )
        scaling = keys.text("rope.scaling.type", "none")
        if scaling not in ("none", "linear", "yarn", *(("longrope",) if self.long_rope else ())):
            raise keys.refusal(f"rope scaling {scaling!r} is not supported")
        for key in () if self.score_cap is not None else CAPS.values():
            if keys.number(key, 0.0, **FACTOR):
                raise keys.refusal(f"{key} is not supported")
        windows = self.windows(keys, layers)
        first = attend.index(True)
        normed = not self.optional_norms or names.GGUF["queries_norm"].format(i=first) in keys.file.tensors
        grouped = GroupedConfig(
            scale=None if self.scale is None else self.scale(keys, common, head_dim),
            biases=tuple(part for part in ATTENTION_PRODUCTS if names.has_bias(keys.file.tensors, part, first)),
            query_key_norm=architecture.layers.query_key_norm if normed else None,
            windows=windows,
            ropes=() if self.ropes is None else self.ropes(windows, layers),
            rope_dim=rope_dim if partial else None,
            score_cap=0.0 if self.score_cap is None else self.score_cap(keys),
            sinks=architecture.layers.sinks,
            gated=self.gated,
        )
        return {"kv_heads": kv_heads, "head_dim": head_dim, "grouped": grouped}

    def written(self, config: Config) -> Fields:
        made = {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
        made["rope.dimension_count"] = config.rotated
        return made | ({"attention.sliding_window": max(config.grouped.windows)} if any(config.grouped.windows) else {})


def no_windows(keys: Keys, layers: int) -> tuple[int, ...]:
    return ()


def same_windows(keys: Keys, layers: int) -> tuple[int, ...]:
    """The same window for all layers, whatever layer_types says."""
    size = _window_size(keys)
    return () if size is None else (size,) * layers


def windows_by_type(keys: Keys, layers: int, slides: Callable[[int], bool]) -> tuple[int, ...]:
    """Each layer's window by layer_types, or by a rule for the layer's index if config.json has none."""
    size = _window_size(keys)
    if size is None:
        return ()
    kinds = layer_types(keys, layers, slides)
    return tuple(size if kind == "sliding_attention" else 0 for kind in kinds)


def _window_size(keys: Keys) -> int | None:
    return None if keys.get("sliding_window") is None else keys.size("sliding_window", most=MAX_CONTEXT)


def layer_types(keys: Keys, layers: int, slides: Callable[[int], bool]) -> list[str]:
    kinds = keys.get("layer_types")
    if kinds is None:
        return ["sliding_attention" if slides(i) else "full_attention" for i in range(layers)]
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        raise keys.refusal(f"layer_types must have 'full_attention' or 'sliding_attention' for each of {layers} layers")
    return kinds


@dataclass(frozen=True)
class GroupedKeys:
    """In config.json.

    biases: the products of attention that have one in every checkpoint. bias_keys: the keys that say whether others have one.
    windows, ropes: of so many layers, as in `GroupedConfig`. scale: of the scores; None: the usual one. rope_dim: how many
    columns of a head of so many have a rope; None: all. half_split: as in `Config`. norm_key: the key that says whether there
    are the norms of queries and keys; None: there are, if the family has them. score_cap: of the scores; None: none. gated: as
    in `GroupedConfig`.
    """

    biases: tuple[str, ...] = ()
    bias_keys: Mapping[str, str] = field(default_factory=dict)
    windows: Callable[[Keys, int], tuple[int, ...]] = no_windows
    ropes: Callable[[Keys, int], tuple[int, ...]] | None = None
    scale: Callable[[Keys], float] | None = None
    rope_dim: Callable[[Keys, int], int] | None = None
    half_split: bool = True
    norm_key: str | None = None
    score_cap: Callable[[Keys], float] | None = None
    gated: bool = False
    parts = frozenset(QKV)

    def read(self, keys: Keys, common: Fields, model_type: ModelType) -> Fields:
        heads, layers = common["heads"], common["layers"]
        kv_heads = heads if keys.get("num_key_value_heads") is None else keys.size("num_key_value_heads", most=MAX_HEADS)
        head_dim = keys.size_or_none("head_dim") or common["hidden"] // heads
        if heads % kv_heads or head_dim % 2 or not head_dim:
            raise keys.refusal(f"{heads} query heads on {kv_heads} key heads of {head_dim} values: not supported")
        rope_dim = head_dim if self.rope_dim is None else self.rope_dim(keys, head_dim)
        if rope_dim % 2 or not rope_dim:
            raise keys.refusal(f"{rope_dim} of {head_dim} values with rope: not supported")
        optional = tuple(part for part, key in self.bias_keys.items() if keys.flag(key))
        grouped = GroupedConfig(
            scale=None if self.scale is None else self.scale(keys),
            biases=self.biases or optional,
            query_key_norm=None if self.norm_key and not keys.flag(self.norm_key) else model_type.layers.query_key_norm,
            windows=self.windows(keys, layers),
            ropes=() if self.ropes is None else self.ropes(keys, layers),
            rope_dim=None if rope_dim == head_dim else rope_dim,
            score_cap=0.0 if self.score_cap is None else self.score_cap(keys),
            sinks=model_type.layers.sinks,
            gated=self.gated,
        )
        return {"kv_heads": kv_heads, "head_dim": head_dim, "grouped": grouped, "rope_half_split": self.half_split}


def partial_rope(unsaid: float) -> Callable[[Keys, int], int]:
    """The columns with rope by partial_rotary_factor. unsaid: that of a config.json without the key."""

    def rope_dim(keys: Keys, head_dim: int) -> int:
        part = RopeParameters(keys).part
        return int(head_dim * (unsaid if part is None else part))

    return rope_dim
