"""BlockWeight: what torch does with a weight in blocks, against the same with its values."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import embedding, linear

from decodestep.integrations.transformers import block_weight
from decodestep.integrations.transformers.block_weight import Blocks, BlockWeight
from decodestep.weights import Format, LinearPanels, PackedWeight
from decodestep.weights.native import quantise_blocks

OUTPUTS, INPUTS, EXPERTS = 40, 64, 3


@pytest.fixture
def decoded(monkeypatch):
    """The weights whose blocks were decoded for an operation."""
    weights = []
    stock = block_weight._decoded

    def spy(value):
        if isinstance(value, BlockWeight):
            weights.append(value)
        return stock(value)

    monkeypatch.setattr(block_weight, "_decoded", spy)
    return weights


def matrix(seed, outputs=OUTPUTS):
    values = np.random.default_rng(seed).standard_normal((outputs, INPUTS)).astype(np.float32)
    return PackedWeight(quantise_blocks(values, Format.Q4_0), Format.Q4_0, INPUTS)


@pytest.fixture
def weight():
    return BlockWeight(Blocks((matrix(1),)), torch.float32)


@pytest.fixture
def experts():
    return BlockWeight(Blocks(tuple(matrix(seed) for seed in range(EXPERTS)), stacked=True), torch.float32)


def x(*shape):
    return torch.randn(*shape, INPUTS, generator=torch.Generator().manual_seed(2))


def assert_near(actual, expected):
    assert type(actual) is torch.Tensor and actual.dtype == expected.dtype and actual.shape == expected.shape
    assert (actual - expected).abs().max() <= 4e-6 * expected.abs().max()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,), (2, 0)])
def test_products(weight, decoded, context, shape):
    values, bias, row = weight.blocks.values(), torch.arange(OUTPUTS) * 0.1, x(*shape)
    with context():
        for b in (None, bias):
            found = linear(row, weight, b)
            assert found.shape == (*shape, OUTPUTS)
            if found.numel():
                assert_near(found, linear(row, values, b))
        if shape and row.numel():
            flat = row.reshape(-1, INPUTS)
            assert_near(flat @ weight.t(), flat @ values.t())
            assert_near(torch.addmm(bias, flat, weight.t()), torch.addmm(bias, flat, values.t()))
            assert_near(row @ weight.transpose(0, 1), row @ values.t())
    assert not decoded or not row.numel()


def test_products_of_transposed_weights(decoded):
    """As of transformers' Conv1D."""
    weight = BlockWeight(Blocks((matrix(1),), transposed=True), torch.float32)
    assert weight.shape == (INPUTS, OUTPUTS)
    expected = x(4) @ weight.blocks.values()
    assert_near(torch.addmm(torch.ones(OUTPUTS), x(4), weight), expected + 1)
    assert not decoded
    assert_near(linear(expected, weight), expected @ weight.blocks.values().t())  # multiplied by columns: decoded
    assert decoded


def test_panels_give_the_products_of_linear(weight):
    packed = BlockWeight(weight.blocks.packed(), torch.float32)
    assert isinstance(packed.blocks.matrices[0], LinearPanels) and torch.equal(packed.blocks.values(), weight.blocks.values())
    expected = block_weight.linear(x(3).numpy(), LinearPanels.pack(matrix(1)))
    assert np.array_equal(linear(x(3), packed).numpy(), expected)
    assert packed.nbytes == packed.blocks.matrices[0].nbytes > weight.nbytes == matrix(1).rows.nbytes


def test_rows_of_an_embedding(weight, decoded):
    ids = torch.tensor([[0, 39], [7, 7]])
    for each in (weight, BlockWeight(weight.blocks.packed(), torch.float32)):
        assert torch.equal(embedding(ids, each, 3), weight.blocks.values()[ids])
        assert embedding(torch.empty(2, 0, dtype=torch.int64), each).shape == (2, 0, INPUTS)
        for wrong in (-1, OUTPUTS):
            with pytest.raises(IndexError, match=rf"ids must be in \[0, {OUTPUTS}\)"):
                embedding(torch.tensor([wrong]), each)
    assert not decoded


