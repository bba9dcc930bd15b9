"""What the file of a model family says: how its checkpoints are read, and what is written of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from decodestep.decoding import rope
from decodestep.decoding.config import BlockNorms, Config, Experts, Mixer, QueryKeyNorm
from decodestep.decoding.rope import Rope
from decodestep.families.common import names
from decodestep.families.common.config_json import Keys
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.limits import MAX_LAYERS

Fields = dict[str, Any]  # of `Config`, by name; or keys of a GGUF file without their prefix


def nothing(*_: object) -> Fields:
    return {}


def no_objection(*_: object) -> None:
    return None


def attention_alone(*_: Any) -> tuple[Mixer, ...]:
    return ()


def no_rope(keys: GgufKeys, width: int) -> Rope:
    return rope.none(width)


class FileAttention(Protocol):
    """Attention in a GGUF file: `GroupedFile` or `LatentFile`. parts: those of a layer that all of its kind have."""

    @property
    def parts(self) -> frozenset[str]: ...

    def read(self, keys: GgufKeys, common: Fields, architecture: Architecture) -> Fields:
        """The fields of attention. common: those that all models have."""

    def written(self, config: Config) -> Fields:
        """The keys that say the same."""


class FolderAttention(Protocol):
    """Attention in config.json: `GroupedKeys` or `LatentKeys`. parts: those of a layer that all of its kind have."""

    @property
    def parts(self) -> frozenset[str]: ...

    def read(self, keys: Keys, common: Fields, model_type: ModelType) -> Fields:
        """The fields of attention. common: those that all models have."""


@dataclass(frozen=True)
class Layers:
    """What the layers of all checkpoints have, as `Config` and `GroupedConfig` describe it."""

    query_key_norm: QueryKeyNorm | None = None
    block_norms: BlockNorms = "before"
    centred_norms: bool = False
    activation: str = "swiglu"
    sinks: bool = False


@dataclass(frozen=True)
class Architecture:
    """A family as a GGUF file of llama.cpp's.

    name: that general.architecture. layers: what all its layers have. rope_half_split: as in `Config`.
    tensors: the names of the parts of a layer that differ from those of `names.GGUF`. outside: of parts of no layer.
    mixers: the mixer of every layer of so many, as in `Config`.
    experts: the mixture of experts of a file; None: files with experts are refused.
    more: further fields of `Config`, by the file's keys and the fields that all models have.
    check: raises for keys of what is not supported.
    next_token_layers: whether layers for next-token prediction are as the others; if not, they are left out.
    shares_selections: whether layers may attend to what the indexer of an earlier one selects.
    has_rope: whether there is a rope. rope_flag: the key that says so; None: none does. second_rope: rope 1 of `GroupedConfig`,
        for heads of a width.
    yarn_multiplier: what transformers' mscale_all_dim is multiplied by in rope.scaling.yarn_log_multiplier; None: llama.cpp
        does not read that key. yarn_truncates: whether the ends of YaRN's ramp are rounded, for which a file has no key.

    Of what is written:
    feed_forward_biases, output_bias: whether llama.cpp knows biases of feed-forward blocks, which are also read then, and of
        the attention's output. rope_divisors: whether it reads the tensor that divides the rope's frequencies.
    split_up_projections: whether those of latent keys and values are two tensors. tiled_heads: whether value heads that read
        one key head are apart by the number of key heads (`DeltaConfig.tiled`).
    written: further keys. refused: what else llama.cpp refuses, by the model and the rope's tensors, or None.
    scaled_scores: by which of the rope's keys llama.cpp scales scores as transformers does not, or None.
    """

    name: str
    attention: FileAttention
    layers: Layers = Layers()
    rope_half_split: bool = False
    tensors: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    mixers: Callable[[GgufKeys, int], tuple[Mixer, ...]] = attention_alone
    experts: Callable[[GgufKeys, Fields], Experts | None] | None = None
    more: Callable[[GgufKeys, Fields], Fields] = nothing
    check: Callable[[GgufKeys, Fields], None] = no_objection
    next_token_layers: bool = True
    shares_selections: bool = False
    has_rope: bool = True
    rope_flag: str | None = None
    second_rope: Callable[[GgufKeys, int], Rope] = no_rope
    yarn_multiplier: float | None = None
    yarn_truncates: bool = True
    feed_forward_biases: bool = False
    output_bias: bool = True
    rope_divisors: bool = False
    split_up_projections: bool = False
    tiled_heads: bool = False
    written: Callable[[Config], Fields] = nothing
    refused: Callable[[Config, Mapping[str, np.ndarray]], str | None] = no_objection
    scaled_scores: Callable[[Fields], str | None] = no_objection

    @property
    def tensor_names(self) -> dict[str, str]:
        return names.changed(names.GGUF, names.of_gguf_layers(self.tensors) | dict(self.outside))

    def yarn_strength(self, keys: GgufKeys) -> float:
        """transformers' mscale_all_dim; 0 if the file has none."""
        if self.yarn_multiplier is None:
            return 0.0
        return keys.number("rope.scaling.yarn_log_multiplier", 0.0, least=0.0, most=100.0) / self.yarn_multiplier


