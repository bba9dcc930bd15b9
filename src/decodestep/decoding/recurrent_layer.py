"""Mixers with a state, of one layer in float32: the gated delta rule, Mamba2 and short convolutions, by their operators."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decodestep.decoding.config import Config, DeltaConfig, MambaConfig
from decodestep.decoding.decoder import TokenBatch
from decodestep.decoding.float32_layer import sigmoid
from decodestep.decoding.layer_weights import ConvolutionWeights, DeltaWeights, MambaWeights
from decodestep.ops.causal_conv1d import causal_conv1d
from decodestep.ops.gated_delta_rule import gated_delta_rule
from decodestep.ops.linear import linear
from decodestep.ops.linear.reference import with_bias
from decodestep.ops.rms_norm import rms_norm
from decodestep.ops.selective_state_update import selective_state_update
from decodestep.ops.selective_state_update.reference import softplus
from decodestep.ops.swiglu import swiglu

States = tuple[np.ndarray | None, np.ndarray | None]  # of a layer: what it recalls, and the last inputs of its convolution


class Rows(NamedTuple):
    """The tokens of a batch, one sequence after the other: their places in the batch, and the number of each sequence's tokens.
    slots, into: the places of the states that sequences begin with and leave, as in `TokenBatch`."""

    order: np.ndarray
    lengths: np.ndarray
    slots: np.ndarray
    into: np.ndarray

    @classmethod
    def of(cls, batch: TokenBatch) -> Rows:
        assert batch.slots is not None and batch.into is not None
        lengths = np.bincount(batch.sequence, minlength=len(batch.slots))
        return cls(np.argsort(batch.sequence, kind="stable"), lengths, batch.slots, batch.into)


def mix(
    h: np.ndarray, weights: DeltaWeights | MambaWeights | ConvolutionWeights, config: Config, states: States, rows: Rows
) -> np.ndarray:
    """What the layer's output weight multiplies, of every token; updates the states.

    h: float32 (T, He), what the layer reads. states: of all slots.
    """
    ordered = h[rows.order]
    memory, inputs = states
    assert inputs is not None
    if isinstance(weights, ConvolutionWeights):
        mixed = _convolve(ordered, weights, inputs, rows)
    else:
        assert memory is not None
        if isinstance(weights, DeltaWeights):
            assert config.delta is not None
            mixed = _recall(ordered, weights, config.delta, config.norm_eps, memory, inputs, rows)
        else:
            assert config.mamba is not None
            mixed = _select(ordered, weights, config.mamba, config.norm_eps, memory, inputs, rows)
    out = np.empty_like(mixed)
    out[rows.order] = mixed
    return out


def _recall(
    h: np.ndarray, w: DeltaWeights, sizes: DeltaConfig, eps: float, memory: np.ndarray, inputs: np.ndarray, rows: Rows
) -> np.ndarray:
    tokens = len(h)
    qkv = causal_conv1d(
        linear(h, w.qkv), w.convolution.T, inputs, rows.lengths, activation="silu", slots=rows.slots, into=rows.into
    )
    query, key, value = np.split(qkv, [sizes.keys, 2 * sizes.keys], axis=1)
    beta, alpha = np.split(linear(h, w.beta_alpha), 2, axis=1)
    recalled = gated_delta_rule(
        query.reshape(tokens, sizes.key_heads, -1),
        key.reshape(tokens, sizes.key_heads, -1),
        value.reshape(tokens, sizes.value_heads, -1),
        memory,
        w.decay * softplus(alpha + w.step_bias),
        sigmoid(beta),
        rows.lengths,
        scale=sizes.key_dim**-0.5,
        l2_norm=True,
        head_map="tiled" if sizes.tiled else "grouped",
        slots=rows.slots,
        into=rows.into,
    )
    normed = rms_norm(recalled.reshape(-1, sizes.value_dim), w.norm, eps=eps)
    return swiglu(linear(h, w.gate), normed.reshape(tokens, -1))


def _select(
    h: np.ndarray, w: MambaWeights, sizes: MambaConfig, eps: float, memory: np.ndarray, inputs: np.ndarray, rows: Rows
) -> np.ndarray:
    tokens = len(h)
    gate, convolved, steps = np.split(linear(h, w.input), [sizes.inner, sizes.inner + sizes.channels], axis=1)
    xbc = causal_conv1d(
        convolved,
        w.convolution.T,
        inputs,
        rows.lengths,
        bias=w.convolution_bias,
        activation="silu",
        slots=rows.slots,
        into=rows.into,
    )
    x, written, read = np.split(xbc, [sizes.inner, sizes.inner + sizes.groups * sizes.state], axis=1)
    y = selective_state_update(
        x.reshape(tokens, sizes.heads, -1),
        steps,
        w.decay,
        written.reshape(tokens, sizes.groups, -1),
        read.reshape(tokens, sizes.groups, -1),
        memory,
        rows.lengths,
        d=w.skip,
        dt_bias=w.step_bias,
        slots=rows.slots,
        into=rows.into,
    )
    width = sizes.inner // sizes.groups
    gated = swiglu(gate, y.reshape(tokens, -1)).reshape(-1, width)
    return rms_norm(gated, np.ones(width, np.float32), eps=eps).reshape(tokens, -1) * w.norm


def _convolve(h: np.ndarray, w: ConvolutionWeights, inputs: np.ndarray, rows: Rows) -> np.ndarray:
    before, after, x = np.split(with_bias(linear(h, w.input), w.input_bias), 3, axis=1)
    bias = w.convolution_bias
    return after * causal_conv1d(before * x, w.convolution.T, inputs, rows.lengths, bias=bias, slots=rows.slots, into=rows.into)
