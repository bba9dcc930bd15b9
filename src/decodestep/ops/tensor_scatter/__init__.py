"""TensorScatter: write new keys or values into a cache along its sequence axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from decodestep import arrays
from decodestep.checks import is_int, refuse, require, require_choice
from decodestep.dispatch import choose, run
from decodestep.ops.tensor_scatter import cpu, reference

_OP = "tensor_scatter"


def tensor_scatter(
    past_cache: Any,
    update: Any,
    write_indices: Any = None,
    *,
    axis: int = -2,
    mode: str = "linear",
    out: Any = None,
    backend: str = "auto",
) -> Any:
    """Copies `past_cache` and writes `update` into it along the sequence axis, from `write_indices[b]` on for batch row b.

        present = copy(past_cache)
        for every prefix index p over past_cache.shape[:axis], batch first, and every t in [0, update.shape[axis]):
            slot = write_indices[p[0]] + t                 # modulo past_cache.shape[axis] where mode is "circular"
            present[p, slot] = update[p, t]

    past_cache: (batch, D1, ..., max_sequence_length, ..., Dn), rank >= 2, any strides. bool, string (object or <U), any
        integer, float16/32/64, complex64/128, or an ml_dtypes type: bfloat16, the 8-bit floats, float4_e2m1fn, int4, uint4.
    update: the shape and dtype of past_cache, but sequence_length <= max_sequence_length on the sequence axis.
    write_indices: (batch,) of an integer dtype, or None for zeros. Linear: 0 <= w <= max_sequence_length -
        sequence_length. Circular: any; the modulus is mathematical, so -1 is the last slot.
    axis: the sequence axis, in [-rank, rank), never the batch axis 0.
    mode: "linear" or "circular".
    out: a writeable array of past_cache's shape, dtype and kind. `out=past_cache` updates in place and moves only the
        updated bytes; any other array is filled from past_cache first. The result is as if past_cache and update had been
        copied before, however they overlap `out`.
    backend: "auto", "cpu" or "reference". "cpu" serves every type but strings, where the axes before the sequence axis
        fold into one and those behind it are contiguous; "auto" takes "reference" for the others.

    Returns out, or a new array of past_cache's shape that shares no memory with the arguments. With '<U' strings a wider
    update widens the result.
    Raises ValueError, before anything is written, for a shape, dtype, axis, mode or index outside the rules above.

    Notes: sequence_length 0, batch 0 and max_sequence_length 0 are legal and write nothing, but linear indices are checked
    all the same. With '<U' strings and `out`, an update wider than out is refused.
    Source: ONNX TensorScatter, default domain, since opset 24; index -1 in linear mode is refused, not wrapped.
    """
    cache = arrays.view(_OP, "past_cache", past_cache)
    new = arrays.view(_OP, "update", update)
    axis = _sequence_axis(cache, axis)
    require_choice(_OP, "mode", mode, ("linear", "circular"))
    _check_update(cache, new, axis)
    starts = _starts(cache, new, axis, mode, write_indices)
    if out is None:
        # A '<U' result takes the wider of the two; for every other type this is past_cache's dtype.
        dtype = np.promote_types(cache.dtype, new.dtype) if cache.dtype.kind == "U" else cache.dtype
        present = cache.astype(dtype, order="C", copy=True, subok=False)
    else:
        present = _filled(arrays.view(_OP, "out", out), cache, new)
        if new.size and arrays.share_memory(present, new):
            new = new.copy()
        if present is not cache and not _same_memory(present, cache):
            present[...] = cache
    backend = choose(_OP, backend, {"cpu": cpu.obstacle(present, new, axis), "reference": None})
    run(_OP, backend, (cpu if backend == "cpu" else reference).scatter, present, new, starts, axis)
    return arrays.like(past_cache, present) if out is None else out


def _sequence_axis(cache: np.ndarray, axis: int) -> int:
    require(cache.ndim >= 2, _OP, "past_cache", "of rank 2 or more", cache)
    require(is_int(axis) and -cache.ndim <= axis < cache.ndim, _OP, "axis", f"an integer in [{-cache.ndim}, {cache.ndim})",
            repr(axis))
    axis = int(axis) % cache.ndim
    require(axis != 0, _OP, "axis", "another than the batch axis", axis)
    return axis


def _check_update(cache: np.ndarray, new: np.ndarray, axis: int) -> None:
    same = new.dtype == cache.dtype or (new.dtype.kind == cache.dtype.kind == "U")
    require(same, _OP, "update", f"of past_cache's dtype {cache.dtype}", new)
    require(cache.dtype.kind not in "SMm" and cache.dtype.type is not np.void, _OP, "past_cache", "of an ONNX tensor type", cache)
    wanted = list(cache.shape)
    wanted[axis] = new.shape[axis] if new.ndim == cache.ndim else -1
    require(list(new.shape) == wanted, _OP, "update",
            f"of past_cache's shape {'x'.join(map(str, cache.shape))} but for axis {axis}", new)
    require(new.shape[axis] <= cache.shape[axis], _OP, "update", f"at most {cache.shape[axis]} long on axis {axis}", new)


def _starts(cache: np.ndarray, new: np.ndarray, axis: int, mode: str, write_indices: Any) -> np.ndarray:
    if write_indices is None:
        return np.zeros(cache.shape[0], np.int64)
    given = arrays.view(_OP, "write_indices", write_indices) if arrays.is_array(write_indices) else np.asarray(write_indices)
    require(given.dtype.kind in "iu" or given.size == 0, _OP, "write_indices", "integers", given)
    require(given.shape == (cache.shape[0],), _OP, "write_indices", f"of shape {cache.shape[0]}", given)
    room = cache.shape[axis] - new.shape[axis]
    if mode == "linear" and given.size and not (given.min() >= 0 and given.max() <= room):
        refuse(_OP, "write_indices", f"in [0, {room}] in linear mode", f"{given.min()} to {given.max()}")
    if given.dtype == np.uint64 and cache.shape[axis]:
        given = given % np.uint64(cache.shape[axis])  # beyond int64 only a modulus is left to apply
    return np.ascontiguousarray(given, np.int64)


def _filled(present: np.ndarray, cache: np.ndarray, new: np.ndarray) -> np.ndarray:
    require(present.flags.writeable, _OP, "out", "writeable", "a read-only array")
    require(present.shape == cache.shape and present.dtype == cache.dtype, _OP, "out", "of past_cache's shape and dtype",
            present)
    require(new.dtype == present.dtype or new.dtype.itemsize <= present.dtype.itemsize, _OP, "update",
            f"no wider than out's {present.dtype}", new)
    return present


def _same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    return a.strides == b.strides and a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
