"""One layer in float32, operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from decodestep.decoding.config import Config
from decodestep.decoding.layer_weights import ExpertWeights, InputsOfLayers, Layer, SideBySideWeights
from decodestep.ops.expert_router import expert_router
from decodestep.ops.linear import linear
from decodestep.ops.linear.cpu import gather_rows
from decodestep.ops.linear.reference import with_bias
from decodestep.ops.mixture_of_experts import mixture_of_experts
from decodestep.ops.mixture_of_experts.blocks import feed_forward, gelu_gated
from decodestep.ops.rms_norm import rms_norm
from decodestep.ops.swiglu import swiglu
from decodestep.weights.feed_forward import FeedForward


def run_layer(
    x: np.ndarray,
    layer: Layer,
    config: Config,
    mix: Callable[[np.ndarray], np.ndarray],
    given: np.ndarray | None = None,
) -> None:
    """Adds what the layer does to x, the residual stream (T, He).

    mix: the layer's mixer on normalised rows, before the output's weight. given: (T, P), the layer's input.
    """
    read = normalise(x, layer.attention_norm, config)
    if layer.mixer is not None:
        added = with_bias(linear(mix(read), layer.mixer.output), layer.mixer.output_bias)
        x += scale(normalise(added, layer.attention_post_norm, config), config.residual_scale)
    if layer.feed_forward is not None:
        h = read if config.block_norms == "parallel" else normalise(x, layer.ffn_norm, config)
        made = _feed_forward(h, x, layer.feed_forward, config)
        x += scale(normalise(made, layer.ffn_post_norm, config), config.residual_scale)
    if layer.input is not None and given is not None:
        gated = gelu_gated(linear(x, layer.input.gate), given)
        x += scale(normalise(linear(gated, layer.input.output), layer.input.norm, config), config.residual_scale)
    if layer.scale != 1:
        x *= np.float32(layer.scale)


def inputs_of_layers(tokens: np.ndarray, x: np.ndarray, weights: InputsOfLayers, config: Config) -> np.ndarray:
    """The inputs (T, L, P) of tokens with embeddings x."""
    hidden, width = np.float32(config.hidden**-0.5), config.layer_inputs
    projected = (linear(x, weights.projection) * hidden).reshape(-1, width)
    of_tokens = gather_rows(weights.embedding, tokens) * np.float32(width**0.5)
    made = normalise(projected, weights.norm, config).reshape(of_tokens.shape) + of_tokens
    return (made * np.float32(2**-0.5)).reshape(len(tokens), -1, width)


def normalise(rows: np.ndarray, norm: np.ndarray | None, config: Config) -> np.ndarray:
    """The rows themselves without a norm."""
    if norm is None:
        return rows
    centred = rows - rows.mean(axis=-1, keepdims=True) if config.centred_norms else rows
    return rms_norm(centred, norm, eps=config.norm_eps)


def scale(x: np.ndarray, factor: float) -> np.ndarray:
    return x if factor == 1 else x * np.float32(factor)


def sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def soft_capped(x: np.ndarray, cap: float) -> np.ndarray:
    return x if cap == 0 else np.float32(cap) * np.tanh(x / np.float32(cap))


def _feed_forward(
    h: np.ndarray, x: np.ndarray, weights: FeedForward | ExpertWeights | SideBySideWeights, config: Config
) -> np.ndarray:
    """h: x normalised, as the layer says."""
    if isinstance(weights, FeedForward):
        return _dense(h, weights)
    if isinstance(weights, ExpertWeights):
        return _mixture(h, h, weights, config)
    dense = normalise(_dense(h, weights.dense), weights.dense_post_norm, config)
    routed_by = normalise(x, weights.router_norm, config)
    mixed = _mixture(normalise(x, weights.experts_norm, config), routed_by, weights.experts, config)
    return dense + normalise(mixed, weights.experts_post_norm, config)


def _mixture(h: np.ndarray, routed_by: np.ndarray, weights: ExpertWeights, config: Config) -> np.ndarray:
    """routed_by: what the router reads."""
    experts = config.experts
    assert experts is not None
    logits = with_bias(linear(routed_by, weights.router), weights.router_bias)
    routes = expert_router(logits, bias=weights.bias, **asdict(experts.rule))
    chosen = routes.weights if weights.factors is None else routes.weights * weights.factors[routes.experts]
    read = h if weights.latent_down is None else linear(h, weights.latent_down)
    mixed = mixture_of_experts(read, routes.experts, chosen, weights.routed)
    mixed = mixed if weights.latent_up is None else linear(mixed, weights.latent_up)
    if weights.shared is None:
        return mixed
    shared = _dense(h, weights.shared)
    return mixed + (shared if weights.shared_gate is None else shared * sigmoid(linear(h, weights.shared_gate)))


def _dense(h: np.ndarray, block: FeedForward) -> np.ndarray:
    return feed_forward(h, block, linear, swiglu)
