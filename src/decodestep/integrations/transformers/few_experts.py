"""Experts for a few rows: each weight that a token needs is read once, in place, on every thread."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from decodestep._base.profiling import run
from decodestep.integrations.transformers.borrowed import borrow, borrow_rows
from decodestep.integrations.transformers.few_rows import FORMATS, LEAST_BYTES, has_own_forward, is_few_plain_rows
from decodestep.integrations.transformers.switch import Replacement, Switch
from decodestep.ops.linear.cpu import grouped_products

_SHAPE = {"has_gate": True, "has_bias": False, "is_transposed": False, "has_post_expert_norm": False}


class FewExperts(Replacement):
    """Replaces the method `forward` of an experts module of an accelerated model.

        y[t] = sum over i of weight[t, i] * down[e](gate(gate_up[e](x[t]))),  e = index[t, i]

    torch's grouped_mm reads weights at half the memory bandwidth. Products, gate and sum are float32; in bfloat16 the result is
    rounded once. Calls with more rows, or after a later `set_experts_implementation`, use transformers' own code.
    """

    def __init__(self, module: torch.nn.Module, switch: Switch) -> None:
        super().__init__(module, switch)
        self._choice = module.config._experts_implementation

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        module = self.module
        up, down = module._parameters.get("gate_up_proj"), module._parameters.get("down_proj")
        if not self._serves(hidden_states, top_k_index, top_k_weights, up, down):
            return type(module).forward(module, hidden_states, top_k_index, top_k_weights)
        ups, downs, format_ = borrow_rows(up.flatten(0, 1)), borrow_rows(down.flatten(0, 1)), FORMATS[up.dtype]
        x, index = borrow(hidden_states.float()), borrow(top_k_index.long())
        order = np.argsort(index, axis=None, kind="stable")  # of the products, so that those of an expert read its weights once
        experts = index.reshape(-1)[order]
        rows = x[order // index.shape[1]]
        gate_up = run("linear", "cpu", grouped_products, rows, ups, format_, experts, up.shape[1])
        gated = module._apply_gate(torch.from_numpy(gate_up)).numpy()
        products = np.empty((index.size, down.shape[1]), np.float32)
        products[order] = run("linear", "cpu", grouped_products, gated, downs, format_, experts, down.shape[1])
        products = products.reshape(*index.shape, -1)
        weighted = torch.from_numpy(products) * top_k_weights.detach().float().unsqueeze(-1)
        return weighted.sum(1).to(hidden_states.dtype)

    @property
    def in_use(self) -> bool:
        """Whether this is in force, and the implementation and the kind of weights are as they were."""
        chosen = bool(self.module.config._experts_implementation == self._choice)
        return self.in_force and chosen and _are_large_plain(self.module)

    def _serves(self, x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> bool:
        module = self.module
        if up is None or down is None:  # parametrisations remove the parameter
            return False
        if not is_few_plain_rows(x, up, down) or module._is_expert_parallel or x.dim() != 2 or x.shape[1] != up.shape[2]:
            return False
        if not self.in_use or not (up.is_contiguous() and down.is_contiguous()):
            return False
        if not (index.is_cpu and weights.is_cpu) or index.shape != weights.shape or len(index) != len(x) or not index.numel():
            return False
        if torch.is_grad_enabled() and weights.requires_grad:
            return False
        return bool(index.min() >= 0 and index.max() < up.shape[0])


def are_served(module: torch.nn.Module) -> bool:
    """Whether a module is transformers' experts with a selectable implementation, gated, without biases, on the CPU, and with
    weights large enough to gain from it."""
    if not hasattr(type(module), "_apply_gate") or not has_own_forward(module):
        return False
    if any(vars(module).get(name) is not value for name, value in _SHAPE.items()):
        return False
    return _are_large_plain(module)


def _are_large_plain(module: torch.nn.Module) -> bool:
    """Whether an experts module's weights can be read in place, and are large enough to gain from it."""
    weights = [module._parameters.get(name) for name in ("gate_up_proj", "down_proj")]
    if not all(type(w) is nn.Parameter and w.dim() == 3 and w.dtype in FORMATS and w.is_cpu for w in weights):
        return False
    return all(w.shape[1] * w.shape[2] * w.itemsize >= LEAST_BYTES for w in weights)
