"""Plain linear layers that read their weight once for a few rows: in place, on every thread."""

from __future__ import annotations

from types import MethodType
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode

from decodestep._base.profiling import run
from decodestep.integrations.transformers.borrowed import borrow, borrow_rows
from decodestep.integrations.transformers.switch import Replacement, is_off
from decodestep.ops.linear import Format
from decodestep.ops.linear.cpu import linear_rows

MOST_ROWS = 8  # with more, torch's matrix products are as fast
LEAST_BYTES = 1 << 20  # a smaller weight stays in the cache, so the overhead of a call would exceed the gain
FORMATS = {torch.float32: Format.F32, torch.bfloat16: Format.BF16}
_FORWARD = nn.Linear.forward  # torch's own, for which others may put another into the class


def is_watched() -> bool:
    """Whether torch's operations are observed: by tracing, compilation, forward-mode gradients, functorch's transforms, a
    dispatch mode or a function mode. Values computed outside torch would be constants for these, or would fail."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or forward_ad._current_level >= 0:
        return True
    if _get_current_dispatch_mode() is not None or torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    if not torch._C._len_torch_function_stack():
        return False
    # `torch.set_default_device` is a function mode that concerns only new tensors.
    return any(type(mode) is not DeviceContext for mode in _get_current_function_mode_stack())


def is_plain_tensor(tensor: Tensor) -> bool:
    """Whether a tensor is only its memory, unlike a quantised, distributed or lazily negated one."""
    return type(tensor) in (Tensor, nn.Parameter) and not tensor.is_neg()


def has_own_forward(module: nn.Module) -> bool:
    """Whether a module runs its class's `forward`. The hooks of the library accelerate leave the method that they have found in
    it when removed: the class's, or ours, which runs the class's when it is off."""
    found = module.__dict__.get("forward")
    return found is None or is_off(found, module) or bool(found == MethodType(type(module).forward, module))


def is_plain_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module computes what torch's Linear does."""
    return type(module) is nn.Linear and nn.Linear.forward is _FORWARD and has_own_forward(module)


def is_few_plain_rows(x: Tensor, *weights: Tensor | None) -> bool:
    """Whether x has up to `MOST_ROWS` rows, and weights of its dtype, on the CPU, without gradients, autocast or tracing."""
    # First, because torch.compile cannot trace `is_neg`.
    if is_watched() or type(x) is not Tensor or x.is_neg() or x.dtype not in FORMATS:
        return False
    if not x.is_cpu or not x.dim() or x.layout != torch.strided or torch.is_autocast_enabled("cpu"):
        return False
    gradients = torch.is_grad_enabled()
    for weight in weights:  # a plain loop: a generator takes as long as all these checks
        if weight is None:
            continue
        if not is_plain_tensor(weight) or weight.dtype != x.dtype or not weight.is_cpu or weight.layout != torch.strided:
            return False
        if gradients and weight.requires_grad:
            return False
    if gradients and x.requires_grad:
        return False
    return 0 < x.numel() <= MOST_ROWS * x.shape[-1]


class FewRows(Replacement):
    """Replaces the method `forward` of a plain Linear of an accelerated model.

    torch multiplies one row in float32 on a single thread, and several rows at a third of that speed. Here up to `MOST_ROWS`
    rows read the weight once. Sums are float32; in bfloat16 the result is rounded once.
    """

    def __call__(self, x: Tensor) -> Tensor:
        parameters = self.module._parameters  # each access to a module's attribute takes a microsecond
        weight, bias = parameters.get("weight"), parameters.get("bias")
        plain = weight is not None and "bias" in parameters  # parametrisations remove the parameter
        if not self.in_force or not plain or not _is_served_now(x, weight, bias):
            return type(self.module).forward(self.module, x)
        *axes, inputs = x.shape
        rows = borrow(x if x.dtype == torch.float32 else x.float()).reshape(-1, inputs)
        product = run("linear", "cpu", linear_rows, rows, borrow_rows(weight), FORMATS[weight.dtype])
        y = torch.from_numpy(product.reshape(*axes, product.shape[1]))
        if bias is not None:
            y += bias.detach()
        return y if x.dtype == torch.float32 else y.to(x.dtype)

    @property
    def in_use(self) -> bool:
        """Whether this is in force and the module still has a weight that can be read."""
        weight = self.module._parameters.get("weight")
        return self.in_force and weight is not None and _is_large_plain(weight)


def _is_served_now(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a call has few rows, a large weight with contiguous rows, and no gradients, autocast or tracing."""
    if not is_few_plain_rows(x, weight, bias) or x.shape[-1] != weight.shape[1]:
        return False
    return weight.stride(1) == 1 and weight.nbytes >= LEAST_BYTES


def is_served(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module is a plain torch Linear whose weight a `FewRows` can read, and large enough to gain from it."""
    return is_plain_linear(module) and _is_large_plain(module.weight)


def _is_large_plain(weight: Tensor) -> bool:
    """Whether a weight can be read in place, and is large enough to gain from it."""
    return is_plain_tensor(weight) and weight.dtype in FORMATS and weight.is_cpu and weight.nbytes >= LEAST_BYTES
