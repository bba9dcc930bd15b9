"""ONNX: TensorScatter for the reference evaluator.

ReferenceEvaluator(model, new_ops=[decodestep.integrations.onnx.TensorScatter])
"""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from decodestep.ops.tensor_scatter import tensor_scatter


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
