"""ONNX: the library's operators for the reference evaluator.

Usage:

    ReferenceEvaluator(model, new_ops=decodestep.integrations.onnx.REFERENCE_OPS)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decodestep._base.extras import extra
from decodestep.integrations.onnx_operators import DOMAIN, OPERATORS
from decodestep.integrations.onnx_states import causal_conv_with_state, linear_attention
from decodestep.ops.tensor_scatter import tensor_scatter

with extra("onnx"):
    from onnx.reference.op_run import OpRun


class TensorScatter(OpRun):  # type: ignore[misc]
    """TensorScatter of the default domain, opset 24. Raises ValueError for an index that the specification forbids."""

    op_domain = ""

    def _run(
        self,
        past_cache: np.ndarray,
        update: np.ndarray,
        write_indices: np.ndarray | None = None,
        axis: int = -2,
        mode: str = "linear",
    ) -> tuple[np.ndarray]:
        return (tensor_scatter(past_cache, update, write_indices, axis=axis, mode=mode),)


class LinearAttention(OpRun):  # type: ignore[misc]
    """LinearAttention of the default domain, opset 27; the state is rounded to its type once a call."""

    op_domain = ""

    def _run(
        self,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        past_state: np.ndarray | None = None,
        decay: np.ndarray | None = None,
        beta: np.ndarray | None = None,
        **attributes: Any,
    ) -> tuple[np.ndarray, np.ndarray]:
        given = {name: each for name, each in attributes.items() if each is not None}
        output, state = linear_attention(query, key, value, past_state, decay, beta, **given)
        return output, state.astype((query if past_state is None else past_state).dtype, copy=False)


class CausalConvWithState(OpRun):  # type: ignore[misc]
    """CausalConvWithState of the default domain, opset 27."""

    op_domain = ""

    def _run(
        self,
        input: np.ndarray,
        weight: np.ndarray,
        bias: np.ndarray | None = None,
        past_state: np.ndarray | None = None,
        activation: str | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        return causal_conv_with_state(input, weight, bias, past_state, activation=activation or "none")


class _Ours(OpRun):  # type: ignore[misc]
    """An operator of the domain "decodestep"."""

    op_domain = DOMAIN

    def _run(self, *inputs: np.ndarray | None, **attributes: object) -> tuple[np.ndarray, ...]:
        operator = OPERATORS[type(self).__name__]
        given = {name: value for name, value in attributes.items() if value is not None}
        return operator([None if array is None else np.asarray(array) for array in inputs], given)


REFERENCE_OPS = [
    TensorScatter,
    LinearAttention,
    CausalConvWithState,
    *(type(name, (_Ours,), {"__module__": __name__}) for name in OPERATORS),
]
