"""Launches that overlap: a kernel starts while the one before it still runs, and waits for it only where it must.

NVIDIA calls it programmatic dependent launch, which GPUs have from compute capability 9.0. The first kernel of a chain is
launched as usual, after all that came before has ended. A later one starts when all programs of the one before have called
`let_next_start`. Some program of each calls `wait_for_last`, so that the end of a kernel implies the end of all before it.

Before that call a program may read what no kernel of the chain writes, weights above all. It must not write: of what it writes
the kernels before may still read older values.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from decodestep._base.devices import interpreted

_LEAST_CAPABILITY = (9, 0)


@cache
def overlap(device: torch.device, first: bool = False) -> dict[str, Any]:
    """What a kernel with the constant OVERLAPS is launched with; first: of its chain."""
    if interpreted() or torch.version.hip or torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return {"OVERLAPS": False}
    return {"OVERLAPS": True, "launch_pdl": not first}


@triton.jit
def let_next_start(OVERLAPS: tl.constexpr):
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_last(OVERLAPS: tl.constexpr):
    """Until the kernel before has ended, and what it wrote can be read."""
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()


@triton.jit
def fetch_sectors(at):
    """Asks for the sectors at these pointers, which must be valid, to be brought to the L2 cache. Only where OVERLAPS."""
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1)
