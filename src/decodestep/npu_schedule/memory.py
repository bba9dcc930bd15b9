"""Global memory as named matrices: the arguments of a call, the workspace between the kernels, and the results."""

from __future__ import annotations

import numpy as np

from decodestep._base.checks import Phrase, refuse, require
from decodestep.npu_schedule.frame import Frame
from decodestep.npu_schedule.instructions import Tile
from decodestep.npu_schedule.sizes import Sizes
from decodestep.ops.mla_prolog.problem import Problem, columns_of
from decodestep.ops.mla_prolog.reference import matrix, write_rows
from decodestep.weights.linear_panels import LinearPanels

_OP = "simulate"
_CACHES = ("kv_cache", "kr_cache")


class Memory:
    """The matrices of one call. Unwritten memory holds values that no kernel produces: NaN, or an integer no sum can reach."""

    def __init__(self, frame: Frame, p: Problem) -> None:
        s = frame.sizes
        self.p = p
        self.kv_cache, self.kr_cache = p.kv_cache.copy(), p.kr_cache.copy()
        self.given = {
            "token_x": p.x,
            "weight_dq": matrix(p.w_dq, s.hidden, s.hcq),
            "weight_uq_qr": matrix(p.w_uq_qr, s.hcq, s.heads * s.head),
            "weight_dkv_kr": matrix(p.w_dkv_kr, s.hidden, s.hckv + s.rope),
            "weight_uk": _heads(p, s),
            "rope_sin": p.sin,
            "rope_cos": p.cos,
        }
        query_kind = "int8" if s.scenario.query_quantised else "real"
        written = frame.workspace | {
            "query": (s.tokens, s.heads * s.hckv, query_kind),
            "query_rope": (s.tokens, s.heads * s.rope, "real"),
            "dequant_scale_q_nope": (s.tokens, s.heads, "float32"),
        }
        self.written = {name: self._unwritten(rows, columns, kind) for name, (rows, columns, kind) in written.items()}

    def check(self, tile: Tile, *, write: bool) -> None:
        """Refuses a tile outside the matrices, or a write to a read-only one."""
        s, places = self.p, {name: array.shape for name, array in self.written.items()}
        if write:
            places |= {name: (len(s.slots), 2**31) for name in _CACHES}  # rows are tokens
        else:
            places |= {name: array.shape for name, array in self.given.items()}
        if tile.buffer not in places:
            refuse(_OP, f"tile to {'write' if write else 'read'}", f"of one of {', '.join(places)}", Phrase(tile))
        rows, columns = places[tile.buffer]
        spans = [(tile.rows, rows), *((part, columns) for part in tile.parts)]
        inside = all(0 <= first <= end <= size for (first, end), size in spans)
        require(not write or tile.repeats == 1, _OP, "tile to write", "one rectangle", Phrase(tile))
        require(inside, _OP, "tile", f"within {tile.buffer}, {rows} x {columns}", Phrase(tile))

    def load(self, tile: Tile) -> np.ndarray:
        """A copy of a tile, or a view if it is read-only."""
        rows = (self.given if tile.buffer in self.given else self.written)[tile.buffer][slice(*tile.rows)]
        if tile.repeats > 1:
            return np.concatenate([rows[:, left:right] for left, right in tile.parts], axis=1)
        part = rows[:, slice(*tile.columns)]
        return part if tile.buffer in self.given else part.copy()

    def store(self, tile: Tile, value: np.ndarray) -> None:
        """Writes a tile; in a cache, the rows of its tokens."""
        if tile.buffer in _CACHES:
            cache = self.kv_cache if tile.buffer == "kv_cache" else self.kr_cache
            if value.size:  # a tile holds the rope key in the same row as the latent
                write_rows(cache, value, self.p.slots[slice(*tile.rows)], self.p.nz)
            return
        self.written[tile.buffer][slice(*tile.rows), slice(*tile.columns)] = value

    def _unwritten(self, rows: int, columns: int, kind: str) -> np.ndarray:
        if kind == "real":
            return np.full((rows, columns), np.nan, self.p.real)
        return np.full((rows, columns), {"int8": 85, "int32": -(2**30) - 7, "float32": np.nan}[kind], np.dtype(kind))


def fits(sizes: Sizes, p: Problem) -> None:
    """Checks that a schedule was built for a call."""
    wanted, s = sizes.scenario, p.scenario
    same = (wanted.full, wanted.partial, wanted.query_quantised, wanted.code) == (s.full, s.partial, s.query_quantised, s.code)
    require(same, _OP, "scenario", f"{wanted.name}, the schedule's, or differ in its caches only", Phrase(s.name))
    if any(isinstance(w, LinearPanels) for w in (p.w_dq, p.w_uq_qr, p.w_dkv_kr)):
        refuse(_OP, "weights", "arrays or panels of the device's types", Phrase("LinearPanels"))
    heads, nope, hckv = p.w_uk.shape
    given = {
        "tokens": len(p.x),
        "hidden": p.x.shape[1],
        "hcq": columns_of(p.w_dq),
        "heads": heads,
        "nope": nope,
        "hckv": hckv,
        "rope": p.sin.shape[1],
        "cached": p.kv_cache.shape[0] > 0,
    }
    for name, value in given.items():
        require(value == getattr(sizes, name), _OP, name, f"{getattr(sizes, name)} as in the schedule", value)


def _heads(p: Problem, s: Sizes) -> np.ndarray:
    """(N * D, Hckv): the heads' matrices, stacked vertically."""
    w = p.w_uk if isinstance(p.w_uk, np.ndarray) else p.w_uk.dense()
    return w.reshape(s.heads * s.nope, s.hckv)
