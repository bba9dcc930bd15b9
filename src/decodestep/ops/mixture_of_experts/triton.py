"""mixture_of_experts on a GPU: the tokens of each expert in tiles of rows, through two products, and their sum by token.

Entries, which are pairs of a token and an expert that it names, are put in the order of experts on the host; a tile holds
entries of one expert. Every launch writes each number once, so that the order of sums is the contract's.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from decodestep._base.devices import to_device
from decodestep._base.triton import LAUNCH, MINUS_INFINITY, as_float32
from decodestep.weights.device_rows import DeviceRows
from decodestep.weights.feed_forward import FeedForward

_ROWS, _COLUMNS, _DEPTH = 16, 32, 64
_SQUARED_RELU, _SILU, _GELU = (tl.constexpr(kind) for kind in range(3))
_TWICE_ROOT = tl.constexpr(1.5957691216057308)  # 2 * sqrt(2 / pi), of the tanh form of GELU


def mixture(
    x: torch.Tensor, experts: np.ndarray, weights: torch.Tensor, routed: FeedForward, shared: FeedForward | None
) -> torch.Tensor:
    """float32 (T, He). The arguments are checked; the blocks' weights are `DeviceRows` on the device of x."""
    tokens, hidden = x.shape
    y = torch.empty((tokens, hidden), dtype=torch.float32, device=x.device)
    if not y.numel():
        return y
    used = experts.shape[1]
    order = np.argsort(experts, axis=None, kind="stable")  # of one expert by token, of one token by column
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    columns = np.argsort(experts, axis=1, kind="stable")
    outputs = _through(x, order // max(used, 1), experts.reshape(-1)[order], routed)
    every = np.arange(tokens)
    of_shared = outputs if shared is None else _through(x, every, np.zeros_like(every), shared)
    _add[(tokens, triton.cdiv(hidden, _COLUMNS))](
        outputs, of_shared, weights,
        to_device(np.append(np.take_along_axis(place.reshape(tokens, used), columns, 1), 0), x.device),
        to_device(np.append(columns, 0), x.device), y, used, hidden, *weights.stride(),
        SHARED=shared is not None, COLUMNS=_COLUMNS,
    )  # fmt: skip
    return y


def _through(x: torch.Tensor, tokens: np.ndarray, experts: np.ndarray, block: FeedForward) -> torch.Tensor:
    """float32 (entries, He): what expert experts[i] makes of token tokens[i]; experts ascend."""
    tiles = to_device(_tiles(experts), x.device)
    *gates, up, down = (weight.values.detach() for weight in block.weights if isinstance(weight, DeviceRows))
    gate = gates[0] if gates else up
    entries = len(tokens)
    between = torch.empty((max(entries, 1), block.width), dtype=torch.float32, device=x.device)
    outputs = torch.empty((max(entries, 1), block.hidden), dtype=torch.float32, device=x.device)
    size = {"ROWS": _ROWS, "COLUMNS": _COLUMNS, "DEPTH": _DEPTH, **LAUNCH}
    if entries and block.width:
        kind = _SQUARED_RELU if block.gate is None else _GELU if block.gelu else _SILU
        _gate_up[(len(tiles), triton.cdiv(block.width, _COLUMNS))](
            x, to_device(tokens, x.device), tiles, gate, up, between, block.hidden, block.width, *x.stride(),
            *gate.stride(), *up.stride(), KIND=kind.value, PRECISION=_precision(gate, up), **size,
        )  # fmt: skip
    if entries:
        _down[(len(tiles), triton.cdiv(block.hidden, _COLUMNS))](
            between, tiles, down, outputs, block.width, block.hidden, *down.stride(), PRECISION=_precision(down), **size
        )
    return outputs


def _tiles(experts: np.ndarray) -> np.ndarray:
    """int64 (tiles, 3): expert, first entry and number of entries."""
    used, first, counts = np.unique(experts, return_index=True, return_counts=True)
    rows = [
        (expert, start + done, min(_ROWS, count - done))
        for expert, start, count in zip(used.tolist(), first.tolist(), counts.tolist(), strict=True)
        for done in range(0, count, _ROWS)
    ]
    return np.array(rows, np.int64).reshape(-1, 3)


def _precision(*weights: torch.Tensor) -> str:
    """Values of 16 bits are exact in TF32, so that three of its products make one of float32."""
    return "ieee" if any(weight.dtype == torch.float32 for weight in weights) else "tf32x3"


@triton.jit
def _gate_up(
    x, tokens, tiles, gate, up, out, depth, columns, x_row, x_item, gate_row, gate_item, up_row, up_item,
    KIND: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    tiles += 3 * tl.program_id(0)
    expert, first, count = tl.load(tiles), tl.load(tiles + 1), tl.load(tiles + 2)
    row = tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < count, n < columns
    token = tl.load(tokens + first + row, mask=is_row, other=0)
    output = expert * columns + n
    of_up = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_gate = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, DEPTH):
        k = start + tl.arange(0, DEPTH)
        is_input = k < depth
        inside = is_input[:, None] & is_column[None, :]
        at = token[:, None] * x_row + k[None, :] * x_item
        a = tl.load(x + at, mask=is_row[:, None] & is_input[None, :], other=0.0)
        b = as_float32(tl.load(up + output[None, :] * up_row + k[:, None] * up_item, mask=inside, other=0.0))
        of_up = tl.dot(a, b, of_up, input_precision=PRECISION)
        if KIND != _SQUARED_RELU:
            b = as_float32(tl.load(gate + output[None, :] * gate_row + k[:, None] * gate_item, mask=inside, other=0.0))
            of_gate = tl.dot(a, b, of_gate, input_precision=PRECISION)
    if KIND == _SQUARED_RELU:
        positive = tl.where(of_up < 0.0, 0.0, of_up)
        result = positive * positive
    else:
        z = of_gate
        if KIND == _GELU:
            z = _TWICE_ROOT * (of_gate + 0.044715 * of_gate * of_gate * of_gate)
            result = of_gate / (1.0 + tl.exp(-z)) * of_up
        else:
            result = tl.where(of_gate == MINUS_INFINITY, 0.0, of_gate / (1.0 + tl.exp(-z))) * of_up
    at = (first + row)[:, None] * columns + n[None, :]
    tl.store(out + at, result, mask=is_row[:, None] & is_column[None, :])


@triton.jit
def _down(
    between, tiles, down, out, depth, columns, down_row, down_item,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    tiles += 3 * tl.program_id(0)
    expert, first, count = tl.load(tiles), tl.load(tiles + 1), tl.load(tiles + 2)
    row = tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < count, n < columns
    output = expert * columns + n
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, DEPTH):
        k = start + tl.arange(0, DEPTH)
        is_input = k < depth
        at = (first + row)[:, None] * depth + k[None, :]
        a = tl.load(between + at, mask=is_row[:, None] & is_input[None, :], other=0.0)
        at = output[None, :] * down_row + k[:, None] * down_item
        b = as_float32(tl.load(down + at, mask=is_input[:, None] & is_column[None, :], other=0.0))
        total = tl.dot(a, b, total, input_precision=PRECISION)
    at = (first + row)[:, None] * columns + n[None, :]
    tl.store(out + at, total, mask=is_row[:, None] & is_column[None, :])


@triton.jit
def _add(
    outputs, of_shared, weights, places, columns, y, used, hidden, weight_row, weight_item,
    SHARED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for j in range(used):
        at = tl.load(places + t * used + j)
        factor = tl.load(weights + t * weight_row + tl.load(columns + t * used + j) * weight_item)
        total += factor * tl.load(outputs + at * hidden + n, mask=n < hidden, other=0.0)
    if SHARED:
        total += tl.load(of_shared + t * hidden + n, mask=n < hidden, other=0.0)
    tl.store(y + t * hidden + n, total, mask=n < hidden)
