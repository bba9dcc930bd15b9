"""selective_state_update on a GPU: a program for some columns of a head's state, which stay in registers between tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from decodestep._base.devices import to_device_together
from decodestep._base.state_rows import StateRows
from decodestep._base.triton import LAUNCH, exp, log, two_atanh

_BLOCK = 16  # columns of a state


def update(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    state: torch.Tensor,
    rows: StateRows,
) -> torch.Tensor:
    """The results; writes to `state`."""
    _, heads, width = x.shape
    groups, state_width = b.shape[1:]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not (heads and width and len(rows.read)):
        return y
    starts, read, written = to_device_together([rows.starts, rows.read, rows.written], x.device)
    strides = [0 if vector is None else vector.stride(0) for vector in (a, d, dt_bias)]
    _update[(len(rows.read), heads, triton.cdiv(width, _BLOCK))](
        x, dt, a, b, c, a if d is None else d, a if dt_bias is None else dt_bias, state, starts, read, written, y, heads,
        groups, state_width, width, *x.stride(), *dt.stride(), *b.stride(), *c.stride(), *strides, *state.stride(),
        HAS_D=d is not None, HAS_BIAS=dt_bias is not None, ROWS=triton.next_power_of_2(max(state_width, 1)), COLUMNS=_BLOCK,
        **LAUNCH,
    )  # fmt: skip
    return y


@triton.jit
def _softplus(x):
    """ln(1 + e^x) in float64; x itself above 20 and for NaN."""
    e = exp(tl.where(x <= 20.0, x, 0.0).to(tl.float64))
    low = e < 0.4  # where the sum 1 + e would keep few digits of e
    small = tl.where(low, e, 0.0)
    total = tl.where(low, two_atanh(small / (2.0 + small)), log(1.0 + e)).to(tl.float32)
    return tl.where(x <= 20.0, total, x)


@triton.jit
def _update(
    x, dt, a, b, c, d, dt_bias, state, starts, read, written, y, heads, groups, state_width, width, x_t, x_h, x_p, dt_t,
    dt_h, b_t, b_g, b_n, c_t, c_g, c_n, a_h, d_h, bias_h, state_s, state_h, state_n, state_p, HAS_D: tl.constexpr,
    HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    n = tl.arange(0, ROWS).to(tl.int64)
    p = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS).to(tl.int64)
    group = head // (heads // groups)
    inside = (n < state_width)[:, None] & (p < width)[None, :]
    place = head * state_h + n[:, None] * state_n + p[None, :] * state_p
    s = tl.load(state + tl.load(read + row) * state_s + place, mask=inside, other=0.0)
    rate = tl.load(a + head * a_h)
    for t in range(tl.load(starts + row), tl.load(starts + row + 1)):
        step = tl.load(dt + t * dt_t + head * dt_h)
        if HAS_BIAS:
            step += tl.load(dt_bias + head * bias_h)
        step = _softplus(step)
        given = tl.load(x + t * x_t + head * x_h + p * x_p, mask=p < width, other=0.0)
        key = tl.load(b + t * b_t + group * b_g + n * b_n, mask=n < state_width, other=0.0)
        query = tl.load(c + t * c_t + group * c_g + n * c_n, mask=n < state_width, other=0.0)
        s = tl.exp(step * rate) * s + key[:, None] * (step * given)[None, :]
        result = tl.sum(query[:, None] * s, axis=0)
        if HAS_D:
            result += tl.load(d + head * d_h) * given
        tl.store(y + (t * heads + head) * width + p, result, mask=p < width)
    tl.store(state + tl.load(written + row) * state_s + place, s, mask=inside)
