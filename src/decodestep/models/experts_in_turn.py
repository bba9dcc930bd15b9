"""Experts whose outputs of gate and up take turns, as weights with an expert after another.

A folder has their products with the axis of inputs before that of outputs, or as MXFP4: of every 32 inputs of an output a block
of 16 bytes, byte t with values 2t and 2t + 1, and a scale beside the blocks. A weight has the scale before its block, in which
byte t has values t and t + 16.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decodestep.models.checkpoint import Checkpoint, Stored
from decodestep.weights.packed import Format, PackedWeight

_BLOCK = 32  # inputs


class Experts(NamedTuple):
    """Weights, and float32 biases of their outputs, of all experts of a layer."""

    gate: Stored
    up: Stored
    down: Stored
    gate_bias: np.ndarray
    up_bias: np.ndarray
    down_bias: np.ndarray


def read_experts(checkpoint: Checkpoint, i: int) -> Experts:
    both, format_ = _rows(checkpoint, "experts_gate_up_in_turn", i)
    biases = checkpoint.vector("experts_gate_up_in_turn_bias", i).reshape(len(both), -1)
    down, format_of_down = _rows(checkpoint, "experts_down_by_inputs", i)
    return Experts(
        _stored(both[:, ::2], format_),
        _stored(both[:, 1::2], format_),
        _stored(down, format_of_down),
        np.ascontiguousarray(biases[:, ::2]).reshape(-1),
        np.ascontiguousarray(biases[:, 1::2]).reshape(-1),
        checkpoint.vector("experts_down_bias", i),
    )


def _rows(checkpoint: Checkpoint, part: str, i: int) -> tuple[np.ndarray, Format]:
    """The bytes of every output of every expert, (experts, outputs, bytes), and their format."""
    if checkpoint.has(part, i):
        values, format_ = checkpoint.stored(part, i)
        rows = np.ascontiguousarray(values.swapaxes(1, 2))
        return rows.reshape(*rows.shape[:2], -1), format_
    blocks, format_ = checkpoint.stored(f"{part}_blocks", i)
    scales, _ = checkpoint.stored(f"{part}_scales", i)
    low, high = blocks[..., 0] & 15, blocks[..., 0] >> 4
    values = np.stack([low, high], axis=-1).reshape(*blocks.shape[:3], _BLOCK)
    halves = values[..., : _BLOCK // 2] | values[..., _BLOCK // 2 :] << 4
    rows = np.concatenate([scales, halves], axis=-1)
    return rows.reshape(*rows.shape[:2], -1), format_


def _stored(rows: np.ndarray, format_: Format) -> Stored:
    rows = np.ascontiguousarray(rows).reshape(-1, rows.shape[2])
    return Stored(PackedWeight(rows, format_, inputs_of(rows.shape[1], format_)))


def inputs_of(size: int, format_: Format) -> int:
    """Of rows of so many bytes."""
    return size // 17 * _BLOCK if format_ == Format.MXFP4 else size // {Format.F32: 4}.get(format_, 2)
