"""tensor_scatter's Triton kernel, interpreted where there is no GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep.ops.tensor_scatter import triton
from support import triton_interpreter as gpu
from support.triton_interpreter import guard_zones  # noqa: F401
from test_tensor_scatter import (  # noqa: F401
    test_circular_by_hand,
    test_empty_caches_and_updates_change_nothing,
    test_integer_types_of_the_indices,
    test_linear_by_hand,
    test_the_starts_of_many_rows_are_checked_and_kept,
)


@pytest.fixture(autouse=True)
def _on_the_device(monkeypatch):
    gpu.serve(monkeypatch, "tensor_scatter")
    monkeypatch.setattr(triton, "_BLOCK", 4)  # several programs for a row


TYPES = [torch.uint8, torch.bfloat16, torch.float32, torch.int64, torch.complex128, torch.float8_e4m3fn, torch.bool]


def random(rng, shape, dtype):
    return torch.from_numpy(rng.integers(0, 100, (*shape,))).to(torch.float32).to(dtype).to(gpu.DEVICE)


def same(a, b):
    """Bytes are compared: torch cannot compare float8."""
    a_bytes, b_bytes = (x.contiguous().view(torch.uint8) for x in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a_bytes, b_bytes)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 7, 5), -2), ((3, 6), 1), ((2, 4, 3, 8), 1)])
def test_writes_what_the_reference_writes(dtype, shape, axis):
    rng = np.random.default_rng(1)
    cache = random(rng, shape, dtype)
    new_shape = list(shape)
    new_shape[axis] = 3
    update = random(rng, new_shape, dtype)
    starts = rng.integers(-9, 9, shape[0])
    want = ds.tensor_scatter(cache.cpu(), update.cpu(), starts, axis=axis, mode="circular", backend="reference")
    before = cache.clone()
    assert same(ds.tensor_scatter(cache, update, starts, axis=axis, mode="circular", backend="triton").cpu(), want)
    assert same(cache, before)
    assert ds.tensor_scatter(cache, update, starts, axis=axis, mode="circular", out=cache, backend="triton") is cache
    assert same(cache.cpu(), want)


def test_outputs_that_overlap_themselves_are_refused():
    row, update = torch.zeros(1, 4, 1, device=gpu.DEVICE), torch.ones(2, 1, 1, device=gpu.DEVICE)
    for out in (row.expand(2, 4, 1), row.as_strided((2, 4, 1), (2, 0, 1))):
        for cache in (out, torch.ones(2, 4, 1, device=gpu.DEVICE)):
            with pytest.raises(ValueError, match="out must be of elements that do not overlap in memory"):
                ds.tensor_scatter(cache, update, out=out, backend="triton")
    assert not row.any()


def test_strided_caches_overlapping_updates_and_what_lies_between():
    rng = np.random.default_rng(2)
    whole = random(rng, (2, 3, 8, 6, 2), torch.float32)
    odd = whole.flatten(3)[..., 1:9]  # rows of wide words, of which none begins where one may
    for cache in (whole[..., 0], whole[:, ::2, :, 1:4, 0], whole.permute(0, 3, 2, 1, 4)[..., 1], odd):
        copy, steps = whole.clone(), cache[:, :, 2:5]  # the update lies in the cache itself
        want = ds.tensor_scatter(cache.cpu(), steps.cpu(), [1, 4], backend="reference")
        assert ds.tensor_scatter(cache, steps, torch.tensor([1, 4], device=gpu.DEVICE), out=cache, backend="triton") is cache
        assert torch.equal(cache.cpu(), want)
        cache.copy_(torch.zeros_like(cache))
        left = whole.clone()
        whole.copy_(copy)
        cache.copy_(torch.zeros_like(cache))
        assert torch.equal(whole, left)  # nothing but the cache has changed
        whole.copy_(copy)


@pytest.mark.parametrize("view", [lambda m: m[:, 1:].transpose(1, 2), lambda m: m[:, :4]], ids=["turned", "moved"])
def test_an_output_in_the_memory_of_the_cache_is_as_if_that_had_been_copied(view):
    rng = np.random.default_rng(3)
    memory, update = random(rng, (2, 5, 4), torch.float32), random(rng, (2, 1, 4), torch.float32)
    cache, out = memory[:, 1:], view(memory)
    want = ds.tensor_scatter(cache.cpu().clone(), update.cpu(), [3, 0], axis=1, backend="reference")
    ds.tensor_scatter(cache, update, [3, 0], axis=1, out=out, backend="triton")
    assert torch.equal(out.cpu(), want)


def test_a_default_device_of_the_callers_does_not_matter():
    cache, update = torch.zeros(1, 4, 3, device=gpu.DEVICE), torch.ones(1, 1, 3, device=gpu.DEVICE)
    with torch.device("meta"):
        present = ds.tensor_scatter(cache, update, [2], axis=1, backend="triton")
    assert present[0, :, 0].tolist() == [0, 0, 1, 0]


def test_another_target_is_filled_first():
    cache, update = torch.ones(2, 4, 3, device=gpu.DEVICE), torch.full((2, 1, 3), 5.0, device=gpu.DEVICE)
    out = torch.zeros_like(cache)
    ds.tensor_scatter(cache, update, [3, 0], axis=1, out=out, backend="triton")
    assert out[0, :, 0].tolist() == [1, 1, 1, 5] and out[1, :, 0].tolist() == [5, 1, 1, 1]
    assert cache.max() == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"write_indices": [0, 4]}, r"write_indices must be in \[0, 3\]"),
        ({"write_indices": [0]}, "write_indices must be of shape 2"),
        ({"update": torch.zeros(2, 1, 3)}, "update must be of past_cache's dtype"),
        ({"update": np.zeros((2, 1, 3), np.float16)}, "update must be a tensor on"),
        ({"out": torch.zeros(2, 4, 3)}, "out must be of past_cache's shape and dtype"),
        ({"axis": 0}, "axis must be another than the batch axis"),
    ],
)
def test_bad_arguments_are_refused_as_on_the_cpu(change, message):
    half = torch.zeros(2, 4, 3, dtype=torch.float16)
    arguments = {"past_cache": half, "update": half[:, :1], "write_indices": [0, 0], "axis": 1, **change}
    arguments = {name: v.to(gpu.DEVICE) if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
    with pytest.raises(ValueError, match=message):
        ds.tensor_scatter(**arguments, backend="triton")
