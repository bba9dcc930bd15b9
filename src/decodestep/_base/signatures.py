"""The parameters of callers' functions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any


def read_signature(function: Callable[..., Any]) -> inspect.Signature:
    """`inspect.signature`, also where annotations have names that are there for type checkers alone.

    Python 3.14 evaluates annotations when they are read, which would be here.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)
