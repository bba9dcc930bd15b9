"""The custom ops: torch's own checks of schema and fake kernels, and compiled graphs against the plain functions."""

from __future__ import annotations

import pytest
import torch

import decodestep as ds
from decodestep.integrations.torch import OPERATORS, ops


def scatter_cases():
    cache, update = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 2, 4)
    yield (cache, update), {}
    yield (cache, update, torch.tensor([3, 0])), {}
    yield (cache.transpose(1, 3), update.transpose(1, 3), torch.tensor([4, -1])), {"write_mode": "circular"}
    yield (cache.bfloat16(), update.bfloat16(), torch.tensor([1, 2], dtype=torch.int32)), {"axis": 2}
    yield (cache[:0], update[:0]), {}


def rows_cases():
    x = torch.randn(6, 40)
    yield x, torch.randn(40)
    yield x.t(), torch.randn(6)
    yield x.double()[::2, 3:20], torch.randn(17, dtype=torch.float64)
    yield x[:0], torch.randn(40)


CASES = {
    "tensor_scatter": list(scatter_cases()),
    "tensor_scatter_": list(scatter_cases()),
    "rms_norm": [((x, gamma), {"eps": 1e-6}) for x, gamma in rows_cases()],
    "swiglu": [((x, x + 1), {}) for x, _ in rows_cases()],
}
EACH = [(name, *case) for name, cases in CASES.items() for case in cases]


def test_every_operator_has_cases():
    assert set(CASES) == set(OPERATORS)


@pytest.mark.parametrize(("name", "args", "kwargs"), EACH)
def test_opcheck(name, args, kwargs):
    torch.library.opcheck(getattr(ops, name), args, kwargs)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_plain(name, backend):
    """In one graph without a break, between operators of torch's own."""
    torch.compiler.reset()
    custom, args, kwargs = getattr(ops, name), *CASES[name][0]

    def chain(*tensors):
        first = tensors[0] * 1  # a tensor of the graph's own, which the in-place form may write to
        result = custom(first, *tensors[1:], **kwargs)
        return torch.neg(first if result is None else result)

    plain = getattr(ds, name.rstrip("_"))(*args, **kwargs)
    compiled = torch.compile(chain, backend=backend, fullgraph=True)
    assert torch.equal(compiled(*args), -plain)


def test_the_default_compiler():
    """Inductor, on nothing but our operators: pointwise work of torch's own would cost half a minute of C++ compiling."""
    torch.compiler.reset()
    x, gamma = torch.randn(4, 32), torch.randn(32)

    def chain(x, gamma):
        normed = ops.rms_norm(x, gamma)
        ops.tensor_scatter_(normed, gamma[:4, None], axis=1)
        return ops.swiglu(ops.tensor_scatter(x, gamma[4:8, None], torch.arange(4), axis=1), normed)

    assert torch.equal(torch.compile(chain, fullgraph=True)(x, gamma), chain(x, gamma))


def test_in_place_writes_to_the_argument():
    (cache, update, starts), _ = CASES["tensor_scatter_"][1]
    mine, expected = cache.clone(), ds.tensor_scatter(cache, update, starts)
    version = mine._version
    torch.compile(lambda *t: ops.tensor_scatter_(*t), backend="aot_eager", fullgraph=True)(mine, update, starts)
    assert torch.equal(mine, expected)
    assert mine._version > version
    assert ops.tensor_scatter_(mine, update) is None


def test_lengths_may_vary_in_one_graph():
    torch.compiler.reset()
    compiled = torch.compile(lambda x, g: ops.rms_norm(x, g) + 1, backend="aot_eager", fullgraph=True, dynamic=True)
    gamma = torch.randn(16)
    for tokens in (1, 2, 7):
        x = torch.randn(tokens, 16)
        assert torch.equal(compiled(x, gamma), ds.rms_norm(x, gamma) + 1)


def test_refusals_and_gradients():
    with pytest.raises(ValueError, match="rms_norm: gamma must be"):
        ops.rms_norm(torch.zeros(2, 3), torch.zeros(2))
    x = torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError):
        ops.swiglu(x, x).sum().backward()


def test_registered_under_the_name_of_the_package():
    x = torch.randn(2, 3)
    assert torch.equal(torch.ops.decodestep.swiglu(x, x), ds.swiglu(x, x))
