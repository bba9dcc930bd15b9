"""A torch tensor whose values stay in the blocks of a GGUF file: products read the blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from decodestep._base.checks import Phrase, refuse
from decodestep._base.profiling import run
from decodestep.integrations.transformers.borrowed import borrow
from decodestep.integrations.transformers.few_rows import is_watched
from decodestep.ops.linear.cpu import gather_rows, linear
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format, PackedWeight

_CLASS = "BlockWeight"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of activations that are multiplied in float32
_LINEAR = nn.functional.linear
_aten = torch.ops.aten

Matrix: TypeAlias = PackedWeight | LinearPanels


@dataclass(frozen=True)
class Blocks:
    """The values of a `BlockWeight`; none of its arrays is ever written.

    matrices: one of N rows of K values, or several of the same shape and format.
    stacked: whether the tensor is (number of matrices, N, K), as of experts; otherwise (N, K), of one.
    columns: for each column of the tensor the one that the matrix has there; None: they are the same.
    transposed: whether the tensor is (K, N).
    """

    matrices: tuple[Matrix, ...]
    stacked: bool = False
    columns: np.ndarray | None = None
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        inputs, outputs = self.matrices[0].shape
        if self.stacked:
            return len(self.matrices), outputs, inputs
        return (inputs, outputs) if self.transposed else (outputs, inputs)

    @property
    def format(self) -> Format:
        return self.matrices[0].format

    def packed(self) -> Blocks:
        """In panels, whose products are fast."""
        return replace(self, matrices=tuple(LinearPanels.pack(_in_rows(matrix)) for matrix in self.matrices))

    def values(self) -> Tensor:
        """All values, as float32."""
        found = np.stack([self._gather(matrix, np.arange(matrix.shape[1])) for matrix in self.matrices])
        return torch.from_numpy(found if self.stacked else found[0].T if self.transposed else found[0])

    def gather(self, ids: np.ndarray) -> np.ndarray:
        """Rows of the one matrix, as float32."""
        return self._gather(self.matrices[0], ids)

    def _gather(self, matrix: Matrix, ids: np.ndarray) -> np.ndarray:
        values = gather_rows(matrix, ids)
        return values if self.columns is None else values[:, self.columns]

    def times(self, x: np.ndarray) -> np.ndarray:
        """The products of rows x with the one matrix's rows."""
        if self.columns is not None:
            stored = np.empty_like(x)
            stored[:, self.columns] = x
            x = stored
        y: np.ndarray = run("linear", "cpu", linear, x, self.matrices[0])
        return y


