"""ONNX: the library's operators for the reference evaluator.

Usage:

    ReferenceEvaluator(model, new_ops=decodestep.integrations.onnx.REFERENCE_OPS)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decodestep._base.extras import extra
from decodestep.integrations.onnx_operators import DOMAIN, OPERATORS
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


class _Ours(OpRun):  # type: ignore[misc]
    """An operator of the domain "decodestep"."""

    op_domain = DOMAIN

    def _run(self, *inputs: np.ndarray | None, **attributes: Any) -> tuple[np.ndarray, ...]:
        operator = OPERATORS[type(self).__name__]
        given = {name: value for name, value in attributes.items() if value is not None}
        return operator([None if array is None else np.asarray(array) for array in inputs], given)


REFERENCE_OPS = [TensorScatter, *(type(name, (_Ours,), {"__module__": __name__}) for name in OPERATORS)]
