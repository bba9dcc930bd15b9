"""What calls of the native core are made of: random arrays that own their memory, weights, and objects of the core."""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import Any

import numpy as np

Arguments = dict[str, Any]
ROW_BYTES = [lambda k: 4 * k, lambda k: 2 * k, lambda k: 2 * k,
             lambda k: k // 32 * 18, lambda k: k // 32 * 20, lambda k: k // 32 * 34,
             lambda k: k // 256 * 144, lambda k: k // 256 * 176, lambda k: k // 256 * 210,
             lambda k: k // 32 * 22, lambda k: k // 32 * 24, lambda k: k // 32 * 18, lambda k: k // 256 * 136,
             lambda k: k // 32 * 17, lambda k: k // 256 * 84, lambda k: k // 256 * 110]  # fmt: skip
# Inputs of a block of panels and its bytes for 32 outputs, by format.
PANEL_BLOCKS = ((32, 4096), (32, 2048), (32, 2048), (32, 576), (32, 640), (32, 1088), (256, 4736), (256, 5760), (256, 6720),
                (32, 704), (32, 768), (32, 576), (256, 4416), (32, 544), (256, 2688), (256, 3648))  # fmt: skip


def panel_bytes(number: int, inputs: int, outputs: int) -> int:
    block, size = PANEL_BLOCKS[number]
    return -(-inputs // block) * -(-outputs // 32) * size


def formats_of(inputs: int) -> list[int]:
    """The formats that rows of this many inputs can have."""
    return [n for n, (block, _) in enumerate(PANEL_BLOCKS) if n < 3 or inputs % block == 0]


class Held:
    """An object of the core, by its class and arguments: the core in use makes it."""

    def __init__(self, name: str, arguments: Arguments) -> None:
        self.name, self.arguments = name, arguments


def built(native: ModuleType, value: Any) -> Any:
    if isinstance(value, Held):
        return getattr(native, value.name)(**{key: built(native, argument) for key, argument in value.arguments.items()})
    if isinstance(value, tuple) and any(isinstance(item, Held) for item in value):  # a step
        return type(value)(*(built(native, item) for item in value))
    if type(value) is list and any(isinstance(item, (Held, tuple)) for item in value):
        return [built(native, item) for item in value]
    return value


class Vanishing:
    """An array that empties a list while it is read, as any Python code may that a conversion calls."""

    def __init__(self, array: np.ndarray, items: list[Any]) -> None:
        self.array, self.items = array, items

    def __dlpack__(self, **options: Any) -> Any:
        self.items.clear()
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Temporary:
    """An array that exports memory of its own with each conversion, which is spoilt when the export is released."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.memories = array, []

    def __dlpack__(self, **options: Any) -> Any:
        memory = bytearray(self.array.tobytes())
        self.memories.append(memory)
        export = np.frombuffer(memory, self.array.dtype).reshape(self.array.shape)
        weakref.finalize(export, memory.__setitem__, slice(None), b"\xff" * len(memory))
        return export.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Source:
    """The random choices of one call."""

    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one_of(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def size(self, most: int = 5) -> int:
        return int(self.one_of(0, 1, 1, 2, 3, *range(most + 1)))

    def width(self) -> int:
        return int(self.one_of(0, 1, 2, 4, 15, 16, 17, 31, 32, 33, 64, 100, 256))

    def threads(self) -> int:
        return int(self.one_of(1, 1, 2, 3))

    def array(self, *shape: int, dtype: Any = np.float32) -> np.ndarray:
        """Memory of its own and of just this size, so that one step beyond it is seen."""
        array = np.empty(shape, dtype)
        if array.dtype.kind == "f":
            array[...] = self.rng.normal(size=shape)
            if array.size and self.one_of(*[False] * 9, True):
                array.flat[int(self.rng.integers(array.size))] = self.one_of(np.nan, np.inf, -np.inf, 1e38, 1e-45)
        else:
            info = np.iinfo(dtype)
            array[...] = self.rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        return array

    def ids(self, *shape: int, end: int, start: int = 0) -> np.ndarray:
        return self.rng.integers(start, max(end, start + 1), shape, np.int64)

    def rows(self, array: np.ndarray, *, ascending: bool = False) -> np.ndarray:
        """The matrix itself, or its rows further apart, in the other direction, or all the same."""
        how = self.one_of("same", "same", "apart", "turned", "repeated")
        if how == "apart":
            space = np.zeros((array.shape[0], array.shape[1] + 3), array.dtype)
            space[:, 1:-2] = array
            return space[:, 1:-2]
        if how == "turned" and not ascending:
            return array[::-1]
        if how == "repeated" and array.shape[0]:
            return np.lib.stride_tricks.as_strided(array, array.shape, (0, array.strides[1]))
        return array

    def weight(self, inputs: int, outputs: int) -> tuple[np.ndarray, int]:
        number = int(self.one_of(*formats_of(inputs)))
        rows = self.array(outputs, ROW_BYTES[number](inputs), dtype=np.uint8)
        return self.rows(rows, ascending=True), number