class BlockWeight(Tensor):  # type: ignore[misc]
    """A weight of a model, of shape (N, K) or, for experts, (E, N, K), that looks like a matrix of `dtype`.

    `linear`, `mm` and `addmm` multiply by the blocks, `embedding` reads rows of them. Experts, rows and reordered columns are
    selected as blocks, and rows are joined so. Any other operation decodes all blocks for its duration, the gradient of a
    product's activations among them. Nothing writes into the blocks: an operation that would raises ValueError, and so does a
    copy to another device.
    """

    blocks: Blocks

    @staticmethod
    def __new__(cls, blocks: Blocks, dtype: torch.dtype) -> BlockWeight:
        with torch.inference_mode(False):  # torch counts the versions of a weight's views, which it cannot of those made in it
            weight: BlockWeight = Tensor._make_wrapper_subclass(cls, blocks.shape, dtype=dtype, device=torch.device("cpu"))
        weight.blocks = blocks
        return weight

    def __init__(self, blocks: Blocks, dtype: torch.dtype) -> None:
        pass  # all is done in __new__, as of any tensor

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # A product at inference needs nothing that torch does on the way to `__torch_dispatch__`, which takes longer than a
        # small product itself.
        if function is _LINEAR and not (kwargs or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or is_watched()):
            result = _linear(*args)
            if result is not NotImplemented:
                return result
        return torch._C._disabled_torch_function_impl(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if served := _SERVED.get(operation):
            result = served(*args, **kwargs)
            if result is not NotImplemented:
                return result
        _refuse_writes(operation, args, kwargs)
        result = operation.decompose(*args, **kwargs)  # into operations that may be served
        if result is not NotImplemented:
            return result
        return operation(*_decoded(args), **_decoded(kwargs))

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return sum(m.nbytes if isinstance(m, LinearPanels) else m.rows.nbytes for m in self.blocks.matrices)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{_CLASS}({tuple(self.shape)}, {self.blocks.format.name}, dtype={self.dtype})"

    def __deepcopy__(self, memo: dict[int, Any]) -> BlockWeight:
        copy = _restore(self.blocks, self.dtype, self.requires_grad, isinstance(self, nn.Parameter))
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return _restore, (self.blocks, self.dtype, self.requires_grad, isinstance(self, nn.Parameter))


def _restore(blocks: Blocks, dtype: torch.dtype, requires_grad: bool, is_parameter: bool) -> BlockWeight:
    weight = BlockWeight(blocks, dtype)
    restored: BlockWeight = nn.Parameter(weight, requires_grad) if is_parameter else weight.requires_grad_(requires_grad)
    return restored


def _in_rows(matrix: Matrix) -> PackedWeight:
    return matrix.rows() if isinstance(matrix, LinearPanels) else matrix


def _decoded(value: Any) -> Any:
    """An argument with values in place of the blocks in it."""
    if isinstance(value, BlockWeight):
        return value.blocks.values().to(value.dtype)
    if isinstance(value, dict):
        return {key: _decoded(each) for key, each in value.items()}
    return type(value)(_decoded(each) for each in value) if isinstance(value, list | tuple) else value


def _refuse_writes(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not operation._schema.is_mutable:
        return
    for i, described in enumerate(operation._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(described.name)
        written = described.alias_info is not None and described.alias_info.is_write
        if written and any(isinstance(each, BlockWeight) for each in (value if isinstance(value, list | tuple) else [value])):
            refuse(
                _CLASS, "operation", "one that does not write: weights in GGUF blocks are not trained", Phrase(str(operation))
            )


_SERVED: dict[Any, Callable[..., Any]] = {}


def _serves(*operations: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function that returns the result of operations with a `BlockWeight`, or NotImplemented."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        _SERVED.update(dict.fromkeys(operations, function))
        return function

    return enter


@_serves(_aten.detach.default, _aten.alias.default, _aten.clone.default, _aten.lift_fresh.default)
def _same(weight: BlockWeight, **_: object) -> BlockWeight:
    return BlockWeight(weight.blocks, weight.dtype)


@_serves(_aten._to_copy.default)
def _to_copy(weight: BlockWeight, *, dtype: torch.dtype | None = None, device: Any = None, **_: object) -> Any:
    if device is not None and torch.device(device).type != "cpu":
        refuse(_CLASS, "device", "the CPU, where its products are", Phrase(f"{device}; load the file without register_gguf"))
    dtype = weight.dtype if dtype is None else dtype
    return BlockWeight(weight.blocks, dtype) if dtype.is_floating_point else NotImplemented


@_serves(_aten.t.default)
def _t(weight: BlockWeight) -> Any:
    blocks = weight.blocks
    return NotImplemented if blocks.stacked else BlockWeight(replace(blocks, transposed=not blocks.transposed), weight.dtype)


@_serves(_aten.transpose.int)
def _transpose(weight: BlockWeight, first: int, second: int) -> Any:
    return NotImplemented if first % weight.dim() == second % weight.dim() else _t(weight)


@_serves(_aten.select.int)
def _select(weight: BlockWeight, axis: int, index: int) -> Any:
    blocks = weight.blocks
    if not blocks.stacked or axis % 3 or not -weight.shape[0] <= index < weight.shape[0]:
        return NotImplemented
    return BlockWeight(replace(blocks, matrices=(blocks.matrices[index],), stacked=False), weight.dtype)


@_serves(_aten.slice.Tensor)
def _slice(weight: BlockWeight, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    return _choose(weight, slice(start, end, step)) if axis % weight.dim() == 0 else NotImplemented


@_serves(_aten.index.Tensor)
def _index(weight: BlockWeight, indices: list[Tensor | None]) -> Any:
    ids = indices[-1]
    if ids is None or ids.dim() != 1 or ids.dtype != torch.int64 or any(each is not None for each in indices[:-1]):
        return NotImplemented
    if len(indices) == 1:
        return _choose(weight, ids.numpy())
    blocks = weight.blocks
    if len(indices) != weight.dim() or blocks.transposed:
        return NotImplemented
    if len(ids) != weight.shape[-1] or set(ids.tolist()) != set(range(len(ids))):
        return NotImplemented
    columns = ids.numpy() if blocks.columns is None else blocks.columns[ids.numpy()]
    return BlockWeight(replace(blocks, columns=columns), weight.dtype)


def _choose(weight: BlockWeight, ids: np.ndarray | slice) -> Any:
    """Some matrices of a stack, or some rows of a matrix."""
    blocks = weight.blocks
    chosen = np.arange(weight.shape[0])[ids]
    if blocks.transposed or not len(chosen):
        return NotImplemented
    if blocks.stacked:
        return BlockWeight(replace(blocks, matrices=tuple(blocks.matrices[i] for i in chosen)), weight.dtype)
    rows = _in_rows(blocks.matrices[0])
    return BlockWeight(replace(blocks, matrices=(replace(rows, rows=rows.rows[chosen]),)), weight.dtype)


@_serves(_aten.cat.default)
def _cat(weights: Sequence[Tensor], axis: int = 0) -> Any:
    first = weights[0]
    if not all(isinstance(each, BlockWeight) and each.dim() == first.dim() for each in weights):
        return NotImplemented
    parts = [each.blocks for each in weights]
    if any(part.columns is not None or part.transposed or part.format != parts[0].format for part in parts):
        return NotImplemented
    if axis % first.dim() != first.dim() - 2 or any(each.shape[-1] != first.shape[-1] for each in weights):
        return NotImplemented
    if any(len(part.matrices) != len(parts[0].matrices) for part in parts):
        return NotImplemented
    both = zip(*(part.matrices for part in parts), strict=True)
    matrices = tuple(PackedWeight.stack(*(_in_rows(matrix) for matrix in each)) for each in both)
    return BlockWeight(replace(parts[0], matrices=matrices), first.dtype)


@_serves(_aten.linear.default)
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not isinstance(weight, BlockWeight) or weight.dim() != 2 or weight.blocks.transposed:
        return NotImplemented
    return _product(x, weight, bias)


@_serves(_aten.mm.default)
def _mm(x: Tensor, weight: Tensor) -> Any:
    return _addmm(None, x, weight)


@_serves(_aten.addmm.default)
def _addmm(bias: Tensor | None, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    if not isinstance(weight, BlockWeight) or not weight.blocks.transposed or (beta, alpha) != (1, 1):
        return NotImplemented
    return _product(x, weight, bias)


def _product(x: Tensor, weight: BlockWeight, bias: Tensor | None) -> Any:
    """x times the rows of the one matrix."""
    inputs, outputs = weight.blocks.matrices[0].shape
    plain = type(x) in (Tensor, nn.Parameter) and x.is_cpu and not x.is_neg() and x.layout == torch.strided
    if not plain or x.dtype != weight.dtype or x.dtype not in _DTYPES or not x.dim() or x.shape[-1] != inputs or not x.numel():
        return NotImplemented  # torch's product with the values decides, or says what is wrong
    rows = borrow(x if x.dtype == torch.float32 else x.float()).reshape(-1, inputs)
    y = torch.from_numpy(weight.blocks.times(rows)).reshape(*x.shape[:-1], outputs)
    if bias is not None:
        y += bias.detach()
    return y.to(x.dtype)


@_serves(_aten.embedding.default)
def _embedding(weight: Tensor, ids: Tensor, *_: object) -> Any:
    if not isinstance(weight, BlockWeight) or weight.blocks.transposed or ids.device.type != "cpu":
        return NotImplemented
    flat = ids.reshape(-1).long().numpy()
    if flat.size and not 0 <= flat.min() <= flat.max() < weight.shape[0]:
        raise IndexError(f"embedding: ids must be in [0, {weight.shape[0]}); got {flat.min()} to {flat.max()}")
    values = torch.from_numpy(weight.blocks.gather(flat)) if flat.size else torch.empty(0, weight.shape[1])
    return values.to(weight.dtype).reshape(*ids.shape, weight.shape[1])
