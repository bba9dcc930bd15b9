"""One layer in float32, operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from decodestep.decoding.config import Config
from decodestep.decoding.layer_weights import ExpertWeights, Layer
from decodestep.ops.expert_router import expert_router
from decodestep.ops.linear import linear
from decodestep.ops.linear.reference import with_bias
from decodestep.ops.mixture_of_experts import mixture_of_experts
from decodestep.ops.mixture_of_experts.blocks import feed_forward
from decodestep.ops.rms_norm import rms_norm
from decodestep.ops.swiglu import swiglu
from decodestep.weights.feed_forward import FeedForward


def run_layer(x: np.ndarray, layer: Layer, config: Config, attend: Callable[[np.ndarray], np.ndarray]) -> None:
    """Adds what the layer does to x, the residual stream (T, He). attend: of normalised rows, before the output's weight."""
    attended = attend(normalise(x, layer.attention_norm, config))
    added = with_bias(linear(attended, layer.attention.output), layer.attention.output_bias)
    x += scale(normalise(added, layer.attention_post_norm, config), config.residual_scale)
    h = normalise(x, layer.ffn_norm, config)
    x += scale(normalise(_feed_forward(h, layer.feed_forward, config), layer.ffn_post_norm, config), config.residual_scale)


def normalise(rows: np.ndarray, norm: np.ndarray | None, config: Config) -> np.ndarray:
    """The rows themselves without a norm."""
    return rows if norm is None else rms_norm(rows, norm, eps=config.norm_eps)


def scale(x: np.ndarray, factor: float) -> np.ndarray:
    return x if factor == 1 else x * np.float32(factor)


def _feed_forward(h: np.ndarray, weights: FeedForward | ExpertWeights, config: Config) -> np.ndarray:
    if isinstance(weights, FeedForward):
        return _dense(h, weights)
    experts = config.experts
    assert experts is not None
    routes = expert_router(linear(h, weights.router), bias=weights.bias, **asdict(experts.rule))
    mixed = mixture_of_experts(h, routes.experts, routes.weights, weights.routed)
    return mixed if weights.shared is None else mixed + _dense(h, weights.shared)


def _dense(h: np.ndarray, block: FeedForward) -> np.ndarray:
    return feed_forward(h, block, linear, swiglu)
