"""selective_state_update: the recurrence of Mamba2."""

from __future__ import annotations

import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.arrays import Array, ArrayT, Integers
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep._base.state_rows import look, require_state, require_state_apart, state_rows
from decodestep.ops.selective_state_update import cpu, reference
from decodestep.ops.selective_state_update.arguments import OP, Arrays, check


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
    given = Arrays(x, dt, a, b, c, d, dt_bias, state)
    seen = Arrays(**look(OP, given._asdict(), ("d", "dt_bias"), backend))
    check(seen)
    tokens, heads, width = seen.x.shape
    require_state(OP, seen.state, (heads, seen.b.shape[2], width), seen.x.dtype)
    rows = state_rows(OP, tokens, len(seen.state), lengths=lengths, slots=slots, into=into)
    require_state_apart(OP, given._asdict(), seen._asdict())
    if devices.goes_to_triton(backend, x):
        from decodestep.ops.selective_state_update import triton

        tensors = Arrays(*devices.detached(given))
        return devices.run_there(OP, tensors.x.device, triton.update, *tensors, rows)
    backend = choose(OP, backend, {"cpu": None if seen.state.dtype == np.float32 else "needs float32", "reference": None})
    update = (cpu if backend == "cpu" else reference).update
    result: ArrayT = arrays.like(x, run(OP, backend, update, seen, rows))
    return result
