"""The lightning indexer of sparse latent attention, from config.json or from a GGUF file's metadata."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from decodestep.decoding.config import IndexerConfig
from decodestep.errors import ModelError
from decodestep.families.common import names
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Fields
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.limits import MAX_HEADS
from decodestep.files.gguf_file import GgufFile
from decodestep.files.model_folder import ModelFolder

DEFAULTS: dict[str, Any] = {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64}
TYPES = "attention.indexer.types"
TYPES_RULE = '"full" or "shared" for each layer, or a string of F and S, the first of them full, or None'
_FULL, _SHARED = ("full", "F"), ("shared", "S")
_LOG = logging.getLogger(__name__)


def layers_by_keys(keys: Keys, layers: int) -> tuple[bool, ...]:
    """indexer_types; else index_topk_pattern; else every index_topk_freq-th layer from one on."""
    for name in ("indexer_types", "index_topk_pattern"):
        kinds = keys.get(name)
        if kinds is None:
            continue
        if not are_types(kinds) or len(kinds) != layers:
            raise keys.refusal(f"{name} must have 'full' or 'shared' for each of {layers} layers, and 'full' for the first")
        return tuple(kind in _FULL for kind in kinds)
    offset, every = keys.size("index_skip_topk_offset", 2, least=0), keys.size("index_topk_freq", 1)
    full = tuple(max(i - offset + 1, 0) % every == 0 for i in range(layers))
    if not full[0]:
        raise keys.refusal("the first layer must have an indexer")
    return full


def of_keys(keys: Keys, rope_dim: int, full: tuple[bool, ...], half_split: bool) -> IndexerConfig:
    """Of a folder."""
    if keys.size_or_none("q_lora_rank") is None:
        raise keys.refusal("q_lora_rank must be given where there is an indexer")
    width = keys.size("index_head_dim")
    if width < rope_dim:
        raise keys.refusal(f"index_head_dim {width} is less than qk_rope_head_dim {rope_dim}")
    heads, selected = keys.size("index_n_heads", most=MAX_HEADS), keys.size("index_topk")
    return IndexerConfig(heads, width, selected, full, half_split, keys.flag("index_share_for_mtp_iteration"))


def of_file(keys: GgufKeys, rope_dim: int, full: tuple[bool, ...], half_split: bool) -> IndexerConfig:
    """Of a GGUF file, which does not say whether drafts share a selection."""
    heads, width = keys.size("attention.indexer.head_count", most=MAX_HEADS), keys.size("attention.indexer.key_length")
    if width < rope_dim:
        raise keys.refusal(f"attention.indexer.key_length {width} is less than rope.dimension_count {rope_dim}")
    return IndexerConfig(heads, width, keys.size("attention.indexer.top_k"), full, half_split)


def say_layers(file: GgufFile | ModelFolder, types: Sequence[str], architectures: Mapping[str, Architecture]) -> None:
    """Completes a file that does not say which layers have an indexer of their own (`most_context`). types: as indexer_types or
    index_topk_pattern of config.json, without layers for next-token prediction."""
    sharing = [name for name, each in architectures.items() if each.shares_selections]
    architecture = str(file.metadata.get("general.architecture")) if isinstance(file, GgufFile) else ""
    if not isinstance(file, GgufFile) or architecture not in sharing or f"{architecture}.{TYPES}" in file.metadata:
        raise ModelError(f"{file.path}: indexer_types is for a GGUF file of {' or '.join(sharing)} without {TYPES} alone")
    keys = GgufKeys(file, architecture)
    layers = keys.size("block_count") - keys.next_token_layers()
    if len(types) != layers:
        raise keys.refusal(f"indexer_types must have 'full' or 'shared' for each of {layers} layers; got {len(types)}")
    file.metadata[keys.key(TYPES)] = [kind in _FULL for kind in types]


def are_types(types: object) -> bool:
    """Whether they are of the form of config.json's: strings or a string of F and S, of which the first is full."""
    if not isinstance(types, (list, tuple, str)) or not types:
        return False
    return all(kind in _FULL + _SHARED for kind in types) and types[0] in _FULL


def layers_by_tensors(keys: GgufKeys, layers: int) -> tuple[bool, ...]:
    """attention.indexer.types, one for each layer; else the layers with an indexer's tensors."""
    types = keys.flags(TYPES)
    full = tuple(_has_tensors(keys, i) for i in range(layers)) if types is None else types[:layers]
    if not full[0]:
        raise keys.refusal("the first layer must have an indexer")
    return full


def most_context(keys: GgufKeys, common: Fields) -> Fields:
    """The context of a file that does not say which layers have an indexer of their own, and has the tensors of one in all of
    them: some of these files are of models in which most layers attend to what another one selects, so only texts of which
    every position is selected are decided, unless `say_layers` has said it."""
    if TYPES in keys or not all(_has_tensors(keys, i) for i in range(common["layers"])):
        return {}
    most = keys.size("attention.indexer.top_k")
    if most >= common["context"]:
        return {}
    reason = f"{keys.key(TYPES)} is missing; load(indexer_types=...) or --indexer-types says what it would"
    _LOG.warning("%s: texts end at %d tokens: %s", keys.file.path, most, reason)
    return {"context": most, "context_reason": reason}


def written(indexer: IndexerConfig) -> Fields:
    return {
        "attention.indexer.head_count": indexer.heads,
        "attention.indexer.key_length": indexer.head_dim,
        "attention.indexer.top_k": indexer.selected,
    }


def _has_tensors(keys: GgufKeys, i: int) -> bool:
    return names.GGUF["index_key"].format(i=i) in keys.file.tensors
