"""Converts feed-forward blocks and mixtures of experts to a decoder's weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from decodestep.decoding.layer_weights import ExpertWeights, SideBySideWeights, Weight
from decodestep.families.common.names import FEED_FORWARD
from decodestep.models.checkpoint import Stored
from decodestep.models.layer_parts import LayerParts
from decodestep.weights.feed_forward import FeedForward
from decodestep.weights.lazy_weight import whole
from decodestep.weights.packed import DENSE_FORMATS, PackedWeight

_GATES = {"gelu_gated": "gelu", "clamped_swiglu": "clamped_silu"}  # the activations of `FeedForward`, by the config's


def feed_forward(layer: LayerParts) -> FeedForward | ExpertWeights | SideBySideWeights | None:
    if not layer.is_of_experts:
        return _dense(layer) if layer.has("down") else None
    if not layer.config.has_dense_block(layer.number):
        return _experts(layer)
    return SideBySideWeights(
        dense=_dense(layer),
        dense_post_norm=layer.vector("dense_post_norm"),
        experts=_experts(layer),
        router_norm=layer.vector("router_scale") * np.float32(layer.config.hidden**-0.5),
        experts_norm=layer.vector("routed_norm"),
        experts_post_norm=layer.vector("routed_post_norm"),
    )


def _dense(layer: LayerParts, prefix: str = "") -> FeedForward:
    if layer.has(f"{prefix}gate_up"):
        stored = _halves(layer.weight(f"{prefix}gate_up"), 1)
    else:
        parts = [f"{prefix}{part}" for part in ("gate", "up")]
        stored = [layer.weight(part) for part in parts if layer.has(part)]
    *gate, up = map(layer.pack, stored)
    gate_bias, up_bias, down_bias = (layer.optional_vector(f"{prefix}{part}_bias") for part in ("gate", "up", "down"))
    return FeedForward(
        gate=gate[0] if gate else None,
        up=up,
        down=layer.packed(f"{prefix}down"),
        activation=_GATES.get(layer.config.activation, "silu"),
        gate_bias=gate_bias,
        up_bias=up_bias,
        down_bias=down_bias,
    )


def _experts(layer: LayerParts) -> ExpertWeights:
    experts = layer.config.experts
    assert experts is not None
    gate: Weight | None
    if layer.has("experts_gate_up_in_turn_bias"):
        in_turn = layer.experts_in_turn()
        gate, up, down = map(layer.pack, in_turn[:3])
        biases: tuple[np.ndarray | None, ...] = in_turn[3:]
    else:
        biases = tuple(layer.optional_vector(f"experts_{part}_bias") for part in FEED_FORWARD)
        if layer.has("experts_gate_up"):
            gate, up = map(layer.pack, _halves(layer.stack("experts_gate_up"), experts.count))
        else:
            up = layer.pack(layer.stack("experts_up"))
            gate = layer.pack(layer.stack("experts_gate")) if layer.has("experts_gate") else None
        down = layer.pack(layer.stack("experts_down_together" if layer.has("experts_down_together") else "experts_down"))
    return ExpertWeights(
        router=in_dense_format(layer.weight("router")),
        bias=layer.optional_vector("correction"),
        router_bias=layer.optional_vector("router_bias"),
        routed=FeedForward(gate, up, down, experts.count, _GATES.get(layer.config.activation, "silu"), *biases),
        shared=_dense(layer, "shared_") if experts.shared else None,
        factors=layer.optional_vector("factors_of_experts"),
        shared_gate=in_dense_format(layer.weight("shared_factor")) if experts.shared_gated else None,
        latent_down=layer.packed("latent_down") if experts.latent else None,
        latent_up=layer.packed("latent_up") if experts.latent else None,
    )


def in_dense_format(stored: Stored) -> PackedWeight:
    weight = whole(stored.weight)
    return weight if weight.format in DENSE_FORMATS else PackedWeight.from_array(weight.dense())


def _halves(stored: Stored, blocks: int) -> list[Stored]:
    """The first halves of `blocks` blocks of rows, one after the other, and the second halves."""
    weight = whole(stored.weight)
    rows = weight.rows.reshape(blocks, 2, -1, weight.rows.shape[1])
    first, second = (np.ascontiguousarray(rows[:, k]).reshape(-1, rows.shape[3]) for k in (0, 1))
    return [stored._replace(weight=replace(weight, rows=half)) for half in (first, second)]
