"""A weight on a device: the rows of a dense matrix as one torch tensor, for Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decodestep._base import arrays
from decodestep._base.checks import Words, require
from decodestep._base.extras import extra
from decodestep.weights.packed import DENSE_DTYPES, PackedWeight

if TYPE_CHECKING:
    import torch

_CLASS = "DeviceRows"
_DTYPES = {format_: dtype.name for format_, dtype in DENSE_DTYPES.items()}  # as torch calls them too


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """A (K, N) weight as a torch tensor of N rows of K values, as torch's Linear has it; shared, not copied.

    values: (N, K), float32, float16 or bfloat16, any strides, on any device.
    Raises ValueError for anything else.
    """

    values: torch.Tensor

    def __post_init__(self) -> None:
        ok = arrays.is_torch(self.values) and self.values.ndim == 2
        ok = ok and str(self.values.dtype).removeprefix("torch.") in _DTYPES.values()
        rule = "a torch matrix of float32, float16 or bfloat16"
        require(ok, _CLASS, "values", rule, self.values if arrays.is_array(self.values) else Words(type(self.values).__name__))

    @classmethod
    def of(cls, weight: PackedWeight, device: torch.device | str) -> DeviceRows:
        """A copy of a dense weight. Raises ValueError for a weight in blocks, which no device kernel reads."""
        require(weight.format in _DTYPES, _CLASS, "weight", "of format F32, F16 or BF16", Words(weight.format.name))
        with extra("gpu"):
            import torch  # of a device that is given by name it may be the first use
        bytes_of = torch.from_numpy(weight.rows.copy())
        values = bytes_of.view(getattr(torch, _DTYPES[weight.format])).reshape(len(weight.rows), weight.inputs)
        return cls(values.to(device))

    @property
    def shape(self) -> tuple[int, int]:
        """(K, N), the shape of the matrix."""
        return self.values.shape[1], self.values.shape[0]

    @property
    def nbytes(self) -> int:
        return int(self.values.numel() * self.values.element_size())
