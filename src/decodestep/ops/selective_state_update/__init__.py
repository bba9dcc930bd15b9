"""selective_state_update: the recurrence of Mamba2."""

from __future__ import annotations

from typing import Any

import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.arrays import Array, ArrayT, Integers
from decodestep._base.checks import refuse, require, require_dtype, require_shape
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep._base.state_rows import look, require_state, require_state_apart, state_rows
from decodestep.ops.selective_state_update import cpu, reference

_OP = "selective_state_update"


def selective_state_update(
    x: ArrayT,
    dt: Array,
    a: Array,
    b: Array,
    c: Array,
    state: Array,
    lengths: Integers | None = None,
    *,
    d: Array | None = None,
    dt_bias: Array | None = None,
    slots: Integers | None = None,
    into: Integers | None = None,
    backend: str = "auto",
) -> ArrayT:
    """Runs the tokens of every row through the state space of each head, token by token, and updates the state.

        for every row, whose tokens follow those of the row before, and every head h, of group g = h // (H / G):
            S = state[slots[row], h]                                                  # (N, P)
            for every token t of the row:
                step = softplus(dt[t, h] + dt_bias[h])                                # ln(1 + e^.), and . itself above 20
                S = e^(step * a[h]) * S + outer(b[t, g], step * x[t, h])
                y[t, h] = c[t, g] @ S + d[h] * x[t, h]
            state[into[row], h] = S

    Args:
        x: (T, H, P), float32 or float64, any strides: the tokens of all rows.
        dt: (T, H) of x's dtype, as projected.
        a: (H,) of x's dtype, usually < 0: -e^A_log of a checkpoint, ssm_a of a GGUF file.
        b: (T, G, N) of x's dtype; H is a multiple of G.
        c: as b.
        state: (S, H, N, P) of x's dtype, written in place; zeros before a row's first token. Its elements may overlap neither
            each other nor the other arrays.
        lengths: (B,) the rows' numbers of tokens, >= 0, of sum T; None for T / B each.
        d: (H,) of x's dtype, or None for zeros.
        dt_bias: (H,) of x's dtype, or None for zeros.
        slots: (B,) the states that rows begin with, in [0, S); None for all S in order.
        into: (B,) the states that rows leave, all different; None for `slots`. A row may not write what another reads.
        backend: "auto", "cpu", "triton" or "reference". "triton" takes tensors on a GPU, float32. "cpu" serves float32.

    Returns:
        y, a new array of x's shape, dtype and kind.

    Raises:
        ValueError: before anything is written, for a dtype, shape, number or memory outside the rules.

    Notes:
        The step is not clamped. Sums over n are taken in ascending order, each step one fused multiply-add where the processor
        has it; on "cpu" the factor of the state is 0 from e^-87 down and at most e^88. There is no other form for many tokens:
        a row's results and state have the same bits however its tokens are divided into calls, whatever the other rows, and
        with every number of threads. A row without tokens leaves its state unchanged. NaN stays in the heads that read it.

    Source:
        Dao and Gu, Transformers are SSMs, 2024; selective_state_update of mamba_ssm with a step for each head, whose state is
        (P, N); the single step of transformers 5.23's Mamba2Mixer, in float32.
    """
    given: dict[str, Any] = {"x": x, "dt": dt, "a": a, "b": b, "c": c, "d": d, "dt_bias": dt_bias, "state": state}
    seen = look(_OP, given, ("d", "dt_bias"), backend)
    held = seen.pop("state")
    _check(**seen)
    require_state(_OP, held, (seen["x"].shape[1], seen["b"].shape[2], seen["x"].shape[2]), seen["x"].dtype)
    rows = state_rows(_OP, len(seen["x"]), len(held), lengths=lengths, slots=slots, into=into)
    require_state_apart(_OP, given, {**seen, "state": held})
    if devices.goes_to_triton(backend, x):
        from decodestep.ops.selective_state_update import triton

        tensors = [None if tensor is None else tensor.detach() for tensor in given.values()]
        return devices.run_there(_OP, given["x"].device, triton.update, *tensors, rows)
    backend = choose(_OP, backend, {"cpu": None if held.dtype == np.float32 else "needs float32", "reference": None})
    update = (cpu if backend == "cpu" else reference).update
    result: ArrayT = arrays.like(x, run(_OP, backend, update, *seen.values(), held, rows))
    return result


def _check(
    x: np.ndarray,
    dt: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    d: np.ndarray | None,
    dt_bias: np.ndarray | None,
) -> None:
    require_dtype(_OP, "x", x, (np.float32, np.float64))
    for name, array in (("dt", dt), ("a", a), ("b", b), ("c", c), ("d", d), ("dt_bias", dt_bias)):
        if array is not None:
            require_dtype(_OP, name, array, (x.dtype,))
    require(x.ndim == 3, _OP, "x", "of shape (T, H, P)", x)
    tokens, heads, _ = x.shape
    require_shape(_OP, "dt", dt, (tokens, heads))
    if b.ndim != 3 or len(b) != tokens or b.shape[1] < 1 or heads % b.shape[1]:
        refuse(_OP, "b", f"of shape ({tokens}, G, N), G a divisor of {heads}", b)
    require_shape(_OP, "c", c, b.shape)
    for name, array in (("a", a), ("d", d), ("dt_bias", dt_bias)):
        if array is not None:
            require_shape(_OP, name, array, (heads,))
