"""The values of a folder's tensors as a GGUF file has them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from decodestep.decoding.config import Config, DeltaConfig
from decodestep.families.common.names import FEED_FORWARD, NamedTensor
from decodestep.models.checkpoint import Checkpoint
from decodestep.models.experts_in_turn import read_experts
from decodestep.models.row_order import delta_rows, neighbour_order, qkv_rows, tiled_order
from decodestep.weights.lazy_weight import whole

# Parts with rows of rope pairs, whose order a file may have to change.
_PERMUTED = ("query", "key", "query_bias", "key_bias", "query_up", "latent_rope")
# Parts of experts, by the fields of those whose outputs of gate and up take turns.
EXPERTS = {f"experts_{part}": part for part in FEED_FORWARD}
IN_TURN = EXPERTS | {f"experts_{part}_bias": f"{part}_bias" for part in FEED_FORWARD}
# Parts with rows of value heads of the gated delta rule: of all values of one, or one.
_WIDE = ("delta_qkv", "delta_gate", "convolution")
_BY_VALUE_HEADS = (*_WIDE, "delta_beta", "delta_alpha", "decay", "step_bias")
# Parts of which a folder may have two as halves of one.
_HALVES = {f"{prefix}{part}": f"{prefix}gate_up" for prefix in ("", "shared_", "experts_") for part in ("gate", "up")}


def file_values(checkpoint: Checkpoint, written: Config, tensor: NamedTensor, i: int) -> Iterator[np.ndarray]:
    """A tensor of a folder's layer i as the file of the config `written` has it, in pieces."""
    tiled = written.delta if written.delta is not None and written.delta.tiled else None
    for values in _values(checkpoint, written, tensor, i):
        yield values if tiled is None else _tiled(values, tiled, tensor.part)


def _values(checkpoint: Checkpoint, written: Config, tensor: NamedTensor, i: int) -> Iterator[np.ndarray]:
    """With value heads by key heads, as the folder has them."""
    config, latent, part = checkpoint.config, checkpoint.config.latent_attention, tensor.part
    if part in ("keys_up", "values_up") and latent is not None:
        (both,) = checkpoint.values("keys_values_up", i)
        rows = both.reshape(config.heads, latent.nope_dim + latent.value_dim, -1)
        yield rows[:, : latent.nope_dim].swapaxes(1, 2) if part == "keys_up" else rows[:, latent.nope_dim :]
    elif part in _HALVES and checkpoint.has(_HALVES[part], i):
        (both,) = checkpoint.values(_HALVES[part], i)
        *experts, rows, inputs = both.shape
        yield both.reshape(*experts, 2, rows // 2, inputs)[..., int(part.endswith("up")), :, :]
    elif part in IN_TURN and checkpoint.has("experts_gate_up_in_turn_bias", i):
        yield _in_turn(checkpoint, part, i).reshape(tensor.shape)
    elif part in ("query", "key", "value") and checkpoint.has("qkv", i):
        (both,) = checkpoint.values("qkv", i)
        yield both[qkv_rows(config, part, i)]
    elif config.delta is not None and part in ("delta_qkv", "delta_gate") and checkpoint.has("delta_qkvz", i):
        (both,) = checkpoint.values("delta_qkvz", i)
        yield both[delta_rows(config.delta)[part]]
    elif part == "decay":
        yield -np.exp(checkpoint.vector("decay_logarithm", i))
    else:
        permuted = config.rope_half_split and not written.rope_half_split and part in _PERMUTED
        order = _order(checkpoint, tensor) if permuted else slice(None)
        is_vector = len(tensor.shape) == 1
        stored = next(name for name in (part, f"{part}_together") if checkpoint.has(name, i))
        for values in [checkpoint.vector(part, i)] if is_vector else checkpoint.values(stored, i):
            yield values[order]


def _tiled(values: np.ndarray, d: DeltaConfig, part: str) -> np.ndarray:
    """With value heads in `tiled_order`."""
    if part == "mixer_output":
        return values[:, tiled_order(d, d.value_dim)]
    if part not in _BY_VALUE_HEADS:
        return values
    order = tiled_order(d, d.value_dim if part in _WIDE else 1)
    first = len(values) - len(order)  # after queries and keys
    return np.concatenate([values[:first], values[first:][order]])


def _in_turn(checkpoint: Checkpoint, part: str, i: int) -> np.ndarray:
    found = getattr(read_experts(checkpoint, i), IN_TURN[part])
    return found if isinstance(found, np.ndarray) else whole(found.weight).values()


def _order(checkpoint: Checkpoint, tensor: NamedTensor) -> np.ndarray:
    """The rows with pairs side by side."""
    config, latent = checkpoint.config, checkpoint.config.latent_attention
    if latent is None:
        return neighbour_order(tensor.shape[0] // config.head_dim, 0, config.rotated, config.head_dim - config.rotated)
    if tensor.part == "latent_rope":
        return neighbour_order(1, latent.latent_dim, latent.rope_dim)
    return neighbour_order(config.heads, latent.nope_dim, latent.rope_dim)
