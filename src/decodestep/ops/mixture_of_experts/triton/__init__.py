"""mixture_of_experts on a GPU: the tokens of each expert in tiles, through two products, and their sum by token.

Entries, which are pairs of a token and an expert that it names, are put in the order of experts on the host: that is the `Plan`
of a call. Every launch writes each number once, so that the order of sums is the contract's. `launch` neither allocates nor
waits, and can be captured into a CUDA graph.
"""

from __future__ import annotations

import numpy as np
import torch

from decodestep._base.triton import LAUNCH
from decodestep.ops.mixture_of_experts.triton.kernels import GELU, SILU, SQUARED_RELU, add_outputs, down, gate_up
from decodestep.ops.mixture_of_experts.triton.plan import Entries, Plan
from decodestep.weights.device_rows import DeviceRows
from decodestep.weights.feed_forward import FeedForward

_ROWS = 16  # of a product
_PIECES = 4  # rows of an entry where weights are bfloat16, a power of two that holds three
_COLUMNS, _DEPTH, _WARPS, _STAGES = 32, 128, 4, 4
_ADDED = 512  # columns of a program


class Workspace:
    """The memory that calls of this plan's sizes write. y: float32 (T, He), the results of the last call."""

    def __init__(self, plan: Plan, routed: FeedForward, shared: FeedForward | None, device: torch.device) -> None:
        def new(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.float32, device=device)

        self.y = new(plan.tokens, routed.hidden)
        self.routed = [new(len(plan.routed.tokens), width) for width in (routed.width, routed.hidden)]
        self.shared = [] if shared is None else [new(plan.tokens, width) for width in (shared.width, shared.hidden)]


def mixture(
    x: torch.Tensor, experts: np.ndarray, weights: torch.Tensor, routed: FeedForward, shared: FeedForward | None
) -> torch.Tensor:
    """float32 (T, He). The arguments are checked; the blocks' weights are `DeviceRows` on the device of x."""
    plan = make_plan(experts, routed, shared, x.device)
    return launch(x, weights, plan, routed, shared, Workspace(plan, routed, shared, x.device))


def make_plan(experts: np.ndarray, routed: FeedForward, shared: FeedForward | None, device: torch.device) -> Plan:
    """The plan for experts (T, K) by these blocks."""
    return Plan(experts, _entries_of_tile(routed), _entries_of_tile(shared or routed), device)


def launch(
    x: torch.Tensor, weights: torch.Tensor, plan: Plan, routed: FeedForward, shared: FeedForward | None, work: Workspace
) -> torch.Tensor:
    """The results, in work.y. Checks nothing, allocates nothing and does not wait for the device."""
    tokens, hidden = work.y.shape
    if not work.y.numel():
        return work.y
    _through(x, plan.routed, routed, *work.routed)
    if shared is not None:
        _through(x, plan.shared, shared, *work.shared)
    add_outputs[(tokens, -(-hidden // _ADDED))](
        work.routed[1], work.shared[1] if work.shared else work.y, weights, plan.places, plan.columns, work.y, plan.used,
        hidden, *weights.stride(), SHARED=shared is not None, COLUMNS=_ADDED,
    )  # fmt: skip
    return work.y


def _through(x: torch.Tensor, entries: Entries, block: FeedForward, between: torch.Tensor, outputs: torch.Tensor) -> None:
    """outputs[i] = what an expert makes of entry i."""
    of_gate, of_up, of_down = _matrices(block)
    narrow = _is_narrow(block)
    precision = "ieee" if any(w.dtype == torch.float32 for w in (of_gate, of_up, of_down)) else "tf32x3"
    size = {"NARROW": narrow, "PRECISION": precision, "ROWS": _ROWS, "PIECES": _PIECES if narrow else 1}
    size |= {"COLUMNS": _COLUMNS, "DEPTH": _DEPTH if narrow else _DEPTH // 2, **LAUNCH}
    size |= {"num_warps": _WARPS, "num_stages": _STAGES if narrow else _STAGES - 1}
    tiles = len(entries.tiles)
    if tiles and block.width:
        kind = SQUARED_RELU if block.gate is None else GELU if block.activation == "gelu" else SILU
        gate_up[(tiles, -(-block.width // _COLUMNS))](
            x, entries.tokens, entries.tiles, of_gate, of_up, between, block.hidden, block.width, *x.stride(),
            *of_gate.stride(), *of_up.stride(), KIND=kind.value, **size,
        )  # fmt: skip
    if tiles:
        down[(tiles, -(-block.hidden // _COLUMNS))](
            between, entries.tiles, of_down, outputs, block.width, block.hidden, *of_down.stride(), **size
        )


def _matrices(block: FeedForward) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """gate, or up where there is none, up and down."""
    *gates, up, of_down = (weight.values.detach() for weight in block.weights if isinstance(weight, DeviceRows))
    return gates[0] if gates else up, up, of_down


def _is_narrow(block: FeedForward) -> bool:
    return all(matrix.dtype == torch.bfloat16 for matrix in _matrices(block))


def _entries_of_tile(block: FeedForward) -> int:
    return _ROWS // _PIECES if _is_narrow(block) else _ROWS