def test_selections_stay_in_blocks(weight, experts, decoded):
    values, all_values = weight.blocks.values(), experts.blocks.values()
    rows, columns = torch.randperm(OUTPUTS), torch.randperm(INPUTS)
    pairs = [
        (weight[rows], values[rows]),
        (weight[5:9], values[5:9]),
        (torch.cat([weight[:5], weight[5:][rows[rows < 35]]]), torch.cat([values[:5], values[5:][rows[rows < 35]]])),
        (weight[:, columns], values[:, columns]),
        (weight[:, columns][:, columns], values[:, columns][:, columns]),
        (experts[1], all_values[1]),
        (experts[torch.tensor(2)], all_values[2]),
        (experts[torch.tensor([2, 0])], all_values[[2, 0]]),
        (torch.cat([experts, experts], 1), torch.cat([all_values, all_values], 1)),
    ]
    for found, expected in pairs:
        assert isinstance(found, BlockWeight) and found.shape == expected.shape
        assert torch.equal(found.blocks.values(), expected)
    reordered = weight[:, columns]
    assert_near(linear(x(2), reordered), linear(x(2), values[:, columns]))
    assert torch.equal(embedding(rows, reordered), values[:, columns][rows])
    assert not decoded


def test_other_operations_decode(weight, experts, decoded):
    values = weight.blocks.values()
    assert torch.equal(weight + 1, values + 1)
    assert torch.equal(weight[3], values[3])
    assert torch.equal(weight.reshape(-1), values.reshape(-1))
    assert torch.equal(
        torch.bmm(experts, torch.ones(EXPERTS, INPUTS, 1)), torch.bmm(experts.blocks.values(), torch.ones(3, INPUTS, 1))
    )
    assert len(decoded) == 4
    assert torch.equal(weight.double(), values.double())


def test_gradients_of_activations(weight):
    row = x(2).requires_grad_()
    linear(row, weight).square().sum().backward()
    found, row.grad = row.grad, None
    linear(row, weight.blocks.values()).square().sum().backward()
    assert_near(found, row.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(weight, decoded, dtype):
    """Sums are float32, and rounded once."""
    half = weight.to(dtype)
    assert torch.equal(linear(x(3).to(dtype), half), linear(x(3).to(dtype).float(), weight).to(dtype))
    assert not decoded
    with pytest.raises(RuntimeError, match="dtype"):
        linear(x(3), half)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x(3), weight).dtype == torch.bfloat16


def test_nothing_writes(weight):
    for write in (weight.zero_, lambda: weight.copy_(torch.zeros(OUTPUTS, INPUTS)), lambda: torch.add(weight, 1, out=weight)):
        with pytest.raises(ValueError, match="operation must be one that does not write"):
            write()
    assert torch.equal(torch.zeros(OUTPUTS, INPUTS).copy_(weight), weight.blocks.values())
    with pytest.raises(ValueError, match="device must be the CPU"):
        weight.to("meta")
    module = nn.Linear(INPUTS, OUTPUTS, bias=False)
    module.weight = nn.Parameter(weight, requires_grad=False)
    with pytest.raises(RuntimeError, match="does not write"):
        module.load_state_dict({"weight": torch.zeros(OUTPUTS, INPUTS)})


def test_a_parameter_of_a_module(weight):
    module = nn.Linear(INPUTS, OUTPUTS)
    module.weight = nn.Parameter(weight, requires_grad=False)
    expected = module(x(2))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert isinstance(other.weight, BlockWeight) and isinstance(other.weight, nn.Parameter)
        assert not other.weight.requires_grad and torch.equal(other(x(2)), expected)
    assert torch.equal(module.to(torch.bfloat16)(x(2).bfloat16()), linear(x(2).bfloat16(), weight.bfloat16(), module.bias))
    assert repr(weight) == "BlockWeight((40, 64), Q4_0, dtype=torch.float32)"


def test_tracing_and_modes_see_torchs_operations(weight):
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        linear(x(3), weight)
    assert counter.get_total_flops() == 2 * 3 * INPUTS * OUTPUTS
    module = nn.Linear(INPUTS, OUTPUTS, bias=False)
    module.weight = nn.Parameter(weight, requires_grad=False)
    assert_near(torch.func.vmap(module)(x(3)), module(x(3)))
