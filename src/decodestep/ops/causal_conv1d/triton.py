"""causal_conv1d on a GPU: a launch for the results of all tokens, and one for the states that the rows leave."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from decodestep._base.devices import to_device_together
from decodestep._base.state_rows import StateRows
from decodestep._base.triton import LAUNCH

_BLOCK = 256


def convolve(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, bias: torch.Tensor | None, silu: bool, rows: StateRows
) -> torch.Tensor:
    tokens, channels = x.shape
    count = len(rows.read)
    y = torch.empty((tokens, channels), dtype=x.dtype, device=x.device)
    row_of_token = np.repeat(np.arange(count), np.diff(rows.starts))
    owners, starts, read, written = to_device_together([row_of_token, rows.starts, rows.read, rows.written], x.device)
    blocks = triton.cdiv(channels, _BLOCK)
    shape = {"TAPS": weight.shape[1], "BLOCK": _BLOCK, **LAUNCH}
    if tokens and channels:
        _sums[(tokens, blocks)](
            x, weight, weight if bias is None else bias, state, owners, starts, read, y, channels, *x.stride(),
            *weight.stride(), 0 if bias is None else bias.stride(0), *state.stride(), HAS_BIAS=bias is not None, SILU=silu,
            **shape,
        )  # fmt: skip
    if count and state.numel():
        _keep[(count, blocks)](x, state, starts, read, written, channels, *x.stride(), *state.stride(), **shape)
    return y


@triton.jit
def _input(x, state, u, begin, slot, c, channels, x_t, x_c, state_s, state_t, state_c, TAPS: tl.constexpr):
    """Input u of a row: those of its state come before its tokens."""
    of_state = tl.where(u < TAPS - 1, channels, 0)  # the channels that are read there
    old = tl.load(state + slot * state_s + u * state_t + c * state_c, mask=c < of_state, other=0.0)
    new = tl.load(x + (begin + u - (TAPS - 1)) * x_t + c * x_c, mask=(c >= of_state) & (c < channels), other=0.0)
    return tl.where(c < of_state, old, new)


@triton.jit
def _sums(
    x, weight, bias, state, owners, starts, read, y, channels, x_t, x_c, weight_c, weight_k, bias_c, state_s, state_t,
    state_c, HAS_BIAS: tl.constexpr, SILU: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    mask = c < channels
    row = tl.load(owners + token)
    begin = tl.load(starts + row)
    slot = tl.load(read + row)
    total = tl.zeros([BLOCK], tl.float32)
    if HAS_BIAS:
        total = tl.load(bias + c * bias_c, mask=mask, other=0.0)
    for j in tl.static_range(TAPS):
        u = _input(x, state, token - begin + j, begin, slot, c, channels, x_t, x_c, state_s, state_t, state_c, TAPS)
        total += tl.load(weight + c * weight_c + j * weight_k, mask=mask, other=0.0) * u
    if SILU:
        total = tl.where(total == float("-inf"), 0.0, tl.div_rn(total, 1.0 + tl.exp(-total)))  # at -inf the limit
    tl.store(y + token * channels + c, total, mask=mask)


@triton.jit
def _keep(
    x, state, starts, read, written, channels, x_t, x_c, state_s, state_t, state_c, TAPS: tl.constexpr, BLOCK: tl.constexpr
):
    """In ascending order, so that inputs that only move up in a state are read before they are overwritten."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    mask = c < channels
    begin = tl.load(starts + row)
    tokens = tl.load(starts + row + 1) - begin
    slot = tl.load(read + row)
    target = tl.load(written + row)
    for j in tl.static_range(TAPS - 1):
        u = _input(x, state, tokens + j, begin, slot, c, channels, x_t, x_c, state_s, state_t, state_c, TAPS)
        tl.store(state + target * state_s + j * state_t + c * state_c, u, mask=mask)
