"""A digest of a decoder's weights, by which a file of cached pages is known to be of the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import numpy as np

from decodestep.files.checked_bytes import Digest


def fingerprint(value: object) -> str:
    """A digest, in hexadecimal digits, of arrays and plain values in tuples and dataclasses, at the speed of memory."""
    digest = Digest()
    for leaf in _leaves(value, {}):
        if isinstance(leaf, np.ndarray):
            digest.add(np.require(leaf, requirements=["C", "W"]).reshape(-1).view(np.uint8))
        else:
            digest.add(np.frombuffer(bytearray(f"{leaf}\n".encode()), np.uint8))
    return digest.value().hex()


def _leaves(value: object, numbers: dict[int, int]) -> Iterator[np.ndarray | str]:
    """The arrays, each after a text that says what it is; of everything else the texts.

    numbers: of the arrays so far, by their identity; one that occurs again is its number.
    """
    if isinstance(value, np.ndarray):
        number = len(numbers)
        if numbers.setdefault(id(value), number) != number:
            yield f"array {numbers[id(value)]}"
            return
        yield f"{value.dtype.name} {value.shape}"
        yield value
    elif isinstance(value, tuple):
        yield f"{len(value)} values"
        for each in value:
            yield from _leaves(each, numbers)
    elif is_dataclass(value):
        yield type(value).__name__
        for field in fields(value):
            yield from _leaves(getattr(value, field.name), numbers)
    elif value is None or isinstance(value, (bool, int, float, str)):
        yield repr(value)
    else:
        raise TypeError(f"fingerprint: values must be arrays, plain values, tuples and dataclasses; got {type(value).__name__}")
