"""Converts mixers with a state to a decoder's weights."""

from __future__ import annotations

import numpy as np

from decodestep.decoding.layer_weights import ConvolutionWeights, DeltaWeights, MambaWeights
from decodestep.models.layer_parts import LayerParts
from decodestep.models.row_order import chosen_rows, delta_rows


def delta(layer: LayerParts) -> DeltaWeights:
    sizes = layer.config.delta
    assert sizes is not None
    rows = delta_rows(sizes)
    if layer.has("delta_qkvz"):
        both = layer.weight("delta_qkvz")
        qkv, gate = (layer.pack(chosen_rows(both, rows[part])) for part in ("delta_qkv", "delta_gate"))
    else:
        qkv, gate = layer.packed("delta_qkv"), layer.packed("delta_gate")
    if layer.has("delta_beta_alpha"):
        order = np.concatenate([rows["delta_beta"], rows["delta_alpha"]])
        beta_alpha = layer.pack(chosen_rows(layer.weight("delta_beta_alpha"), order))
    else:
        beta_alpha = layer.pack(layer.weight("delta_beta"), layer.weight("delta_alpha"))
    return DeltaWeights(
        qkv=qkv,
        gate=gate,
        beta_alpha=beta_alpha,
        convolution=_taps(layer, sizes.taps),
        decay=_decay(layer),
        step_bias=layer.vector("step_bias"),
        norm=layer.vector("gated_norm"),
        output=layer.packed("mixer_output"),
    )


def mamba(layer: LayerParts) -> MambaWeights:
    sizes = layer.config.mamba
    assert sizes is not None
    return MambaWeights(
        input=layer.packed("mixer_input"),
        convolution=_taps(layer, sizes.taps),
        convolution_bias=layer.optional_vector("convolution_bias"),
        decay=_decay(layer),
        step_bias=layer.vector("step_bias"),
        skip=layer.vector("skip"),
        norm=layer.vector("gated_norm"),
        output=layer.packed("mixer_output"),
    )


def convolution(layer: LayerParts) -> ConvolutionWeights:
    sizes = layer.config.convolution
    assert sizes is not None
    return ConvolutionWeights(
        input=layer.packed("mixer_input"),
        convolution=_taps(layer, sizes.taps),
        output=layer.packed("mixer_output"),
        input_bias=layer.optional_vector("mixer_input_bias"),
        convolution_bias=layer.optional_vector("convolution_bias"),
        output_bias=layer.optional_vector("mixer_output_bias"),
    )


def _decay(layer: LayerParts) -> np.ndarray:
    """-e^A_log, which GGUF files have."""
    return layer.vector("decay") if layer.has("decay") else -np.exp(layer.vector("decay_logarithm"))


def _taps(layer: LayerParts, taps: int) -> np.ndarray:
    """(K, C) of a checkpoint's (C, K)."""
    return np.ascontiguousarray(layer.vector("convolution").reshape(-1, taps).T)
