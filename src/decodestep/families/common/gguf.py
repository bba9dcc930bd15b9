"""A model's sizes and ropes from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from decodestep.decoding.config import Config
from decodestep.decoding.rope import Rope
from decodestep.errors import ModelError
from decodestep.families.common import names
from decodestep.families.common.gguf_keys import Described, GgufKeys
from decodestep.families.common.gguf_rope import first_rope
from decodestep.families.common.registry import ARCHITECTURES
from decodestep.families.common.unknown import describe


def read_config(file: Described) -> Config:
    """A model's sizes from a file's metadata. Raises ModelError for an unsupported architecture or size."""
    purpose = file.metadata.get("general.type", "model")
    if purpose != "model":  # "adapter", "mmproj", "imatrix"
        raise ModelError(f"{file.path}: general.type is {purpose!r}: the file is no model, but made for one")
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        supported = ", ".join(map(repr, ARCHITECTURES))
        told = describe(file.tensors, ARCHITECTURES)
        raise ModelError(f"{file.path}: architecture {name!r} is not supported ({supported} are){told}")
    architecture, keys = ARCHITECTURES[name], GgufKeys(file, name)
    common = keys.common(architecture.layers.centred_norms)
    common["mixers"] = architecture.mixers(keys, common["layers"])
    architecture.check(keys, common)
    attention = architecture.attention.read(keys, common, architecture)
    if architecture.experts is None and keys.size("expert_count", 0, least=0):
        raise keys.refusal("experts are not supported")
    experts = None if architecture.experts is None else architecture.experts(keys, common)
    dense_width = None if experts is None or not all(experts.layers) else experts.width  # which no layer has
    table = architecture.tensor_names
    biased = architecture.feed_forward_biases and any(names.has_bias(file.tensors, part) for part in names.FEED_FORWARD)
    own = {"feed_forward": 0} | architecture.more(keys, common)
    own["feed_forward"] = own["feed_forward"] or keys.size_of_layers("feed_forward_length", dense_width)
    config = Config(
        **(common | attention | own),
        rope_half_split=architecture.rope_half_split,
        experts=experts,
        biases=biased,
        activation=architecture.layers.activation,
        block_norms=architecture.layers.block_norms,
        centred_norms=architecture.layers.centred_norms,
    )
    if not architecture.next_token_layers:
        return replace(config, skipped_layers=keys.next_token_layers())
    return names.with_next_token_layers(config, table, file.tensors.__contains__, keys.next_token_layers())


def read_ropes(file: Described, config: Config, vector: Callable[[str, int], np.ndarray]) -> tuple[Rope, ...]:
    """The rotary embedding, and a second one if `config.grouped.ropes` refers to it. vector: reads a tensor of the file by its
    name and length."""
    keys, architecture = GgufKeys(file, config.architecture), ARCHITECTURES[config.architecture]
    first = first_rope(keys, architecture, config, vector)
    return (first, architecture.second_rope(keys, config.rope_width(1))) if any(config.grouped.ropes) else (first,)
