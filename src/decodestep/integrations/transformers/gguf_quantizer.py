"""The quantiser with which transformers loads a GGUF file on the CPU and keeps its blocks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.gguf import GgufHeader, get_gguf_conversion_mapping, is_gguf_arch_supported
from transformers.integrations.gguf.reader import TensorInfo
from transformers.quantizers.quantizer_gguf import GgufHfQuantizer
from transformers.utils.quantization_config import GgufConfig

from decodestep._base.checks import refuse
from decodestep.errors import ModelError
from decodestep.files.gguf_file import GgufFile, Tensor
from decodestep.files.tensor_values import can_be_read, read_float32
from decodestep.integrations.transformers import grouped_attention
from decodestep.integrations.transformers.block_weight import Blocks, BlockWeight
from decodestep.integrations.transformers.gguf_placement import Placement, Rows
from decodestep.integrations.transformers.latent_layer import grow_in_place
from decodestep.weights.file_weight import FilePart, FileWeight
from decodestep.weights.packed import DENSE_FORMATS, Format, PackedWeight

_OP = "register_gguf"
_LOG = logging.getLogger(__name__)
_FORMATS = {format_.name: format_ for format_ in Format if format_ not in DENSE_FORMATS}
_DENSE_TYPES = frozenset({"F64", "I8", "I16", "I32", "I64"} | {format_.name for format_ in DENSE_FORMATS})
_LISTED = 3  # names in a warning


class BlockQuantizer(GgufHfQuantizer):  # type: ignore[misc]
    """Fills a model's parameters with `BlockWeight`s where the file has blocks that there are products for.

    transformers decides what becomes of each tensor. Of its newer architectures it converts what `get_state_dict` gives it, and
    `BlockWeight`s follow its conversions; of the older ones `Placement` asks its loader.
    """

    def __init__(self, quantization_config: GgufConfig, *, quantises_activations: bool, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self._quantises_activations = quantises_activations

    @property
    def is_compileable(self) -> bool:
        return False

    def validate_environment(self, *args: object, **kwargs: object) -> None:
        """transformers' own looks for kernels of devices."""

    def update_device_map(self, device_map: Any) -> Any:
        if isinstance(device_map, str):  # how to spread a model over devices
            return {"": "cpu"}
        for place in (device_map or {}).values():
            if str(place) != "cpu":
                refuse(_OP, "device_map", "of the CPU; undo the registration for other devices", device_map)
        return device_map

    def read_header(self, gguf_file: str) -> None:
        self._file = GgufFile(Path(gguf_file))
        architecture = self._file.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise ModelError(f"{gguf_file}: general.architecture is {architecture!r}")
        self.supported = is_gguf_arch_supported(architecture)
        infos = (TensorInfo(t.name, t.shape, int(t.type), t.offset, t.nbytes) for t in self._file.tensors.values())
        self.header = GgufHeader(gguf_file, architecture, tuple(infos), 0)

    def get_state_dict(self, checkpoint_file: str, model: PreTrainedModel) -> dict[str, Any]:
        self._check_types()
        if not self.supported:
            return self._placed(Placement(self._file, model))
        self._warn_of_decoded(t for t in self._file.tensors.values() if _is_in_blocks(t) and _format(t) is None)
        return {name: _Later(partial(self._read, tensor)) for name, tensor in self._file.tensors.items()}

    def _check_types(self) -> None:
        for tensor in self._file.tensors.values():
            if _format(tensor) is None and not can_be_read(tensor.type):
                raise ModelError(f"{tensor.path}: tensor {tensor.name} is of {tensor.type.name}, which cannot be decoded")

    def _read(self, tensor: Tensor) -> torch.Tensor:
        if _format(tensor) is None:
            return torch.from_numpy(read_float32(tensor))
        return self._weight(_rows(tensor), tensor.shape[:-1])

    def _weight(self, rows: PackedWeight, shape: tuple[int, ...], *, transposed: bool = False) -> BlockWeight:
        """shape: of the parameter's rows."""
        parts = np.split(rows.rows, shape[0]) if len(shape) == 2 else [rows.rows]
        matrices = tuple(PackedWeight(part, rows.format, rows.inputs) for part in parts)
        return BlockWeight(Blocks(matrices, stacked=len(shape) == 2, transposed=transposed), self.dtype)

    def _placed(self, placement: Placement) -> dict[str, Any]:
        """The tensors by the names of parameters; those of one parameter together."""
        values: dict[str, torch.Tensor] = {}
        parameters: dict[str, list[tuple[Tensor, Rows]]] = {}
        others: list[Tensor] = []
        for tensor in self._file.tensors.values():
            placed = placement.rows(tensor) if _format(tensor) is not None else None
            if placed is None:
                others.append(tensor)
                continue
            for rows in placed:
                parameters.setdefault(rows.name, []).append((tensor, rows))
        for name, parts in list(parameters.items()):
            if len({(_format(tensor), tensor.shape[-1]) for tensor, _ in parts}) > 1:  # gate and up of different types
                others += [tensor for tensor, _ in parameters.pop(name)]
        self._warn_of_decoded(tensor for tensor in others if _is_in_blocks(tensor))
        for tensor in others:
            placement.values(tensor, values)
        return values | {name: _Later(partial(self._assembled, parts)) for name, parts in parameters.items()}

    def _assembled(self, parts: list[tuple[Tensor, Rows]]) -> BlockWeight:
        _, first = parts[0]
        numbers = np.arange(first.order.size).reshape(first.order.shape)
        if len(parts) == 1 and np.array_equal(first.order, numbers):
            return self._weight(_rows(parts[0][0]), first.order.shape, transposed=first.transposed)
        rows: PackedWeight | None = None
        for tensor, (_, order, _) in parts:
            stored = _rows(tensor)
            if rows is None:
                rows = PackedWeight(np.zeros((order.size, stored.rows.shape[1]), np.uint8), stored.format, stored.inputs)
            there = order.reshape(-1) >= 0
            rows.rows[there] = stored.rows[order.reshape(-1)[there]]
        assert rows is not None
        return self._weight(rows, first.order.shape, transposed=first.transposed)

    def _warn_of_decoded(self, tensors: Iterable[Tensor]) -> None:
        names = [f"{tensor.name} ({tensor.type.name})" for tensor in tensors]
        if names:
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            listed = ", ".join(names[:_LISTED])
            _LOG.warning("%s: without products for its blocks, decoded to floats: %s%s", self._file.path, listed, more)

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs: object) -> None:
        if self.supported:
            self.mapping = get_gguf_conversion_mapping(self.header.architecture, model.config)

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: object) -> PreTrainedModel:
        weights = [parameter for parameter in model.parameters() if isinstance(parameter, BlockWeight)]
        for weight in weights:
            weight.requires_grad_(False)
            if self._quantises_activations:
                weight.blocks = weight.blocks.packed()
        if any(weight.blocks.stacked for weight in weights):
            model.set_experts_implementation("eager")  # expert by expert; the others would decode all at each call
        for part in model.modules():
            if isinstance(part, PreTrainedModel):
                grouped_attention.use_in(part)
                part.register_forward_pre_hook(grow_in_place, with_kwargs=True)
        del self._file  # which cannot be copied with the model
        model._weight_conversions = None  # from the names of the file, as transformers' own quantiser
        return model

    def _dequantize(self, model: PreTrainedModel, dtype: torch.dtype | None = None) -> PreTrainedModel:
        decoded: dict[int, nn.Parameter] = {}  # by the weight's id, since weights may be tied
        for module in model.modules():
            for name, weight in module._parameters.items():
                if isinstance(weight, BlockWeight):
                    if id(weight) not in decoded:
                        values = weight.blocks.values().to(weight.dtype if dtype is None else dtype)
                        decoded[id(weight)] = nn.Parameter(values.contiguous())
                    module._parameters[name] = decoded[id(weight)]
        return model


class _Later:
    """A tensor of a state dict that is read when transformers takes its values."""

    def __init__(self, read: Callable[[], torch.Tensor]) -> None:
        self._read = read

    def __getitem__(self, _: object) -> torch.Tensor:
        return self._read()

    def is_floating_point(self) -> bool:
        return True


def _is_in_blocks(tensor: Tensor) -> bool:
    return tensor.type.name not in _DENSE_TYPES


def _format(tensor: Tensor) -> Format | None:
    """The format of a tensor whose blocks can be kept."""
    return _FORMATS.get(tensor.type.name) if len(tensor.shape) in (2, 3) else None


def _rows(tensor: Tensor) -> PackedWeight:
    """Raises FileWeightError for scales that are not finite, or a file that has become shorter."""
    count = math.prod(tensor.shape[:-1])
    part = FilePart(*tensor.place, count, f"{tensor.path}: tensor {tensor.name}")
    return FileWeight([part], _FORMATS[tensor.type.name], tensor.shape[-1], tensor.nbytes // count).whole()
