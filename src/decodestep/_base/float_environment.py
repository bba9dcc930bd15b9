"""The floating-point environment of a thread: how it rounds, and whether it keeps subnormals."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decodestep._native import DefaultFloats


def default_floats() -> DefaultFloats:
    """Context manager: the calling thread rounds to nearest even and keeps subnormals, whatever a host has set.

    Kernels see to it themselves. This is for what Python and NumPy compute around them: numbers that are read from files, and
    those that are passed to kernels in another type.
    """
    from decodestep import _native  # here, so that a reference imports no kernel

    return _native.DefaultFloats()
