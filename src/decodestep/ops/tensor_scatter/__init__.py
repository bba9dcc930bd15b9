"""TensorScatter: write new keys or values into a cache along its sequence axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.aliasing import footprint, overlaps_itself, strided
from decodestep._base.arrays import Array, ArrayT, Integers
from decodestep._base.checks import Phrase, is_int, refuse, require_choice, shape_text
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run, timed
from decodestep.ops.tensor_scatter import cpu, reference

if TYPE_CHECKING:
    import torch

_OP = "tensor_scatter"
_MODES = ("linear", "circular")
_KINDS = "biuOU"  # legal by their NumPy kind: bool, integers, strings
_FLOATS = {  # legal by their type
    np.float16,
    np.float32,
    np.float64,
    np.complex64,
    np.complex128,
    ml_dtypes.bfloat16,
    ml_dtypes.float4_e2m1fn,
    ml_dtypes.int4,
    ml_dtypes.uint4,
}
_FLOATS |= {getattr(ml_dtypes, name) for name in dir(ml_dtypes) if name.startswith("float8_")}


def tensor_scatter(
    past_cache: ArrayT,
    update: ArrayT,
    write_indices: Array | Sequence[int] | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
    out: ArrayT | None = None,
    backend: str = "auto",
) -> ArrayT:
    """Copies `past_cache` and writes `update` into it along the sequence axis from `write_indices[b]` on.

        present = copy(past_cache)
        for every prefix index p over past_cache.shape[:axis], batch first, and every t in [0, update.shape[axis]):
            slot = write_indices[p[0]] + t                 # modulo past_cache.shape[axis] where mode is "circular"
            present[p, slot] = update[p, t]

    Args:
        past_cache: (batch, D1, ..., max_sequence_length, ..., Dn), rank >= 2, any strides. bool, string (object or <U), any
            integer, float16/32/64, complex64/128, or an ml_dtypes type: bfloat16, the 8-bit floats, float4_e2m1fn, int4, uint4.
        update: of past_cache's dtype and shape, except that its sequence axis is sequence_length <= max_sequence_length long.
        write_indices: (batch,) of an integer dtype, or None for zeros. Linear: 0 <= w <= max_sequence_length - sequence_length.
            Circular: any; the modulus is mathematical, so -1 is the last slot.
        axis: the sequence axis, in [-rank, rank), never the batch axis 0.
        mode: "linear" or "circular".
        out: a writeable array of past_cache's shape, dtype and kind whose elements do not overlap each other. `out=past_cache`
            updates in place and moves only the updated bytes; any other array is filled from past_cache first. The other
            arguments may overlap `out`: the result is as if they had been copied first.
        backend: "auto", "cpu", "triton" or "reference". "triton" takes tensors on a GPU, `out` among them. "cpu" takes every
            type but strings. Where `out` is given, its axes between batch and sequence must fold into one, and those after the
            sequence must be contiguous. "auto" takes "reference" for the rest.

    Returns:
        out, or a new array of past_cache's shape and kind that shares no memory with the arguments. With '<U'
        strings a wider update widens the result.

    Raises:
        ValueError: before anything is written, for a shape, dtype, axis, mode or index outside the rules above.

    Notes:
        sequence_length 0, batch 0 and max_sequence_length 0 are legal and write nothing, but linear indices are
        checked nevertheless. With '<U' strings and `out`, an update wider than out is refused.

    Source:
        ONNX TensorScatter, default domain, since opset 24; index -1 in linear mode is refused, not wrapped.
    """
    if out is past_cache and type(backend) is str and backend in ("auto", "cpu"):
        done = timed(_OP, "cpu", cpu.in_place)(past_cache, update, write_indices, axis, mode)
        if done is not NotImplemented:
            return past_cache
    if devices.goes_to_triton(backend, past_cache):
        return _on_device(past_cache, update, write_indices, axis, mode, out, backend)
    cache = arrays.view(_OP, "past_cache", past_cache)
    new = arrays.view(_OP, "update", update)
    axis = _sequence_axis(cache, axis)
    require_choice(_OP, "mode", mode, _MODES)
    _check_update(cache, new, axis)
    starts = _starts(cache, new, axis, mode, write_indices)
    present = None if out is None else _target(past_cache, cache, new, out)
    if present is not None:
        _check_memory(present)
    backend = choose(_OP, backend, {"cpu": cpu.obstacle(cache.dtype, present, axis), "reference": None})
    scatter = (cpu if backend == "cpu" else reference).scatter
    present = run(_OP, backend, _write, scatter, present, cache, new, starts, axis)
    result: ArrayT = arrays.like(past_cache, present) if out is None else out
    return result


def _on_device(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: Integers | None,
    axis: int,
    mode: str,
    out: torch.Tensor | None,
    backend: str,
) -> torch.Tensor:
    devices.choose_triton(_OP, backend, past_cache)
    from decodestep.ops.tensor_scatter import triton

    device = past_cache.device
    cache, new = devices.outline(_OP, "past_cache", past_cache, device), devices.outline(_OP, "update", update, device)
    axis = _sequence_axis(cache, axis)
    require_choice(_OP, "mode", mode, _MODES)
    _check_update(cache, new, axis)
    starts = _starts(cache, new, axis, mode, devices.to_host(write_indices))
    if out is not None:
        _target(cache, cache, new, devices.outline(_OP, "out", out, device))
        _check_memory(footprint(out))
    target = None if out is None else out.detach()
    present = devices.run_there(
        _OP, past_cache.device, triton.write, past_cache.detach(), update.detach(), starts, axis, target
    )
    return present if out is None else out


def _write(
    scatter: Callable[[np.ndarray, np.ndarray, np.ndarray, int], None],
    present: np.ndarray | None,
    cache: np.ndarray,
    new: np.ndarray,
    starts: np.ndarray,
    axis: int,
) -> np.ndarray:
    if present is None:
        # The dtypes differ only where both are '<U': then the result takes the wider one.
        dtype = new.dtype if new.dtype.itemsize > cache.dtype.itemsize else cache.dtype
        present = cache.astype(dtype, order="C", copy=True)
    else:
        if np.may_share_memory(present, new):
            new = new.copy()
        if not _same_memory(present, cache):
            present[...] = cache
    scatter(present, new, starts, axis)
    return present


# Below, `refuse` comes after an if instead of `require`: the message would be formatted on every call, which costs as much as
# a small copy, a few microseconds.


def _sequence_axis(cache: np.ndarray, axis: int) -> int:
    rank = cache.ndim
    if rank < 2:
        refuse(_OP, "past_cache", "of rank 2 or more", cache)
    if not (is_int(axis) and -rank <= axis < rank):
        refuse(_OP, "axis", f"an integer in [{-rank}, {rank})", axis)
    if axis % rank == 0:
        refuse(_OP, "axis", "another than the batch axis", axis)
    return int(axis) % rank


def _check_update(cache: np.ndarray, new: np.ndarray, axis: int) -> None:
    dtype = cache.dtype
    if dtype.kind not in _KINDS and dtype.type not in _FLOATS:
        refuse(_OP, "past_cache", "of an ONNX tensor type", cache)
    if new.dtype != dtype and not new.dtype.kind == dtype.kind == "U":
        refuse(_OP, "update", f"of past_cache's dtype {dtype}", new)
    old_shape, new_shape = cache.shape, new.shape
    if new_shape[:axis] != old_shape[:axis] or new_shape[axis + 1 :] != old_shape[axis + 1 :] or new.ndim != cache.ndim:
        refuse(_OP, "update", f"of past_cache's shape {shape_text(old_shape)} but for axis {axis}", new)
    if new_shape[axis] > old_shape[axis]:
        refuse(_OP, "update", f"at most {old_shape[axis]} long on axis {axis}", new)


def _starts(cache: np.ndarray, new: np.ndarray, axis: int, mode: str, write_indices: Integers | None) -> np.ndarray:
    """The indices as int64, checked, and copied because `out` may overlap the caller's array."""
    batch, rows = cache.shape[0], cache.shape[axis]
    if write_indices is None:
        return np.zeros(batch, np.int64)
    given = arrays.as_array(_OP, "write_indices", write_indices)
    if given.dtype.kind not in "iu" and given.size:
        refuse(_OP, "write_indices", "integers", given)
    if given.shape != (batch,):
        refuse(_OP, "write_indices", f"of shape {batch}", given)
    if mode == "linear" and batch:
        room = rows - new.shape[axis]
        values = given.tolist() if batch <= 64 else (given.min(), given.max())  # for few values a list is ten times as fast
        low, high = min(values), max(values)
        if low < 0 or high > room:
            refuse(_OP, "write_indices", f"in [0, {room}] in linear mode", Phrase(f"{low} to {high}"))
    if given.dtype.kind == "u" and rows:
        given = given % np.uint64(rows)  # linear indices do not change, circular ones now fit int64
    return np.array(given, np.int64)


def _target(past_cache: Array, cache: np.ndarray, new: np.ndarray, out: Array | None) -> np.ndarray:
    """The view of `out`, checked."""
    present = cache if out is past_cache else arrays.view(_OP, "out", out)
    if present is not cache:
        if arrays.is_torch(out) != arrays.is_torch(past_cache):
            refuse(_OP, "out", f"of past_cache's kind, {type(past_cache).__name__}", Phrase(type(out).__name__))
        if present.shape != cache.shape or present.dtype != cache.dtype:
            refuse(_OP, "out", "of past_cache's shape and dtype", present)
    if not present.flags.writeable:
        refuse(_OP, "out", "writeable", Phrase("a read-only array"))
    if new.dtype.itemsize > present.dtype.itemsize:
        refuse(_OP, "update", f"no wider than out's {present.dtype}", new)
    return present


def _check_memory(out: np.ndarray) -> None:
    if overlaps_itself(out):
        refuse(_OP, "out", "of elements that do not overlap in memory", strided(out))


def _same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    return a is b or (a.strides == b.strides and a.ctypes.data == b.ctypes.data)
