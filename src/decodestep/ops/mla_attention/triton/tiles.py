"""How a call of mla_attention is cut into programs: splits of the keys, and the tiles that a program holds."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from decodestep._base.devices import interpreted

LEAST, MOST = 128, 64  # keys of a split, splits of a token
_HOPPER_BYTES = 227 << 10  # of shared memory, where there is no device to ask
_MOST_COLUMNS = 512  # of a total of 64 heads in the registers of 8 warps


class Tiles(NamedTuple):
    """The heads and keys of a tile, how many warps share it, and how many tiles of keys are in flight."""

    heads: int
    keys: int
    warps: int
    stages: int


# From the largest on. From 64 rows on Hopper multiplies by warp groups, whose operands lie in shared memory.
NARROW = Tiles(64, 64, 8, 2), Tiles(64, 32, 8, 2), Tiles(32, 32, 8, 3), Tiles(16, 32, 4, 3), Tiles(16, 16, 4, 2)
WIDE = Tiles(16, 64, 4, 3)  # of float32


def power(width: int) -> int:
    """The power of two that holds `width`, at least the 16 that a product needs."""
    return max(16, 1 << (width - 1).bit_length())


def tiles_for(device: torch.device, heads: int, latent: int, rope: int, *, narrow: bool) -> Tiles:
    """narrow: of operands that are bfloat16 throughout."""
    if not narrow:
        return WIDE
    room, row = _shared_bytes(device), 2 * (power(latent) + power(rope))
    fitting = (
        tiles
        for tiles in NARROW
        if (tiles.heads == 16 or 2 * heads > tiles.heads)
        and tiles.heads * power(latent) <= 64 * _MOST_COLUMNS
        and (tiles.heads + tiles.stages * tiles.keys) * row <= room
    )
    return next(fitting, NARROW[-1])


@cache
def _shared_bytes(device: torch.device) -> int:
    """That a program may have."""
    if interpreted():
        return _HOPPER_BYTES
    room: int = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return room
