"""The weights of a model as a tree of JSON, and one run of bytes with the values of all arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from decodestep.decoding import layer_weights
from decodestep.weights.feed_forward import FeedForward
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format, PackedWeight

_ALIGNED = 64  # bytes: of arrays in the run, and of the run itself
_CLASSES = {
    each.__name__: each
    for each in (*vars(layer_weights).values(), FeedForward, LinearPanels, PackedWeight)
    if isinstance(each, type) and is_dataclass(each)
}
# What may be in a tree, for whoever asks whether one that was written before still says the same.
CLASSES = {name: [field.name for field in fields(each)] for name, each in _CLASSES.items()}


class TreeOf:
    """A value of dataclasses, tuples, arrays and plain values.

    tree: what JSON can hold of it. An object that occurs again is the same one when the tree is read.
    size: of the run, a multiple of 64.
    """

    def __init__(self, value: object) -> None:
        self.size = 0
        self._arrays: list[np.ndarray] = []
        self._numbers: dict[int, int] = {}  # of objects, by their identity
        self.tree = self._node(value)

    def values(self) -> Iterator[np.ndarray]:
        """The run: the bytes of the arrays, and zeros that fill lines."""
        for array in self._arrays:
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            yield np.zeros(-array.nbytes % _ALIGNED, np.uint8)

    def _node(self, value: object) -> Any:
        if isinstance(value, Format):
            return {"format": value.name}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, tuple):
            return [self._node(each) for each in value]
        if isinstance(value, np.ndarray):
            return self._array(value)
        number = len(self._numbers)
        if self._numbers.setdefault(id(value), number) != number:
            return {"same": self._numbers[id(value)]}
        name = type(value).__name__
        return {"class": name, "fields": {field: self._node(getattr(value, field)) for field in CLASSES[name]}}

    def _array(self, array: np.ndarray) -> dict[str, Any]:
        at = self.size
        self._arrays.append(array)
        self.size += array.nbytes + -array.nbytes % _ALIGNED
        return {"array": array.dtype.name, "shape": array.shape, "at": at}


def from_tree(tree: object, run: np.ndarray) -> Any:
    """The value of a tree that `TreeOf` made; its arrays are views of the run, uint8.

    Raises ValueError, LookupError or TypeError for another one.
    """
    return _Builder(run).value(tree)


class _Builder:
    def __init__(self, run: np.ndarray) -> None:
        self._run = run
        self._objects: list[Any] = []

    def value(self, node: Any) -> Any:
        if isinstance(node, list):
            return tuple(map(self.value, node))
        if not isinstance(node, dict):
            return node
        if "format" in node:
            return Format[node["format"]]
        if "array" in node:
            dtype, shape, at = np.dtype(node["array"]), node["shape"], node["at"]
            return self._run[at : at + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
        if "same" in node:
            return self._objects[node["same"]]
        number = len(self._objects)
        self._objects.append(None)
        self._objects[number] = _CLASSES[node["class"]](**{name: self.value(each) for name, each in node["fields"].items()})
        return self._objects[number]
