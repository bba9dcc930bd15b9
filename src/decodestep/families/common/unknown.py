"""What is said of a checkpoint whose family is not supported: what its layers have that no family has, and what is nearest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from decodestep.families.common import names
from decodestep.families.common.description import Architecture, ModelType

_LAYER = re.compile(r"(?:blk|.*\blayers|.*\bblocks|.*\bh)\.\d+\.(.+)")
_EXPERT = re.compile(r"\bexperts\.\d+\.")
_MOST = 6  # names that are listed
# What parts of tensors' names stand for.
_BLOCKS = {
    "ssm": "a recurrent state",
    "mamba": "a recurrent state",
    "mixer": "a recurrent state",
    "time_mix": "a recurrent state",
    "linear_attn": "linear attention",
    "conv": "a short convolution",
    "indexer": "sparse attention by an indexer",
    "router": "another router",
    "shexp_gate": "a gate of the shared expert",
    "ffn_gate_inp_shexp": "a gate of the shared expert",
    "shared_expert_gate": "a gate of the shared expert",
    "attn_gate": "a gate of attention's output",
    "g_proj": "a gate of attention's output",
    "cross_attn": "attention to another text",
    "altup": "parallel residual streams",
    "laurel": "a second residual path",
    "per_layer": "embeddings of layers",
    "inp_gate": "embeddings of layers",
    "bias": "biases",
    "norm": "other norms",
}


def describe(tensors: Iterable[str], candidates: Mapping[str, Architecture | ModelType]) -> str:
    """A sentence or two on a checkpoint with these tensors. candidates: the families that are supported, by their names."""
    parts = {_EXPERT.sub("experts.{e}.", found[1]) for name in tensors if (found := _LAYER.fullmatch(name))}
    if not parts:
        return ""
    known = {_within_layer(name) for each in candidates.values() for name in each.tensor_names.values()}
    own = sorted(part for part in parts if part not in known)
    nearest = max(candidates, key=lambda name: _likeness(parts, candidates[name]))
    what = "have only tensors that supported ones have too, but may compute something else"
    if own:
        more = f" and {len(own) - _MOST} more" if len(own) > _MOST else ""
        what = f"have what no supported one has: {', '.join(map(_named, own[:_MOST]))}{more}"
    return f"; its layers {what}; nearest to it is {nearest!r}"


def _named(part: str) -> str:
    block = next((block for word, block in _BLOCKS.items() if word in part), None)
    return part if block is None else f"{part} ({block})"


def _within_layer(name: str) -> str:
    return name.partition("{i}.")[2]


def _likeness(parts: set[str], each: Architecture | ModelType) -> float:
    """The share of parts that two have in common, of those that one of them has."""
    expected = {_within_layer(name) for part in _parts(each) if (name := each.tensor_names.get(part))}
    return len(parts & expected) / len(parts | expected)


def _parts(each: Architecture | ModelType) -> set[str]:
    """Of a layer of the family, as far as its description says."""
    layers, table = each.layers, each.tensor_names
    found = {"attention_norm", "ffn_norm"} if layers.block_norms in ("before", "both") else set()
    found |= {"attention_post_norm", "ffn_post_norm"} if layers.block_norms in ("after", "both") else set()
    found |= {"attention_norm"} if layers.block_norms == "parallel" else set()
    found |= {"queries_norm", "keys_norm"} if layers.query_key_norm else set()
    found |= {"sinks"} if layers.sinks else set()
    found |= each.attention.parts | {"attention_output"}
    blocks = (
        {"gate_up", "down"} if "gate_up" in each.tensors else {"up", "down"} if layers.activation == "relu_squared" else None
    )
    found |= set(names.FEED_FORWARD) if blocks is None else blocks
    if "qkv" in each.tensors:
        found = found - {"query", "key", "value"} | {"qkv"}
    return found | ({part for part in table if part.startswith(("experts_", "router"))} if each.experts else set())
