"""torch.compile: our operators as custom ops, which a compiled graph calls without breaking.

    from decodestep.integrations.torch import ops
    ops.rms_norm(x, gamma)          # torch.ops.decodestep.rms_norm; under torch.compile(fullgraph=True) too

Importing this module registers them. Outside compiled code the functions of `decodestep` themselves take tensors and are
several microseconds a call faster; nothing here touches them. Gradients are not defined: a backward pass raises.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

import decodestep as ds


class CustomOp(NamedTuple):
    """schema: the signature in torch's language; arguments that are written to are marked as in `Tensor(a!)`.
    kernel: what runs, on CPU tensors. fake: tensors of the results' shape, strides and dtype, from arguments without data.
    """

    schema: str
    kernel: Callable[..., Any]
    fake: Callable[..., Any]
    mutates: tuple[str, ...] = ()


def _updated(past_cache: Any, update: Any, write_indices: Any = None, *, axis: int = -2, write_mode: str = "linear") -> Any:
    return ds.tensor_scatter(past_cache, update, write_indices, axis=axis, mode=write_mode)


def _update(past_cache: Any, update: Any, write_indices: Any = None, *, axis: int = -2, write_mode: str = "linear") -> None:
    ds.tensor_scatter(past_cache, update, write_indices, axis=axis, mode=write_mode, out=past_cache)


def _new_like_first(first: Any, *_: Any, **__: Any) -> Any:
    """Results are packed whatever the strides of the arguments."""
    return first.new_empty(first.shape)


def _nothing(*_: Any, **__: Any) -> None:
    return None


# An argument called mode would clash with one of torch's own where it makes a graph functional.
_SCATTER = 'Tensor update, Tensor? write_indices=None, *, int axis=-2, str write_mode="linear"'

# One row an operator: add one here and its cases to tests/test_integrations_torch.py.
OPERATORS = {
    "tensor_scatter": CustomOp(f"(Tensor past_cache, {_SCATTER}) -> Tensor", _updated, _new_like_first),
    "tensor_scatter_": CustomOp(f"(Tensor(a!) past_cache, {_SCATTER}) -> ()", _update, _nothing, ("past_cache",)),
    "rms_norm": CustomOp("(Tensor x, Tensor gamma, *, float eps=1e-5) -> Tensor", ds.rms_norm, _new_like_first),
    "swiglu": CustomOp("(Tensor gate, Tensor up) -> Tensor", ds.swiglu, _new_like_first),
}


def _register(name: str, op: CustomOp) -> Any:
    custom = torch.library.custom_op(
        f"decodestep::{name}", op.kernel, mutates_args=op.mutates, device_types="cpu", schema=op.schema
    )
    custom.register_fake(op.fake)
    return custom


ops = SimpleNamespace(**{name: _register(name, op) for name, op in OPERATORS.items()})
