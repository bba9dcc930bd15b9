"""Decoders of random weights whose layers have recurrences in place of attention, and steps of them with states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from decodestep.ops.decoder_forward import (
    DecoderWeights,
    DeltaRule,
    LayerWeights,
    Mamba,
    Mixture,
    ShortConvolution,
    SideBySide,
)
from decodestep.ops.decoder_forward.recurrent_layers import Recurrence
from decodestep.ops.expert_router import RouterRule
from decodestep.weights import Format
from support.decoder_forward_cases import Sizes, bias, block, matrix, norm, step, weights


def taps(count: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, count**-0.5, (count, channels)).astype(np.float32)


def delta(
    hidden: int,
    format_: Format,
    rng: np.random.Generator,
    *,
    key_heads: int = 2,
    heads: int = 4,
    rows: int = 19,
    columns: int = 40,
    tiled: bool = False,
    output_bias: bool = False,
) -> DeltaRule:
    channels = 2 * key_heads * rows + heads * columns
    return DeltaRule(
        qkv=matrix(hidden, channels, format_, rng),
        gate=matrix(hidden, heads * columns, format_, rng),
        beta_alpha=matrix(hidden, 2 * heads, Format.F32, rng),
        convolution=taps(4, channels, rng),
        decay=-rng.uniform(0.05, 1, heads).astype(np.float32),
        step_bias=bias(heads, rng),
        norm=norm(columns, rng),
        output=matrix(heads * columns, hidden, format_, rng),
        key_heads=key_heads,
        tiled=tiled,
        output_bias=bias(hidden, rng) if output_bias else None,
    )


def mamba(
    hidden: int,
    format_: Format,
    rng: np.random.Generator,
    *,
    heads: int = 6,
    width: int = 16,
    groups: int = 2,
    rows: int = 24,
    count: int = 4,
    with_bias: bool = True,
) -> Mamba:
    channels = heads * width + 2 * groups * rows
    return Mamba(
        input=matrix(hidden, heads * width + channels + heads, format_, rng),
        convolution=taps(count, channels, rng),
        convolution_bias=bias(channels, rng) if with_bias else None,
        decay=-rng.uniform(0.1, 2, heads).astype(np.float32),
        step_bias=bias(heads, rng),
        skip=bias(heads, rng),
        norm=norm(heads * width, rng),
        output=matrix(heads * width, hidden, format_, rng),
        groups=groups,
    )


def convolution(
    hidden: int, format_: Format, rng: np.random.Generator, *, count: int = 3, biases: bool = False
) -> ShortConvolution:
    def vector(width: int) -> np.ndarray | None:
        return bias(width, rng) if biases else None

    return ShortConvolution(
        input=matrix(hidden, 3 * hidden, format_, rng),
        convolution=taps(count, hidden, rng),
        output=matrix(hidden, hidden, format_, rng),
        input_bias=vector(3 * hidden),
        convolution_bias=vector(hidden),
        output_bias=vector(hidden),
    )


def hybrid(kinds: list[Recurrence | str | None], format_: Format, rng: np.random.Generator, **sizes: int) -> DecoderWeights:
    """A decoder with a layer for each kind: a recurrence, "attention", "gated attention", or None: only a feed-forward block.

    A layer of "attention alone" has no feed-forward block.
    """
    w = weights(Sizes(**sizes, layers=len(kinds)), format_, rng)

    def layer(made: LayerWeights, kind: Recurrence | str | None) -> LayerWeights:
        if isinstance(kind, Recurrence):
            return replace(made, mixer=kind)
        if kind is None:
            return replace(made, mixer=None, attention_norm=None)
        if kind == "gated attention":
            return replace(made, mixer=replace(made.mixer, gate=matrix(*made.mixer.query.shape, format_, rng)))
        return replace(made, feed_forward=None, ffn_norm=None) if kind == "attention alone" else made

    return replace(w, layers=tuple(map(layer, w.layers, kinds)))


def without_feed_forward(w: DecoderWeights, *numbers: int) -> DecoderWeights:
    layers = list(w.layers)
    for number in numbers:
        layers[number] = replace(layers[number], feed_forward=None, ffn_norm=None)
    return replace(w, layers=tuple(layers))


def with_experts(
    w: DecoderWeights, format_: Format, rng: np.random.Generator, *, latent: int = 0, gated: bool = True, shared: bool = True
) -> DecoderWeights:
    """Every layer with experts, and a shared block. latent: of the experts. gated: whether the shared block has a gate."""

    def mixture() -> Mixture:
        return Mixture(
            router=matrix(w.hidden, 5, Format.F32, rng),
            rule=RouterRule(2),
            bias=None,
            routed=block(latent or w.hidden, 32, format_, rng, 5),
            shared=block(w.hidden, 64, format_, rng) if shared else None,
            shared_gate=matrix(w.hidden, 1, Format.F32, rng) if gated and shared else None,
            latent_down=matrix(w.hidden, latent, format_, rng) if latent else None,
            latent_up=matrix(latent, w.hidden, format_, rng) if latent else None,
        )

    return replace(w, layers=tuple(replace(layer, feed_forward=mixture()) for layer in w.layers))


def beside_experts(w: DecoderWeights, format_: Format, rng: np.random.Generator, **after: Any) -> DecoderWeights:
    """Every layer's dense block beside experts that have factors. after: fields of the layers."""

    def both(layer: LayerWeights, experts: Mixture) -> LayerWeights:
        norms = {name: norm(w.hidden, rng) for name in ("dense_post_norm", "router_norm", "experts_norm", "experts_post_norm")}
        mixture = replace(experts, factors=rng.uniform(0.5, 2, 5).astype(np.float32))
        return replace(layer, feed_forward=SideBySide(layer.feed_forward, experts=mixture, **norms), **after)

    mixtures = (layer.mixture for layer in with_experts(w, format_, rng, shared=False).layers)
    return replace(w, layers=tuple(map(both, w.layers, mixtures)))


def step_with_states(w: DecoderWeights, lengths: list[int], rng: np.random.Generator, **options: Any) -> dict[str, Any]:
    """A step of prompts from the beginning, with states of their own between others that nothing may change."""
    call = step(w, lengths, rng, **options)
    if w.state_size == 0:
        return call
    slots = 1 + 2 * rng.permutation(len(lengths))
    states = np.full((2 * len(lengths) + 1, w.state_size), np.nan, np.float32)
    states[slots] = 0
    return call | {"states": states, "slots": slots}