@dataclass(frozen=True)
class Activation:
    """The activation of a folder's feed-forward blocks: the key, and the values that it may have."""

    key: str = "hidden_act"
    names: tuple[str, ...] = ("silu", "swish")


@dataclass(frozen=True)
class ModelType:
    """A family as a folder with one model_type in config.json.

    name: that model_type. written_as: the architecture of a GGUF file of it. written_otherwise: another one for some models,
        or None. layers: what all its layers have. layer_count: how many there are. mixers: the mixer of every layer of so many,
        as in `Config`. norm_eps: the key of the norms' epsilon; None: the usual one.
    defaults: of transformers' class, for missing keys. aliases: keys that the class reads as another one, which they replace.
    taken_for: keys with which transformers takes the folder for another model_type.
    activation, feed_forward: the keys of the activation, and of the width, of a dense block. mlp_bias: the key
        that says whether the products of dense blocks have biases; None: they have none.
    experts: the mixture of experts; None: it has none. next_token_layers: whether layers for next-token prediction
        may follow the last one. next_token_names: where such a layer is not among the others, what the names of its tensors
        begin with, and what takes its place within a layer.
    more: further fields of `Config`, by the keys and the fields that all models have. check: raises for what is not supported.
    sizes_by_layer: whether per_layer_config may have sizes of single layers, which `attention` reads.
    rope_types: of rope types, those that the class takes for another one. query_growth: the rope's key of how queries grow with
        their position; None: they do not.
    has_rope: whether there is a rope. ropes_by_layer_type: whether rope_parameters has a rope for "full_attention" and
        one for "sliding_attention"; otherwise a layer whose rope is another one has none.
    tensors: the names of the parts of a layer that differ from those of `names.FOLDER`. outside: of parts of no layer.
        prefixes: as of a `Wrapper`. norm_shift: as in `Config`.
    pre_tokenizer: the name that its GGUF files have, of several that cut texts alike. tiktoken: the name of the rules for
        tiktoken.model; None: its folders have tokenizer.json alone.
    """

    name: str
    written_as: Architecture
    attention: FolderAttention
    defaults: Mapping[str, Any]
    written_otherwise: Callable[[Config], Architecture | None] = no_objection
    layers: Layers = Layers()
    layer_count: Callable[[Keys], int] = lambda keys: keys.size("num_hidden_layers", most=MAX_LAYERS)
    mixers: Callable[[Keys, int], tuple[Mixer, ...]] = attention_alone
    norm_eps: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    taken_for: Mapping[str, ModelType] = field(default_factory=dict)
    activation: Activation = Activation()
    feed_forward: str = "intermediate_size"
    mlp_bias: str | None = None
    experts: Callable[[Keys, int], Experts | None] | None = None
    next_token_layers: bool = False
    next_token_names: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[Keys, Fields], Fields] = nothing
    check: Callable[[Keys, Fields], None] = no_objection
    sizes_by_layer: bool = False
    rope_types: Mapping[str, str] = field(default_factory=dict)
    query_growth: str | None = None
    has_rope: Callable[[Keys], bool] = lambda keys: True
    ropes_by_layer_type: bool = False
    tensors: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)
    norm_shift: float = 0.0
    pre_tokenizer: str | None = None
    tiktoken: str | None = None

    @property
    def tensor_names(self) -> dict[str, str]:
        return names.changed(names.FOLDER, names.layer_names(self.tensors) | dict(self.outside))


# Of most wrappers: what the names of the text model's tensors begin with, and what takes its place.
TEXT_PREFIXES: Mapping[str, str] = {"language_model.": "", "model.language_model.": "model.", "lm_head.": "lm_head."}


@dataclass(frozen=True)
class Wrapper:
    """A folder with a text model beside others, of images or sounds, which are left out.

    name: its model_type. unsaid: that of a text_config without one. prefixes: as `TEXT_PREFIXES`.
    """

    name: str
    unsaid: str
    prefixes: Mapping[str, str] = field(default_factory=lambda: TEXT_PREFIXES)


@dataclass(frozen=True)
class Family:
    """`FAMILY` of the family's file.

    types: as folders. gguf: as a GGUF file; None: it is written as another family's. wrappers: folders that have one beside
    other models.
    """

    types: tuple[ModelType, ...] = ()
    gguf: Architecture | None = None
    wrappers: tuple[Wrapper, ...] = ()
