"""accelerate: Linears and experts of few rows, multiplied in one pass over their weights."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch.nn.utils import parametrize
from transformers import DynamicCache

from decodestep.integrations.transformers import accelerate, few_experts, few_rows, huge_pages
from decodestep.integrations.transformers.switch import Switch
from support.latent_models import assert_close, decode, holes, model_of, prompt

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture
def few_rows_calls(monkeypatch):
    """The shapes of what `FewRows` served, with weights of any size."""
    return record_calls(monkeypatch, few_rows, "linear_rows")


@pytest.fixture
def few_experts_calls(monkeypatch):
    """As `few_rows_calls`, of `FewExperts`."""
    return record_calls(monkeypatch, few_experts, "grouped_products")


def record_calls(monkeypatch, module, product):
    calls, multiply = [], getattr(module, product)
    monkeypatch.setattr(module, "LEAST_BYTES", 0)
    monkeypatch.setattr(module, product, lambda x, *weights: calls.append(tuple(x.shape)) or multiply(x, *weights))
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_rows_of_plain_linears(few_rows_calls, dtype):
    model, ids = model_of("deepseek_v3").to(dtype), prompt()
    expected = decode(model, ids, holes(ids), 3)
    with accelerate(model, attention=False, cache=False) as handle:
        assert_close(decode(model, ids, holes(ids), 3), expected)
        assert few_rows_calls and max(rows for rows, _ in few_rows_calls) <= few_rows.MOST_ROWS
        assert "Linear layers: up to 8 rows" in handle.report()
    few_rows_calls.clear()
    assert torch.equal(decode(model, ids, holes(ids), 3), expected)
    with accelerate(model, linears=False) as handle:
        decode(model, ids, holes(ids), 3)
        assert "Linear layers: kept" in handle.report()
    assert not few_rows_calls and not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_linear_of_few_rows(few_rows_calls, dtype, bias):
    """Any shape of rows, strides of input and weight; what it does not serve goes to torch."""
    module = torch.nn.Linear(40, 24, bias=bias, dtype=dtype)
    module.weight.data = torch.randn(24, 64).to(dtype)[:, 8:48]
    served = few_rows.FewRows(module, Switch(on=True))
    with torch.no_grad():
        for x in (torch.randn(40), torch.randn(1, 1, 40), torch.randn(2, 4, 80)[..., ::2], torch.randn(40, 5).T):
            x = x.to(dtype)
            exact = torch.nn.functional.linear(x.double(), module.weight.double(), module.bias.double() if bias else None)
            y = served(x)
            assert y.dtype == dtype and y.shape == exact.shape
            assert_close(y, exact.to(dtype))
    assert len(few_rows_calls) == 4
    few_rows_calls.clear()
    row = torch.randn(1, 40, dtype=dtype)
    assert served(row).requires_grad
    with torch.no_grad():
        assert served(torch.randn(3, 3, 40, dtype=dtype)).shape == (3, 3, 24)
        assert served(torch.randn(0, 40, dtype=dtype)).shape == (0, 24)
        with torch.autocast("cpu", torch.bfloat16):
            assert served(row).dtype == torch.bfloat16
        module.requires_grad_(False)
        traced = torch.jit.trace(lambda x: served(x), row, check_trace=False)
        assert torch.equal(traced(2 * row), module(2 * row))
        for wrong in (torch.randn(1, 39, dtype=dtype), row.double()):
            with pytest.raises(RuntimeError):
                served(wrong)
        module.weight.data = torch.randn(40, 24, dtype=dtype).T
        assert_close(served(row), torch.nn.functional.linear(row, module.weight, module.bias))
    assert not few_rows_calls


def test_a_linear_of_few_rows_follows_its_weight(few_rows_calls):
    """Nothing is remembered of a weight: it may get other memory and another shape, and a copy has its own."""
    module, row = torch.nn.Linear(40, 24), torch.randn(1, 40)
    served = few_rows.FewRows(module, Switch(on=True))
    memory = torch.randn(24, 40)
    for weight in (memory, memory.clone(), memory[::2], memory[:20], memory):
        module.weight.data, module.bias.data = weight, torch.randn(len(weight))
        with torch.no_grad():
            for _ in range(2):
                assert_close(served(row), torch.nn.functional.linear(row, module.weight, module.bias))
            module.weight.mul_(2)
            assert_close(served(row), torch.nn.functional.linear(row, module.weight, module.bias))
    assert len(few_rows_calls) == 15
    assert len(pickle.dumps(served)) < len(pickle.dumps(module)) + 200
    twin = copy.deepcopy(served)
    twin.module.weight.data.zero_()
    with torch.no_grad():
        assert torch.equal(twin(row)[0], twin.module.bias) and not torch.equal(served(row)[0], module.bias)
    parametrize.register_parametrization(module, "bias", torch.nn.Tanh())
    few_rows_calls.clear()
    with torch.no_grad():
        assert_close(served(row), torch.nn.functional.linear(row, module.weight, module.bias))
    assert not few_rows_calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 9])
def test_every_storage_can_still_be_resized(few_rows_calls, few_experts_calls, dtype, size):
    """As by FSDP, which frees a weight between two calls: nothing that a call reads is shared with NumPy for good."""
    model, ids = model_of("deepseek_v3").to(dtype), prompt(1)
    mask, cache = torch.ones(1, 1, size, 40 + size).tril(40).bool(), DynamicCache(config=model.config)
    with torch.no_grad(), accelerate(model):
        model(ids, past_key_values=cache)
        expected = model(ids[:, :size], attention_mask=mask, past_key_values=cache).logits
        cache.crop(-size)
        assert few_rows_calls or size > few_rows.MOST_ROWS
        tensors = [*model.state_dict().values(), *(t for layer in cache.layers for t in (layer.keys, layer.values)), mask]
        assert all(tensor.untyped_storage().resizable() for tensor in tensors)
        for weight in model.parameters():
            kept, storage = weight.clone(), weight.untyped_storage()
            length = storage.nbytes()
            storage.resize_(0)
            storage.resize_(length)
            weight.copy_(kept)
        actual = model(ids[:, :size], attention_mask=mask, past_key_values=cache).logits
    assert torch.equal(actual, expected)


def test_a_weight_outside_its_storage_is_refused(few_rows_calls):
    """torch refuses such a tensor too; a kernel would read memory that is not the weight's."""
    flat = torch.randn(64 * 40)
    for weight in (flat.view(64, 40)[32:], flat.view(32, 80)[:, 40:]):
        module = torch.nn.Linear(40, 32, bias=False)
        module.weight.data = weight
        flat.untyped_storage().resize_(0)
        with torch.no_grad(), pytest.raises(ValueError, match="within their storage"):
            few_rows.FewRows(module, Switch(on=True))(torch.randn(1, 40))
        flat.untyped_storage().resize_(4 * 64 * 40)


