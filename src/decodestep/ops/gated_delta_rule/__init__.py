"""gated_delta_rule: linear attention whose state is a matrix for each head, corrected by what it recalls."""

from __future__ import annotations

import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.arrays import Array, ArrayT, Integers
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep._base.state_rows import look, require_state, require_state_apart, state_rows
from decodestep.ops.gated_delta_rule import cpu, reference
from decodestep.ops.gated_delta_rule.arguments import OP, Arrays, Rule, check


def gated_delta_rule(
    query: ArrayT,
    key: Array,
    value: Array,
    state: Array,
    decay: Array | None = None,
    beta: Array | None = None,
    lengths: Integers | None = None,
    *,
    scale: float,
    update_rule: str = "gated_delta",
    l2_norm: bool = False,
    head_map: str = "grouped",
    slots: Integers | None = None,
    into: Integers | None = None,
    backend: str = "auto",
) -> ArrayT:
    """Attends with a state instead of past keys and values, token by token, and updates the state.

        for every row b, whose tokens follow those of row b - 1, and every head h:
            S = state[slots[b], h]                                                    # (dk, dv)
            for every token t of the row:
                q, k = query[t, g], key[t, g]             # g = h // (H / Hk), or h mod Hk if head_map is "tiled"
                if l2_norm: q, k = q / sqrt(sum of q^2 + 1e-6), k / sqrt(sum of k^2 + 1e-6)
                S[i, :] *= e^decay[t, h, i]                                           # or e^decay[t, h]
                change = value[t, h]
                if the rule has a beta: change = beta[t, h] * (change - k @ S)
                S += outer(k, change)
                out[t, h] = scale * q @ S
            state[into[b], h] = S

    Args:
        query: (T, Hk, dk), float32 or float64, any strides: the tokens of all rows.
        key: as query.
        value: (T, H, dv) of query's dtype; H is a multiple of Hk.
        state: (S, H, dk, dv) of query's dtype, written in place; zeros before a row's first token. Its elements may overlap
            neither each other nor the other arrays.
        decay: logarithms, usually <= 0: (T, H), or (T, H, dk) for a decay of each row of a head's state; of query's dtype.
        beta: (T, H) of query's dtype, usually in [0, 1].
        lengths: (B,) the rows' numbers of tokens, >= 0, of sum T; None for T / B each.
        scale: finite, of the results; usually dk^-0.5.
        update_rule: "linear", without decay and beta; "gated", with a decay; "delta", with a beta; "gated_delta", with both.
        l2_norm: whether queries and keys are normalised here.
        head_map: which key head a head reads: "grouped", H / Hk neighbours share one; or "tiled", as GGUF files of Qwen3.5
            have them.
        slots: (B,) the states that rows begin with, in [0, S); None for all S in order.
        into: (B,) the states that rows leave, all different; None for `slots`. A row may not write what another reads.
        backend: "auto", "cpu", "triton" or "reference". "triton" takes tensors on a GPU, float32. "cpu" serves float32.

    Returns:
        out, a new array (T, H, dv) of query's dtype and kind.

    Raises:
        ValueError: before anything is written, for a dtype, shape, number or memory outside the rules, and for a decay or
            beta that the rule does not have or lacks.

    Notes:
        Sums over i are taken in ascending order, each step one fused multiply-add where the processor has it; on "cpu" k @ S is
        the sum of (e^decay k[i]) S[i, :] before S decays, and e^decay is 0 from -87 down and at most e^88. There is no other
        form for many tokens: a row's results and state have the same bits however its tokens are divided into calls, whatever
        the other rows, and with every number of threads. A row without tokens leaves its state unchanged. A decay of -inf
        forgets a finite state. NaN in a head's inputs stays in that head of the row.

    Source:
        Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024; ONNX LinearAttention, since opset 27; CANN's
        recurrent_gated_delta_rule, whose state is transposed; transformers 5.23's torch_recurrent_gated_delta_rule.
    """
    given = Arrays(query, key, value, state, decay, beta)
    seen = Arrays(**look(OP, given._asdict(), ("decay", "beta"), backend))
    check(seen)
    rule = Rule(update_rule, scale, l2_norm, head_map)
    rule.check(decay, beta)
    tokens, heads, width = seen.value.shape
    require_state(OP, seen.state, (heads, seen.key.shape[2], width), seen.query.dtype)
    rows = state_rows(OP, tokens, len(seen.state), lengths=lengths, slots=slots, into=into)
    require_state_apart(OP, given._asdict(), seen._asdict())
    if devices.goes_to_triton(backend, query):
        from decodestep.ops.gated_delta_rule import triton

        tensors = Arrays(*devices.detached(given)).with_widths()
        return devices.run_there(OP, tensors.query.device, triton.attend, *tensors, rule, rows)
    backend = choose(OP, backend, {"cpu": None if seen.state.dtype == np.float32 else "needs float32", "reference": None})
    attend = (cpu if backend == "cpu" else reference).attend
    result: ArrayT = arrays.like(query, run(OP, backend, attend, seen.with_widths(), rule, rows))
    return result
