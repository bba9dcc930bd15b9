"""Plain linear layers, which read their weight once for a few rows: on every thread, and from where torch has it."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from decodestep.ops.linear import Format, PackedWeight, linear

MOST_ROWS = 8  # with more, torch's products of matrices are as fast
_LEAST_BYTES = 1 << 20  # a smaller weight stays in a cache, where a call costs more than its product
_FORMATS = {torch.float32: Format.F32, torch.bfloat16: Format.BF16}


class FewRows:
    """What a plain Linear of an accelerated model has in place of its method `forward`.

    torch multiplies one row in float32 on a single thread, and several rows at a third of the speed at which one is multiplied.
    Here up to `MOST_ROWS` rows read the weight once. Sums are float32; in bfloat16 the result is rounded once.
    """

    def __init__(self, module: nn.Linear) -> None:
        self.module = module

    def __call__(self, x: Tensor) -> Tensor:
        if not self._serves(x):
            return nn.Linear.forward(self.module, x)
        weight, bias = self.module.weight.detach(), self.module.bias
        packed = PackedWeight(weight.view(torch.uint8).numpy(), _FORMATS[weight.dtype], weight.shape[1])
        y = linear(x.detach().reshape(-1, x.shape[-1]).float(), packed)
        if bias is not None:
            y += bias.detach()
        return y.to(x.dtype).view(*x.shape[:-1], weight.shape[0])

    def _serves(self, x: Tensor) -> bool:
        """Whether a call is of few rows with a large plain weight, and wants no gradients, casts or traces."""
        weight, bias = self.module.weight, self.module.bias
        if type(x) is not Tensor or weight.dtype not in _FORMATS or weight.stride(1) != 1:
            return False
        if weight.numel() * weight.itemsize < _LEAST_BYTES or not 0 < x.numel() <= MOST_ROWS * weight.shape[1]:
            return False
        if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.is_autocast_enabled("cpu"):
            return False
        tensors = (x, weight) if bias is None else (x, weight, bias)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return False
        alike = all(t.is_cpu and t.layout == torch.strided and t.dtype == weight.dtype for t in tensors)
        return alike and x.shape[-1] == weight.shape[1]


def few_rows_of(module: nn.Module) -> FewRows | None:
    """The `FewRows` of an accelerated module."""
    found: Any = module.__dict__.get("forward")
    return found if isinstance(found, FewRows) else None


def is_served(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module is a Linear of torch and nothing else, whose weight a `FewRows` can read."""
    plain = type(module) is nn.Linear and "forward" not in vars(module)
    return plain and module.weight.dtype in _FORMATS and module.weight.is_cpu