def test_weights_move_into_huge_pages(monkeypatch):
    """Adjacent weights as one, whole pages of them alone, and what is in them stays; nothing on systems without such pages."""
    memory = torch.arange(3 << 20)
    parts = memory[:100], memory[200 : 2 << 20], memory[2 << 20 :], torch.empty(0), memory[::2]
    one, two = huge_pages._ranges(parts), huge_pages._ranges([memory[:100], memory[2000:]])
    assert one == [(memory.data_ptr(), memory.data_ptr() + memory.nbytes)] and len(two) == 2
    assert 0 <= huge_pages.collapse(parts) <= memory.nbytes
    huge_pages.ask(memory)
    assert torch.equal(memory, torch.arange(3 << 20))
    monkeypatch.setattr(huge_pages, "_SIZE", Path("/nowhere"))
    assert huge_pages.collapse(parts) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "glm4_moe_lite"])
def test_experts_of_few_rows(few_experts_calls, family, dtype):
    """Logits beside stock with the same attention; then what goes the stock way."""
    model, ids = model_of(family).to(dtype), prompt()
    expected = decode(model, ids, holes(ids), 3)
    with accelerate(model, attention=False, cache=False) as handle:
        assert_close(decode(model, ids, holes(ids), 3), expected)
        assert few_experts_calls and "Experts): up to 8 rows in one pass over the weights, else" in handle.report()
        before = model.get_experts_implementation()
        model.set_experts_implementation("eager")
        few_experts_calls.clear()
        decode(model, ids, holes(ids), 3)
        assert not few_experts_calls and "Experts): kept, eager" in handle.report()
        model.set_experts_implementation(before)
    assert torch.equal(decode(model, ids, holes(ids), 3), expected)
    assert not few_experts_calls and not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_against_float64(few_experts_calls, dtype):
    """Rows that share experts, an expert twice in a row, more rows than are served, gradients."""
    model = model_of("deepseek_v2").to(dtype)
    module = next(m for m in model.modules() if type(m).__name__.endswith("Experts"))
    up, down = module.gate_up_proj.double(), module.down_proj.double()
    with accelerate(model):
        for rows in (1, 3, 8, 9):
            x = torch.randn(rows, up.shape[2]).to(dtype)
            index, weights = torch.randint(0, len(up), (rows, 2)), torch.rand(rows, 2)
            exact = torch.zeros(rows, down.shape[1], dtype=torch.float64)
            for t in range(rows):
                for e, weight in zip(index[t], weights[t].to(dtype), strict=True):
                    gate, value = (up[e] @ x[t].double()).chunk(2)
                    exact[t] += weight.double() * (down[e] @ (module.act_fn(gate) * value))
            with torch.no_grad():
                y = module(x, index, weights.to(dtype))
            assert y.dtype == dtype
            assert_close(y, exact.detach().to(dtype))
        row = torch.randn(1, up.shape[2], dtype=dtype)
        assert module(row, index[:1], weights[:1].to(dtype)).requires_grad


