"""The Triton kernels of operators with states, interpreted where there is no GPU: against the references, and to the bit
against themselves."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch

import decodestep as ds
from support import triton_interpreter as gpu
from support.recurrent_calls import OPERATORS, POISON
from support.tolerances import assert_close
from support.triton_interpreter import guard_zones  # noqa: F401

each_operator = pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch):
    for name in OPERATORS:
        monkeypatch.setattr(import_module(f"decodestep.ops.{name}.triton"), "_BLOCK", 16)


def served(op, arguments, change=lambda tensor: tensor, **changed):
    """The results and the state after a call on the device."""
    call = {**arguments, **changed}
    call = {name: change(gpu.on_device(a)) if isinstance(a, np.ndarray) else a for name, a in call.items()}
    y = getattr(ds, op.name)(**call, backend="triton")
    return gpu.on_host(y), gpu.on_host(call["state"])


def assert_same(a, b):
    np.testing.assert_array_equal(np.array(a).view(np.uint32), np.array(b).view(np.uint32))


@each_operator
def test_equals_the_reference_in_float64(op, rng):
    call = op.make(rng, 15, 6)
    how = {"lengths": [4, 0, 1, 10], "slots": [3, 0, 1, 1], "into": [3, 2, 4, 5]}
    y, state = served(op, call, **how)
    wide = {name: a.astype(np.float64) if isinstance(a, np.ndarray) else a for name, a in call.items()}
    expected, held = op(wide, **how)
    assert_close(y, expected)
    assert_close(state, held)
    assert_same(state[1], call["state"][1])  # which rows read, and none writes
    again, strided = served(op, call, gpu.strided, **how)
    assert_same(again, y)
    assert_same(strided, state)


@each_operator
def test_a_cut_changes_no_bit(op, rng):
    call = op.make(rng, 8, 1)
    y, state = served(op, call)
    parts, held = [], call["state"]
    for first, end in ((0, 1), (1, 1), (1, 6), (6, 8)):
        part, held = served(op, op.cut(call, slice(first, end)), state=held)
        parts.append(part)
    assert_same(np.concatenate(parts), y)
    assert_same(held, state)


@each_operator
def test_the_order_of_programs_does_not_matter(op, rng, monkeypatch):
    call = op.make(rng, 9, 3)
    y, state = served(op, call)
    gpu.last_programs_first(monkeypatch)
    again, held = served(op, call)
    assert_same(again, y)
    assert_same(held, state)


@each_operator
def test_what_lies_between_the_elements_of_a_state_stays(op, rng):
    call = op.make(rng, 4, 2)
    whole = torch.full((*call["state"].shape, 2), float(POISON), device=gpu.DEVICE)
    whole[..., 0] = gpu.on_device(call["state"])
    tensors = {name: gpu.on_device(a) if isinstance(a, np.ndarray) else a for name, a in call.items()}
    getattr(ds, op.name)(**{**tensors, "state": whole[..., 0]}, backend="triton")
    assert (whole[..., 1] == float(POISON)).all()


@each_operator
def test_what_a_device_refuses(op, rng):
    call = op.make(rng, 6, 3)
    first = op.by_token[0]
    tensors = {name: gpu.on_device(a) if isinstance(a, np.ndarray) else a for name, a in call.items()}
    before = tensors["state"].clone()
    for message, changed in (
        ("has no float64", {first: tensors[first].double()}),
        ("state must be a tensor on", {"state": call["state"]}),
        ("state must be on", {"state": tensors["state"].to("meta")}),
        ("state must be of elements that do not overlap", {"state": tensors["state"][:1].expand(tensors["state"].shape)}),
        (r"slots must be in \[0, 3\)", {"slots": torch.tensor([3], device=gpu.DEVICE)}),
        ("lengths must be numbers whose sum is 6", {"lengths": [1, 2, 4]}),
    ):
        with pytest.raises(ValueError, match=f"^{op.name}: .*{message}"):
            getattr(ds, op.name)(**{**tensors, **changed}, backend="triton")
    assert torch.equal(tensors["state"], before)
