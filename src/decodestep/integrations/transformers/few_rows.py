"""Plain linear layers that read their weight once for a few rows: in place, on every thread."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode

from decodestep._base.dispatch import run
from decodestep.ops.linear import Format, PackedWeight
from decodestep.ops.linear.cpu import linear

MOST_ROWS = 8  # with more, torch's matrix products are as fast
LEAST_BYTES = 1 << 20  # a smaller weight stays in the cache, so the overhead of a call would exceed the gain
FORMATS = {torch.float32: Format.F32, torch.bfloat16: Format.BF16}


class WeightRows:
    """A Linear's weight in the form that `linear` takes, cached until it moves; copies start with an empty cache.

    least: the smallest weight that is served, in bytes.
    """

    _known: tuple[Any, PackedWeight] | None = None  # the weight's address and description; its rows

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def of(self, weight: Tensor) -> PackedWeight | None:
        """The rows of a weight on the CPU, as a view; None if it is not served."""
        known = weight.data_ptr(), weight.dtype, weight.shape, weight.stride()
        if self._known is not None and self._known[0] == known:
            return self._known[1]
        if weight.dtype not in FORMATS or weight.stride(1) != 1 or weight.numel() * weight.itemsize < self.least:
            return None
        rows = weight.detach().view(torch.uint8).numpy()
        self._known = known, PackedWeight(rows, FORMATS[weight.dtype], weight.shape[1])
        return self._known[1]

    def __getstate__(self) -> dict[str, Any]:
        return {"least": self.least}


def is_watched() -> bool:
    """Whether torch's operations are observed: by tracing, compilation, forward-mode gradients, functorch's transforms or a
    dispatch mode. Values computed outside torch would be constants for these, or would fail."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or forward_ad._current_level >= 0:
        return True
    return _get_current_dispatch_mode() is not None or torch._C._functorch.peek_interpreter_stack() is not None


def is_plain_tensor(tensor: Tensor) -> bool:
    """Whether a tensor is only its memory, unlike a quantised or distributed one."""
    return type(tensor) in (Tensor, nn.Parameter)


def is_few_plain_rows(x: Tensor, *weights: Tensor | None) -> bool:
    """Whether x has up to `MOST_ROWS` rows, and weights of its dtype, on the CPU, without gradients, autocast or tracing."""
    if type(x) is not Tensor or x.dtype not in FORMATS or is_watched():
        return False
    if not x.is_cpu or not x.dim() or x.layout != torch.strided or torch.is_autocast_enabled("cpu"):
        return False
    given = [w for w in weights if w is not None]
    if any(not is_plain_tensor(w) or w.dtype != x.dtype or not w.is_cpu or w.layout != torch.strided for w in given):
        return False
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, *given)):
        return False
    return 0 < x.numel() <= MOST_ROWS * x.shape[-1]


class FewRows:
    """Replaces the method `forward` of a plain Linear of an accelerated model.

    torch multiplies one row in float32 on a single thread, and several rows at a third of that speed. Here up to `MOST_ROWS`
    rows read the weight once. Sums are float32; in bfloat16 the result is rounded once.
    """

    def __init__(self, module: nn.Linear) -> None:
        self.module, self._rows = module, WeightRows(LEAST_BYTES)
        self.undone = False  # if `forward` has been wrapped since, this object stays in place after the acceleration ends

    def __call__(self, x: Tensor) -> Tensor:
        parameters = self.module._parameters  # each access to a module's attribute takes a microsecond
        weight, bias = parameters.get("weight"), parameters.get("bias")
        plain = not self.undone and weight is not None and "bias" in parameters  # parametrisations remove the parameter
        packed = self._serving(x, weight, bias) if plain else None
        if packed is None:
            return nn.Linear.forward(self.module, x)
        rows = x.detach().reshape(-1, x.shape[-1])
        rows = rows if rows.dtype == torch.float32 else rows.float()
        y = torch.from_numpy(run("linear", "cpu", linear, rows.numpy(), packed))
        if bias is not None:
            y += bias.detach()
        y = y.view(*x.shape[:-1], packed.shape[1])
        return y if x.dtype == torch.float32 else y.to(x.dtype)

    def _serving(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> PackedWeight | None:
        """The weight, if a call has few rows and no gradients, autocast or tracing; else None."""
        if not is_few_plain_rows(x, weight, bias) or x.shape[-1] != weight.shape[1]:
            return None
        return self._rows.of(weight)


def is_served(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module is a plain torch Linear whose weight a `FewRows` can read."""
    plain = type(module) is nn.Linear and "forward" not in vars(module)
    return plain and is_plain_tensor(module.weight) and module.weight.dtype in FORMATS and module.weight.is_cpu
