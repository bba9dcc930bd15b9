"""gated_delta_rule on a GPU: a program for some columns of a head's state, which stay in registers from token to token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from decodestep._base.devices import to_device_together
from decodestep._base.state_rows import StateRows
from decodestep._base.triton import LAUNCH
from decodestep.ops.gated_delta_rule.arguments import NORM_EPSILON, Rule

_BLOCK = 16  # columns of a state


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: torch.Tensor,
    decay: torch.Tensor | None,
    beta: torch.Tensor | None,
    rule: Rule,
    rows: StateRows,
) -> torch.Tensor:
    """The results; writes to `state`. decay: (T, H, 1) or (T, H, dk). beta: (T, H, 1)."""
    tokens, heads, width = value.shape
    key_heads, key_width = key.shape[1:]
    out = torch.empty((tokens, heads, width), dtype=value.dtype, device=value.device)
    if not (heads and width and len(rows.read)):
        return out
    starts, read, written = to_device_together([rows.starts, rows.read, rows.written], value.device)
    of_decay = (0, 0, 0) if decay is None else (*decay.stride()[:2], decay.stride(2) if decay.shape[2] > 1 else 0)
    of_beta = (0, 0) if beta is None else beta.stride()[:2]
    _attend[(len(rows.read), heads, triton.cdiv(width, _BLOCK))](
        query, key, value, value if decay is None else decay, value if beta is None else beta, state, starts, read, written,
        out, float(rule.scale), heads, key_heads, key_width, width, *query.stride(), *key.stride(), *value.stride(), *of_decay,
        *of_beta, *state.stride(), TILED=rule.head_map == "tiled", NORMED=rule.l2_norm, EPSILON=NORM_EPSILON,
        HAS_DECAY=decay is not None, HAS_BETA=beta is not None, ROWS=triton.next_power_of_2(max(key_width, 1)),
        COLUMNS=_BLOCK, **LAUNCH,
    )  # fmt: skip
    return out


@triton.jit
def _attend(
    query, key, value, decay, beta, state, starts, read, written, out, scale, heads, key_heads, key_width, width,
    query_t, query_h, query_i, key_t, key_h, key_i, value_t, value_h, value_v, decay_t, decay_h, decay_i, beta_t, beta_h,
    state_s, state_h, state_i, state_v, TILED: tl.constexpr, NORMED: tl.constexpr, EPSILON: tl.constexpr,
    HAS_DECAY: tl.constexpr, HAS_BETA: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    i = tl.arange(0, ROWS).to(tl.int64)
    v = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS).to(tl.int64)
    key_head = head % key_heads if TILED else head // (heads // key_heads)
    inside = (i < key_width)[:, None] & (v < width)[None, :]
    place = head * state_h + i[:, None] * state_i + v[None, :] * state_v
    s = tl.load(state + tl.load(read + row) * state_s + place, mask=inside, other=0.0)
    for t in range(tl.load(starts + row), tl.load(starts + row + 1)):
        q = tl.load(query + t * query_t + key_head * query_h + i * query_i, mask=i < key_width, other=0.0)
        k = tl.load(key + t * key_t + key_head * key_h + i * key_i, mask=i < key_width, other=0.0)
        if NORMED:
            q = tl.div_rn(q, tl.sqrt_rn(tl.sum(q * q, axis=0) + EPSILON))
            k = tl.div_rn(k, tl.sqrt_rn(tl.sum(k * k, axis=0) + EPSILON))
        if HAS_DECAY:
            logarithm = tl.load(decay + t * decay_t + head * decay_h + i * decay_i, mask=i < key_width, other=0.0)
            s = s * tl.exp(logarithm)[:, None]
        change = tl.load(value + t * value_t + head * value_h + v * value_v, mask=v < width, other=0.0)
        if HAS_BETA:
            change = tl.load(beta + t * beta_t + head * beta_h) * (change - tl.sum(k[:, None] * s, axis=0))
        s = s + k[:, None] * change[None, :]
        result = tl.sum((q * scale)[:, None] * s, axis=0)
        tl.store(out + (t * heads + head) * width + v, result, mask=v < width)
    tl.store(state + tl.load(written + row) * state_s + place, s, mask=inside)
