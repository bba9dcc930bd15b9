"""The caches that mla_attention reads, and rows that hold a latent and its rope key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decodestep._base.arrays import BFLOAT16, FLOAT8
from decodestep._base.checks import require, require_dtype
from decodestep.ops.mla_prolog.cache_layouts import row_index
from decodestep.ops.mla_prolog.scenarios import TILE


@dataclass(frozen=True)
class Cache:
    """A paged cache, and the factors by which its values were multiplied when stored."""

    rows: np.ndarray  # (BlockNum, BlockSize, 1, width)
    scale: np.ndarray | None  # float32 (width,)
    nz: bool = False  # its blocks are in NZ order
    tiles: np.ndarray | None = None  # float32 (BlockNum, BlockSize, 1, width / TILE), by which the values are to be multiplied

    def read(self, blocks: np.ndarray, length: int, dtype: np.dtype) -> np.ndarray:
        """The first `length` rows of a sequence that lies in `blocks`."""
        j, block_size = np.arange(length), self.rows.shape[1]
        slots = blocks[j // block_size] * block_size + j % block_size
        at = row_index(slots, self.rows, self.nz)
        rows = self.rows[at].astype(dtype)
        if self.tiles is not None:
            return rows * np.repeat(self.tiles[at].astype(dtype), TILE, axis=-1)
        return rows if self.scale is None else rows / self.scale.astype(dtype)


def check_joined(op: str, name: str, rows: np.ndarray, rope: int, outlined: bool) -> None:
    """Requires a paged cache whose rows hold a latent quantised by tiles, its rope key in bfloat16, and the tiles' scales.

    op, name: for errors. rope: the width of the rope key. outlined: the array is an outline.
    """
    require_dtype(op, name, rows, (np.dtype(np.int8), FLOAT8))
    key, unit = 2 * rope, TILE + 4
    ok = rows.ndim == 4 and rows.shape[2] == 1 and rows.shape[3] > key and (rows.shape[3] - key) % unit == 0
    shape = f"(BlockNum, BlockSize, 1, Hckv + {key} + Hckv / 32)"
    require(ok, op, name, f"of shape {shape}, Hckv a multiple of {TILE}, where rope keys have no cache of their own", rows)
    require(outlined or rows.strides[3] == 1, op, name, "of rows whose bytes follow each other", rows)


def joined_latent(width: int, rope: int) -> int:
    """Hckv of rows of `width` bytes."""
    return (width - 2 * rope) // (TILE + 4) * TILE


def joined_parts(rows: np.ndarray, rope: int, outlined: bool = False) -> tuple[Cache, Cache]:
    """The latents and the rope keys of such rows."""
    latent, key = joined_latent(rows.shape[3], rope), 2 * rope
    if outlined:
        return Cache(rows[..., :latent], None), Cache(np.broadcast_to(np.zeros((), BFLOAT16), (*rows.shape[:3], rope)), None)
    scales, keys = rows[..., latent + key :].view(np.float32), rows[..., latent : latent + key].view(BFLOAT16)
    return Cache(rows[..., :latent], None, tiles=scales), Cache(keys, None)
