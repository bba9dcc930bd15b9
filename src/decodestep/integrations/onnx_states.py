"""ONNX's operators with states, LinearAttention and CausalConvWithState of opset 27, by the library's, on NumPy arrays.

Both have as many tokens in every row, and float16 and bfloat16 too: they are widened, and results are rounded once. States are
returned as float32 by LinearAttention and in the input's type by CausalConvWithState, whose states are inputs.
"""

from __future__ import annotations

import numpy as np

from decodestep._base.checks import is_int, refuse, require, require_shape
from decodestep.ops.causal_conv1d import causal_conv1d
from decodestep.ops.gated_delta_rule import gated_delta_rule
from decodestep.ops.swiglu import swiglu

_CONVOLUTION, _ATTENTION = "CausalConvWithState", "LinearAttention"


def causal_conv_with_state(
    input: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    past_state: np.ndarray | None = None,
    *,
    activation: str = "none",
) -> tuple[np.ndarray, np.ndarray]:
    """The output (B, C, T) and the last K - 1 inputs (B, C, K - 1), of the input's type."""
    require(input.ndim == 3, _CONVOLUTION, "input", "of shape (B, C, T)", input)
    rows, channels, tokens = input.shape
    require(weight.ndim == 3 and weight.shape[1] == 1, _CONVOLUTION, "weight", "of shape (C, 1, K)", weight)
    kept = max(weight.shape[2] - 1, 0)
    state = np.zeros((rows, kept, channels), np.float32)
    if past_state is not None:
        require_shape(_CONVOLUTION, "past_state", past_state, (rows, channels, kept))
        state[...] = past_state.swapaxes(1, 2)
    if activation not in ("none", "silu", "swish"):
        refuse(_CONVOLUTION, "activation", "one of 'none', 'silu', 'swish'", activation)
    # The sum is rounded to a narrow type before the activation.
    is_fused = activation != "none" and input.dtype == np.float32
    y = causal_conv1d(
        input.swapaxes(1, 2).reshape(rows * tokens, channels).astype(np.float32, copy=False),
        weight[:, 0].astype(np.float32, copy=False),
        state,
        bias=None if bias is None else bias.astype(np.float32, copy=False),
        activation="silu" if is_fused else None,
    )
    if activation != "none" and not is_fused:
        rounded = y.astype(input.dtype).astype(np.float32)
        y = swiglu(rounded, np.ones_like(rounded))
    output = y.reshape(rows, tokens, channels).swapaxes(1, 2)
    return np.array(output, input.dtype, order="C"), np.array(state.swapaxes(1, 2), input.dtype, order="C")


def linear_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    past_state: np.ndarray | None = None,
    decay: np.ndarray | None = None,
    beta: np.ndarray | None = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
    chunk_size: int = 64,
) -> tuple[np.ndarray, np.ndarray]:
    """The output (B, T, Hq dv), of the query's type, and the new state (B, Hkv, dk, dv), float32.

    chunk_size: has no effect, as the specification says.
    """
    require(is_int(kv_num_heads) and kv_num_heads > 0, _ATTENTION, "kv_num_heads", "a positive integer", kv_num_heads)
    shared, rest = divmod(q_num_heads, kv_num_heads)
    require(shared > 0 and rest == 0, _ATTENTION, "q_num_heads", f"a positive multiple of {kv_num_heads}", q_num_heads)
    rows, tokens = query.shape[:2] if query.ndim == 3 else (-1, -1)

    def by_head(name: str, packed: np.ndarray, heads: int) -> np.ndarray:
        """(rows * tokens, q_num_heads, width) in float32."""
        if packed.ndim != 3 or packed.shape[:2] != (rows, tokens) or packed.shape[2] % heads:
            refuse(_ATTENTION, name, f"of shape (B, T, a multiple of {heads}), B and T those of the query", packed)
        split = packed.reshape(rows * tokens, heads, packed.shape[2] // heads).astype(np.float32, copy=False)
        return np.repeat(split, q_num_heads // heads, axis=1)

    q, k, v = by_head("query", query, q_num_heads), by_head("key", key, kv_num_heads), by_head("value", value, kv_num_heads)
    of_decay = None if decay is None else by_head("decay", decay, kv_num_heads)
    of_beta = None if beta is None else by_head("beta", beta, 1 if beta.shape[-1] == 1 else kv_num_heads)
    for name, array in (("decay", of_decay), ("beta", of_beta)):
        widths = (1, k.shape[2]) if name == "decay" else (1,)
        if array is not None and array.shape[2] not in widths:
            refuse(_ATTENTION, name, f"of {' or '.join(map(str, widths))} numbers a head", array)
    # Query heads that share a key and a value share its state: each has a copy, of which all end alike.
    state = np.zeros((rows, q_num_heads, k.shape[2], v.shape[2]), np.float32)
    if past_state is not None:
        require_shape(_ATTENTION, "past_state", past_state, (rows, kv_num_heads, *state.shape[2:]))
        state[...] = np.repeat(past_state.astype(np.float32, copy=False), shared, axis=1)
    out = gated_delta_rule(
        q,
        k,
        v,
        state,
        of_decay if of_decay is None or of_decay.shape[2] > 1 else of_decay[:, :, 0],
        None if of_beta is None else of_beta[:, :, 0],
        scale=scale or max(k.shape[2], 1) ** -0.5,
        update_rule=update_rule,
    )
    output = out.reshape(rows, tokens, q_num_heads * v.shape[2]).astype(query.dtype, copy=False)
    return output, np.ascontiguousarray(state[:, ::shared])