def test_experts_of_another_dtype_later_go_the_stock_way(few_experts_calls):
    model, ids = model_of("deepseek_v3"), prompt(1, 4)
    with torch.no_grad():
        expected = copy.deepcopy(model).half()(ids).logits
        with accelerate(model):
            assert torch.equal(model.half()(ids).logits, expected)


@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
def test_parametrised_experts_go_the_stock_way(few_experts_calls, name):
    """As those to which PEFT adds LoRA; the module keeps its `forward`, but no longer has the parameter."""
    model, ids = model_of("deepseek_v3"), prompt()
    module = next(m for m in model.modules() if type(m).__name__.endswith("Experts"))
    with accelerate(model) as handle:
        parametrize.register_parametrization(module, name, torch.nn.Tanh())
        actual = decode(model, ids, holes(ids), 3)
        assert not few_experts_calls and "Experts): kept" in handle.report()
    assert_close(actual, decode(model, ids, holes(ids), 3))


def test_what_others_have_wrapped_since_is_undone(few_rows_calls, few_experts_calls):
    """A wrapper of `forward`, such as the hooks of the library accelerate, keeps ours inside when the acceleration ends."""
    model, ids = model_of("deepseek_v3"), prompt(1, 1)
    wrapped = [model.lm_head, next(m for m in model.modules() if type(m).__name__.endswith("Experts"))]
    with torch.no_grad():
        expected = model(ids).logits
        with accelerate(model) as handle:
            report = handle.report()
            for module in wrapped:
                module.forward = lambda *given, forward=module.forward: forward(*given)
            assert handle.report() == report
            assert not torch.equal(model(ids).logits, expected) and few_rows_calls
        assert torch.equal(model(ids).logits, expected)
    assert [module for module in model.modules() if "forward" in vars(module)] == wrapped[::-1]
    for module in wrapped:
        module.forward = module.forward.__kwdefaults__["forward"]  # as such hooks do when they are removed
    few_rows_calls.clear()
    with torch.no_grad(), accelerate(model) as handle:
        assert handle.report() == report
        model(ids)
        assert few_rows_calls
    assert not any("forward" in vars(module) for module in model.modules())


def test_modules_whose_wrapper_was_removed_are_served(few_rows_calls, few_experts_calls):
    """The library accelerate removes a hook by setting `forward` to the class's method."""
    model, ids = model_of("deepseek_v3"), prompt()
    expected = decode(model, ids, holes(ids), 3)
    with accelerate(copy.deepcopy(model)) as handle:
        report = handle.report()
    for module in model.modules():
        module.forward = module.forward
    with accelerate(model) as handle:
        assert handle.report() == report
        assert_close(decode(model, ids, holes(ids), 3), expected)
        assert few_rows_calls and few_experts_calls
    assert torch.equal(decode(model, ids, holes(ids), 3), expected)


def test_experts_by_name(deepseek):
    before = deepseek.get_experts_implementation()
    with accelerate(deepseek, experts="eager") as handle:
        assert "Experts): kept, eager" in handle.report()
    assert deepseek.get_experts_implementation() == before
    with accelerate(deepseek, experts="eager"):
        deepseek.set_experts_implementation("batched_mm")
    assert deepseek.get_experts_implementation() != before  # the user's choice, as for the attention
    deepseek.set_experts_implementation(before)
