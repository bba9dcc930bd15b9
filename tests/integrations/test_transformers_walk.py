"""accelerate among random changes of a model by others: two equal models get the same changes, and one of them is accelerated
now and then. Their logits agree meanwhile, and are bit-identical after undo."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize
from transformers import DynamicCache

from decodestep.integrations.transformers import accelerate, few_experts, few_rows
from decodestep.integrations.transformers.switch import Replacement
from support.latent_models import assert_close, model_of, prompt

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SERVED = ("self_attn.o_proj", "self_attn.kv_b_proj", "mlp.gate_proj", "lm_head", "mlp.experts", "self_attn")


class Scaled(nn.Module):
    def forward(self, weight):
        return 1.25 * weight


class Wrapper:
    """As the hooks of the library accelerate, which keep the `forward` that they have found and put it back."""

    def __init__(self, module):
        self.found, module.forward = module.forward, self

    def __call__(self, *given, **named):
        return self.found(*given, **named)


class Biased(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 0.1


def weighted(model, i):
    """The i-th of the Linears that are served."""
    linears = [module for name, module in model.named_modules() if isinstance(module, nn.Linear) and name.endswith(SERVED)]
    return linears[i % len(linears)]


def add_hook(model, i):
    weighted(model, i).register_forward_hook(lambda module, given, output: 0.75 * output)


def remove_hooks(model, i):
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module._forward_hooks.clear()


def wrap(model, i):
    Wrapper(weighted(model, i))


def unwrap(model, i):
    for module in model.modules():
        if isinstance(wrapper := vars(module).get("forward"), Wrapper):
            module.forward = wrapper.found


def parametrise(model, i):
    parametrize.register_parametrization(weighted(model, i), "weight", Scaled())


def remove_parametrisations(model, i):
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight")


def change_the_class(model, i):
    module = weighted(model, i)
    if type(module) is nn.Linear:
        module.__class__ = Biased


def restore_the_class(model, i):
    for module in model.modules():
        if type(module) is Biased:
            module.__class__ = nn.Linear


def replace_by_a_copy(model, i):
    """As PEFT's modules_to_save, and models that are made deeper by copies of their layers."""
    parts = [(parent, name, part) for parent in model.modules() for name, part in parent.named_children()]
    parts = [part for part in parts if part[1] in ("0", "1", *(name.split(".")[-1] for name in SERVED))]
    parent, name, part = parts[i % len(parts)]
    setattr(parent, name, copy.deepcopy(part))


def load(model, i):
    torch.manual_seed(i)
    state = {name: tensor + 0.05 * torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    model.load_state_dict(state, assign=bool(i % 2))


def require_gradients(model, i):
    model.requires_grad_(bool(i % 2))


def another_dtype(model, i):
    weighted(model, i).double()


def one_dtype(model, i):
    model.float()


def add_a_bias(model, i):
    module = weighted(model, i)
    module.bias = nn.Parameter(torch.ones(module.out_features))


def other_strides(model, i):
    if "weight" in (module := weighted(model, i))._parameters:
        module.weight.data = module.weight.data.t().contiguous().t()


def choose_attention(model, i):
    model.set_attn_implementation(["sdpa", "eager"][i % 2])


def choose_experts(model, i):
    model.set_experts_implementation(["eager", "grouped_mm"][i % 2])


class Pair:
    """A stock model, and one with the same weights and changes that is accelerated now and then."""

    def __init__(self):
        self.stock = model_of("deepseek_v3")
        self.ours, self.handle = copy.deepcopy(self.stock), None

    def accelerate(self, _):
        try:
            self.handle = accelerate(self.ours)
        except ValueError as error:  # as of a kv_b_proj with hooks
            if "another one" in str(error):  # of ours, with no handle
                raise

    def undo(self, _):
        if self.handle is not None:
            self.handle.undo()
        self.handle = None

    def copy(self, _):
        self.exchange(copy.deepcopy)

    def pickle(self, _):
        self.exchange(lambda model: pickle.loads(pickle.dumps(model)))

    def exchange(self, make):
        """Goes on with copies of the models, if there can be any."""
        try:
            self.stock = make(self.stock)
        except (AttributeError, RuntimeError, pickle.PicklingError):  # of parametrised modules, and of local functions
            return
        self.ours = make(self.ours)
        if self.handle is not None:
            self.handle.undo()
            self.handle = accelerate(self.ours)

    def change(self, step, i):
        step(self.stock, i)
        step(self.ours, i)

    def check(self):
        try:
            expected = logits(self.stock)
        except RuntimeError:  # of two dtypes
            with pytest.raises(RuntimeError):
                logits(self.ours)
            return
        actual = logits(self.ours)
        assert actual.dtype == expected.dtype and actual.requires_grad == expected.requires_grad
        if self.handle is not None:
            assert_close(actual, expected)
            return
        assert torch.equal(actual, expected)
        methods = [method for module in self.ours.modules() for method in vars(module).values()]
        assert not any(isinstance(method, Replacement) and method.switch.on for method in methods)


def logits(model):
    """Of a prompt and a step, with gradients if a weight wants them."""
    cache = DynamicCache(config=model.config)
    with torch.set_grad_enabled(next(model.parameters()).requires_grad):
        parts = [model(ids, past_key_values=cache).logits for ids in (prompt(2, 16), prompt(2, 1))]
    return torch.cat(parts, 1)


CHANGES = [
    add_hook,
    remove_hooks,
    wrap,
    unwrap,
    parametrise,
    remove_parametrisations,
    change_the_class,
    restore_the_class,
    replace_by_a_copy,
    load,
    require_gradients,
    another_dtype,
    one_dtype,
    add_a_bias,
    other_strides,
    choose_attention,
    choose_experts,
]
OF_THE_PAIR = [Pair.accelerate, Pair.undo, Pair.copy, Pair.pickle]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(CHANGES + 3 * OF_THE_PAIR), st.integers(0, 15)), max_size=9))
def test_models_among_changes(steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(few_rows, "LEAST_BYTES", 0)
        patch.setattr(few_experts, "LEAST_BYTES", 0)
        pair = Pair()
        for step, i in (*steps, (Pair.undo, 0)):
            if step in OF_THE_PAIR:
                step(pair, i)
            else:
                pair.change(step, i)
            pair.check()
