"""Where transformers' own loader puts the rows of a GGUF file's tensors, asked of it with numbered rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.integrations import GGUF_CONFIG_MAPPING
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

from decodestep.files.gguf_file import GgufFile, Tensor
from decodestep.files.tensor_values import read_float32

_COLUMNS = 2  # of a tensor of numbers: enough to tell rows from columns


class Rows(NamedTuple):
    """Which rows of a parameter come from a tensor of the file.

    name: of the parameter. order: for each row of the parameter, in its shape without the axis of inputs, the row of the
    tensor, whose rows are counted through; -1 where another tensor's row is. transposed: whether the parameter's columns are
    meant by its rows.
    """

    name: str
    order: np.ndarray
    transposed: bool


class Placement:
    """The parameters of a model as transformers fills them from a file of one of its older architectures.

    transformers converts each tensor, decoded, with a processor of its architecture. Here the processor converts row numbers
    first: where the result is rows of the file in another order, so are the blocks.
    """

    def __init__(self, file: GgufFile, model: PreTrainedModel) -> None:
        architecture = file.metadata["general.architecture"]
        fields = GGUF_CONFIG_MAPPING.get(architecture, {})
        found = {field: file.metadata.get(f"{architecture}.{key}") for key, field in fields.items() if field}
        config = {field: value for field, value in found.items() if value is not None}
        self._processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config)
        self._names: dict[str, str] = get_gguf_hf_weights_map(model, self._processor)

    def rows(self, tensor: Tensor) -> list[Rows] | None:
        """Where a tensor's rows are: in one parameter, or in none, for a tensor that transformers leaves out. None if they are
        not rows of a parameter, whole and unchanged."""
        found = self._numbered(tensor, _COLUMNS)
        return self._numbered(tensor, tensor.shape[-1]) if found is None else found

    def values(self, tensor: Tensor, into: dict[str, torch.Tensor]) -> None:
        """Enters what transformers makes of a tensor's values, by the names of parameters."""
        self._enter(tensor.name, read_float32(tensor), into)

    def _enter(self, name: str, values: np.ndarray, into: dict[str, torch.Tensor]) -> None:
        parsed = {"tensors": into}
        result = self._processor.process(weights=values, name=name, tensor_key_mapping=self._names, parsed_parameters=parsed)
        if result.name in self._names:
            into[self._names[result.name]] = torch.from_numpy(np.array(result.weights, order="C"))

    def _numbered(self, tensor: Tensor, columns: int) -> list[Rows] | None:
        """What becomes of the numbers 1, 2, ... in place of the tensor's values, cut to a few columns."""
        shape = (*tensor.shape[:-1], columns)
        numbers = np.arange(1, np.prod(shape) + 1, dtype=np.float64).reshape(shape)
        found: dict[str, torch.Tensor] = {}
        try:
            with np.errstate(all="ignore"):
                self._enter(tensor.name, numbers, found)
        except ValueError:  # it needs all columns
            return None
        if not found:
            return []
        ((name, result),) = found.items()
        for transposed in (False, True) if result.dim() == 2 else (False,):
            rows = result.numpy().T if transposed else result.numpy()
            if rows.ndim != len(shape) or rows.shape[-1] != columns:
                continue
            first = rows[..., :1]
            order = np.where(first > 0, (first - 1) // columns, -1)
            whole = np.where(first > 0, order * columns + np.arange(1, columns + 1), 0)
            if np.array_equal(rows, whole):
                return [Rows(name, order[..., 0].astype(np.int64), transposed)]
        return None
