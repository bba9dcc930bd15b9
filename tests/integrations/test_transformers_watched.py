"""accelerate where somebody wants more of the operations than their numbers: traces, transforms, gradients, weights of a class
of their own. All of it goes the stock way."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from decodestep.integrations.transformers import accelerate, few_experts, few_rows
from support.latent_models import assert_close, model_of, prompt

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(autouse=True)
def _weights_of_any_size(monkeypatch):
    monkeypatch.setattr(few_rows, "LEAST_BYTES", 0)


class Step(torch.nn.Module):
    """A decode step as a function of tensors: the embedded token and what is cached."""

    def __init__(self):
        super().__init__()
        self.model = model_of("deepseek_v3", first_k_dense_replace=2).requires_grad_(False)

    def forward(self, embedded, *cached):
        cache = DynamicCache(list(zip(cached[::2], cached[1::2], strict=True)))
        where = torch.tensor([[cached[0].shape[2]]])
        return self.model(inputs_embeds=embedded, past_key_values=cache, position_ids=where).logits


def inputs(batch=1, seed=1):
    generator = torch.Generator().manual_seed(seed)
    sizes = [(batch, 1, 32), *[(batch, 1, 24, 24), (batch, 1, 24, 8)] * 2]
    return [torch.randn(size, generator=generator) for size in sizes]


def jit_trace(step, given):
    return torch.jit.trace(step, tuple(given), check_trace=False)


def fx_trace(step, given):
    return make_fx(step)(*given)


@pytest.mark.parametrize("linears", [False, True])
@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize("trace", [jit_trace, fx_trace])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", r"ignore:.torch\.jit:DeprecationWarning")
def test_a_trace_computes_with_the_numbers_that_it_is_given(trace, batch, linears):
    step, other = Step(), inputs(batch, seed=2)
    with torch.no_grad():
        expected = step(*other)
        with accelerate(step.model, linears=linears):
            traced = trace(step, inputs(batch))
        assert_close(traced(*other), expected)


@pytest.mark.parametrize("family", ["deepseek_v3", "deepseek_v32"])
def test_a_compiled_model_stays_one_graph(family, monkeypatch):
    """A graph break at each Linear would be slow, and an error with fullgraph=True."""
    monkeypatch.setattr(few_experts, "LEAST_BYTES", 0)
    model, token = model_of(family, num_hidden_layers=1, first_k_dense_replace=0), torch.tensor([[5]])

    def logits():
        torch.compiler.reset()
        compiled, cache = torch.compile(model, backend="eager", fullgraph=True), DynamicCache(config=model.config)
        return [compiled(ids, past_key_values=cache).logits for ids in (prompt(1, 24), token)]

    with torch.no_grad():
        expected = logits()
        with accelerate(model):
            assert all(torch.equal(*pair) for pair in zip(logits(), expected, strict=True))


@pytest.mark.parametrize("linears", [False, True])
def test_forward_mode_gradients_and_vmap(linears):
    step, (one, *cached), (other, *_) = Step(), inputs(), inputs(seed=2)

    def of(embedded):
        return step(embedded, *cached)

    def dual():
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(of(forward_ad.make_dual(one, other))).tangent

    def run():
        return [dual(), torch.func.jvp(of, (one,), (other,))[1], torch.func.vmap(of)(torch.stack([one, other]))]

    expected = run()
    with accelerate(step.model, linears=linears):
        for actual, each in zip(run(), expected, strict=True):
            assert_close(actual, each)


def test_a_dispatch_mode_sees_every_operation():
    step, counts = Step(), []
    for accelerated in (False, True):
        if accelerated:
            accelerate(step.model)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            step(*inputs())
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


class DoubledLinears(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return 2 * result if function is torch.nn.functional.linear else result


@pytest.mark.parametrize("linears", [False, True])
def test_a_function_mode_changes_every_linear(linears):
    step = Step()
    with torch.no_grad(), DoubledLinears():
        expected = step(*inputs())
        with accelerate(step.model, linears=linears):
            assert_close(step(*inputs()), expected)


def test_a_default_device_is_no_such_mode():
    assert not few_rows.is_watched()
    with torch.device("cpu"):
        assert not few_rows.is_watched()
        with DoubledLinears():
            assert few_rows.is_watched()


def test_a_global_hook_sees_every_module():
    step = Step()

    def run():
        with register_module_forward_hook(lambda module, given, output: output.mul(2) if type(module) is nn.Linear else None):
            return step(*inputs())

    with torch.no_grad():
        expected = run()
        with accelerate(step.model):
            assert_close(run(), expected)


class Twice(torch.Tensor):
    """A weight that is more than its memory, as quantised ones are: twice a tensor."""

    @staticmethod
    def __new__(cls, half):
        return torch.Tensor._make_wrapper_subclass(cls, half.shape, dtype=half.dtype, device=half.device)

    def __init__(self, half):
        self.half_of = half

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.linear:
            return function(args[0], 2 * args[1].half_of, *args[2:])
        return super().__torch_function__(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].half_of)
        raise NotImplementedError(str(function))


def double_the_weights(model, but=()):
    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear and not name.endswith(but):
            module.weight = torch.nn.Parameter(Twice(module.weight.data), requires_grad=False)


@pytest.mark.parametrize("when", ["before", "after"])
def test_weights_of_a_class_of_their_own(when):
    step = Step()
    with torch.no_grad():
        if when == "before":
            double_the_weights(step.model, but=("kv_b_proj",))  # which would be refused
        with accelerate(step.model):
            if when == "after":
                double_the_weights(step.model)
            actual = step(*inputs())
        assert_close(actual, step(*inputs()))


@pytest.mark.parametrize("crop", [0, 2])
def test_gradients_of_kv_b_proj_alone_through_several_steps(crop):
    """The latents want none, but what a step reads of them is kept for the backward pass, whatever is cropped and written."""
    model = model_of("deepseek_v3").requires_grad_(False)
    weight = model.model.layers[0].self_attn.kv_b_proj.weight.requires_grad_(True)

    def gradient():
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(prompt(1, 24), past_key_values=cache)
        steps = [model(torch.tensor([[5 + i]]), past_key_values=cache).logits for i in range(3)]
        if crop:
            cache.crop(-crop)
            with torch.no_grad():
                model(prompt(1, 3), past_key_values=cache)
        return torch.autograd.grad(sum(each.square().mean() for each in steps), weight)[0]

    expected = gradient()
    with accelerate(model):
        assert_close(gradient(), expected)
