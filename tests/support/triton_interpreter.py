"""Triton's kernels on a GPU or, where conftest has found none, under Triton's interpreter: the same tests run on both.

Interpreted, each access is checked against the launch's tensors. A test file that imports `guard_zones` has margins around
every tensor that it puts on the device or that a kernel's caller allocates; one that calls `serve` runs tests of the CPU's
kernel on the device.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

import decodestep as ds
from decodestep._base import arrays, devices

DEVICE = "cpu" if devices.interpreted() else "cuda"

# The interpreter's own functions, in place of which come those below.
_Builder = interpreter.InterpreterBuilder
_own_launch, _own_patch_language, _own_numpy_dtype = (
    interpreter.GridExecutor.__call__,
    interpreter._patch_lang,
    interpreter._get_np_dtype,
)
_own_load, _own_store, _own_dot = _Builder.create_masked_load, _Builder.create_masked_store, _Builder.create_dot

_patched: set[str] = set()  # the modules whose names for the language are the interpreter's, in the launch that runs
_dtypes: dict[str, np.dtype] = {}  # NumPy's, by the name of Triton's
# The memory that the launch which runs may touch, in ascending pieces: where its tensors' elements lie.
_begins = _ends = np.zeros(0, np.uint64)


def _launch_afresh(self, *args, **kwargs):
    global _begins, _ends
    _patched.clear()
    pieces: list[tuple[int, int]] = []
    for begin, end in sorted(_extent(a) for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor) and a.numel()):
        if pieces and begin <= pieces[-1][1]:
            begin, end = pieces[-1][0], max(end, pieces.pop()[1])
        pieces.append((begin, end))
    _begins, _ends = np.array(pieces, np.uint64).reshape(-1, 2).T
    return _own_launch(self, *args, **kwargs)


def _extent(tensor):
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.element_size()


def _within(ptrs, mask):
    """Fails for an access outside of the launch's tensors, whether it shows in a result or not."""
    at = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)].astype(np.uint64)
    piece = np.searchsorted(_begins, at, side="right") - 1
    size = np.uint64(max(ptrs.get_element_ty().primitive_bitwidth // 8, 1))
    assert (piece >= 0).all() and (at + size <= _ends[piece]).all(), "an access outside of the buffers"


def _load(self, ptrs, mask, *rest):
    _within(ptrs, mask)
    return _own_load(self, ptrs, mask, *rest)


def _store(self, ptrs, value, mask, *rest):
    _within(ptrs, mask)
    return _own_store(self, ptrs, value, mask, *rest)


def _call(self, *args, **kwargs):
    """As the interpreter calls a function from a kernel, but it prepares each module once a launch and not at every call:
    that takes longer than most functions do."""
    module = self.fn.__globals__["__name__"]
    if module not in _patched:
        _own_patch_language(self.fn)
        _patched.add(module)
    return self.rewrite()(*args, **kwargs)


def _numpy_dtype(dtype):
    """As the interpreter's own, without the table that it makes at each call: a tenth of the time."""
    scalar = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
    found = _dtypes.get(scalar.name)
    if found is None:
        found = _dtypes[scalar.name] = _own_numpy_dtype(scalar)
    return found


def _dot(self, a, b, d, *precision):
    """Row by row: NumPy's product of matrices rounds a row by its place among the others, a GPU's does not."""
    if d.data.dtype != np.float32:
        return _own_dot(self, a, b, d, *precision)
    product = np.stack([np.matmul(row, b.data, dtype=np.float32) for row in a.data])
    return interpreter.TensorHandle(product + d.data, d.dtype.scalar)


_Builder.create_masked_load, _Builder.create_masked_store, _Builder.create_dot = _load, _store, _dot
interpreter._get_np_dtype = _numpy_dtype
interpreter.GridExecutor.__call__ = _launch_afresh
interpreter.InterpretedFunction.__call__ = _call


MARGIN, POISON = 256, 0x7B  # bytes: in every type a number that wins a race, ruins a sum, and is an index far outside
_zones: list[torch.Tensor] | None = None  # of the test that runs


@pytest.fixture(autouse=True)
def guard_zones(monkeypatch):
    """Fails where a margin has been written to; what is read from one shows in the results."""
    global _zones
    _zones = []
    for name in ("empty", "zeros", "full", "from_numpy"):
        monkeypatch.setattr(torch, name, _guarding(getattr(torch, name)))
    yield
    zones, _zones = _zones, None
    for whole in zones:
        assert (whole[:MARGIN] == POISON).all(), "written before a buffer"
        assert (whole[-MARGIN:] == POISON).all(), "written past the end of a buffer"


def _guarding(make):
    return lambda *args, **kwargs: guarded(make(*args, **kwargs))


def guarded(tensor):
    """A copy between margins; the tensor itself where nobody looks at them."""
    if _zones is None or tensor.device.type != DEVICE or not tensor.numel():
        return tensor
    size = tensor.numel() * tensor.element_size()
    whole = torch.ones(size + 2 * MARGIN, dtype=torch.uint8, device=DEVICE) * POISON
    _zones.append(whole)
    body = whole[MARGIN:-MARGIN].view(tensor.dtype).view(tensor.shape)
    return body.copy_(tensor)


def on_device(array):
    """A tensor of its own with a NumPy array's values, for the kernels."""
    return None if array is None else guarded(arrays.like(torch.empty(0), np.array(array, order="C")).to(DEVICE))


def strided(tensor):
    """The same values every other element apart; those between would ruin a result."""
    between = torch.nan if tensor.is_floating_point() else 99
    wide = torch.full((*tensor.shape, 2), between, dtype=tensor.dtype, device=tensor.device)
    wide[..., 0] = tensor
    return wide[..., 0]


def on_host(tensor):
    return None if tensor is None else arrays.view("test", "tensor", tensor.cpu())


def forbid_copies_to_host(monkeypatch, most):
    """Fails from now on where anyone but Triton's interpreter, which stands for the device, brings `most` values or more of a
    tensor to the host."""

    def watched(name):
        own = getattr(torch.Tensor, name)

        def call(tensor, *args, **kwargs):
            caller = sys._getframe(1).f_globals["__name__"]
            assert caller.startswith(("triton.", "torch.")) or tensor.numel() < most, f"{caller} calls {name}"
            return own(tensor, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, call)

    for name in ("numpy", "cpu", "item", "tolist", "__array__", "__bool__", "__int__", "__float__"):
        watched(name)


def forbid_allocations(monkeypatch):
    """Fails from now on where a new tensor is requested of torch."""

    def refused(*args, **kwargs):
        raise AssertionError("memory was requested")

    for name in ("empty", "zeros", "full", "tensor", "from_numpy", "empty_like", "arange"):
        monkeypatch.setattr(torch, name, refused)


def last_programs_first(monkeypatch):
    """Interpreted, the programs of a launch run in the opposite of their order from now on: nothing may depend on it."""
    own = _Builder.set_grid_idx

    def turned(self, *place):
        own(self, *(size - 1 - at for size, at in zip(self.grid_dim, place, strict=True)))

    monkeypatch.setattr(_Builder, "set_grid_idx", turned)


def serve(monkeypatch, name, change=lambda value: value):
    """Lets `ds.<name>` run on the device wherever a test does not ask for the reference: NumPy arrays go there and come back.

    change: what becomes of each argument that is no array.
    """
    own = getattr(ds, name)

    def there(value):
        if not isinstance(value, np.ndarray):
            return change(value)
        try:
            return on_device(value)
        except (TypeError, ValueError, RuntimeError):  # of a dtype that torch lacks
            return value

    def back(value):
        if isinstance(value, tuple):
            return type(value)(*map(back, value)) if hasattr(value, "_fields") else tuple(map(back, value))
        return on_host(value) if isinstance(value, torch.Tensor) else value

    def served(*args, backend="auto", **kwargs):
        if backend in ("reference", "triton") or not any(isinstance(a, np.ndarray) for a in (*args, *kwargs.values())):
            return own(*args, backend=backend, **kwargs)
        kwargs = {key: there(value) for key, value in kwargs.items()}
        return back(own(*map(there, args), backend="triton" if backend in ("auto", "cpu") else backend, **kwargs))

    monkeypatch.setattr(ds, name, served)
