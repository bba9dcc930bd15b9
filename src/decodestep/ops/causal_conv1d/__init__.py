"""causal_conv1d: a short convolution of every channel, whose last inputs are a state."""

from __future__ import annotations

import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.arrays import Array, ArrayT, Integers
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep._base.state_rows import look, require_state_apart, state_rows
from decodestep.ops.causal_conv1d import cpu, reference
from decodestep.ops.causal_conv1d.arguments import OP, Arrays, check


def causal_conv1d(
    x: ArrayT,
    weight: Array,
    state: Array,
    lengths: Integers | None = None,
    *,
    bias: Array | None = None,
    activation: str | None = None,
    slots: Integers | None = None,
    into: Integers | None = None,
    backend: str = "auto",
) -> ArrayT:
    """Convolves every channel of every row with its own K taps, and updates the row's state, its last K - 1 inputs.

        for every row b, whose tokens follow those of row b - 1 in x:
            u = [state[slots[b]]; the row's tokens of x]            # K - 1 more than the row has tokens
            for every token t of the row and every channel c:
                y[t, c] = bias[c] + sum over j from 0 to K - 1 of weight[c, j] * u[t + j, c]
                if activation is "silu": y[t, c] /= 1 + e^-y[t, c]
            state[into[b]] = the last K - 1 of u

    Args:
        x: (T, C), float32 or float64, any strides: the tokens of all rows.
        weight: (C, K) of x's dtype, K >= 1; weight[:, K - 1] multiplies the newest input. A transposed (K, C) is not copied.
        state: (S, K - 1, C) of x's dtype, written in place: inputs, the oldest first; zeros before a row's first token. Its
            elements may overlap neither each other nor the other arrays.
        lengths: (B,) the rows' numbers of tokens, >= 0, of sum T; None for T / B each.
        bias: (C,) of x's dtype, or None for zeros.
        activation: None or "silu".
        slots: (B,) the states that rows begin with, in [0, S); None for all S in order.
        into: (B,) the states that rows leave, all different; None for `slots`. A row may not write what another reads.
        backend: "auto", "cpu", "triton" or "reference". "triton" takes tensors on a GPU, float32. "cpu" serves float32.

    Returns:
        y, a new array of x's shape, dtype and kind.

    Raises:
        ValueError: before anything is written, for a dtype, shape, number or memory outside the rules.

    Notes:
        The sum begins with the bias, and every step is one fused multiply-add where the processor has it. A row's results and
        state have the same bits however its tokens are divided into calls, whatever the other rows, and with every number of
        threads. A row without tokens leaves its state unchanged. NaN stays in its channel. At -inf SiLU is its limit, 0; "cpu"
        gives -5e-37 for every sum below -88.

    Source:
        ONNX CausalConvWithState, since opset 27, with time before channels; the convolutions of Mamba2, Qwen3-Next and LFM2.
    """
    given = Arrays(x, weight, state, bias)
    seen = Arrays(**look(OP, given._asdict(), ("bias",), backend))
    check(seen, activation)
    rows = state_rows(OP, len(seen.x), len(seen.state), lengths=lengths, slots=slots, into=into)
    require_state_apart(OP, given._asdict(), seen._asdict())
    silu = activation == "silu"
    if devices.goes_to_triton(backend, x):
        from decodestep.ops.causal_conv1d import triton

        tensors = Arrays(*devices.detached(given))
        return devices.run_there(OP, tensors.x.device, triton.convolve, *tensors, silu, rows)
    backend = choose(OP, backend, {"cpu": None if seen.x.dtype == np.float32 else "needs float32", "reference": None})
    convolve = (cpu if backend == "cpu" else reference).convolve
    result: ArrayT = arrays.like(x, run(OP, backend, convolve, seen, silu, rows))
    return result
