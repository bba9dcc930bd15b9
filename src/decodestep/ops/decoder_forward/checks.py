"""Checks of a decoder's weights; an error begins with the class and the place of the weight."""

from __future__ import annotations

import numpy as np

from decodestep._base.checks import Phrase, is_finite, require, shape_text
from decodestep.weights.linear_panels import LinearPanels

CLASS = "DecoderWeights"


def require_cap(name: str, cap: float) -> None:
    require(is_finite(cap) and cap >= 0, CLASS, name, "a finite number >= 0", cap)


def require_vector(name: str, vector: np.ndarray | None, length: int) -> None:
    ok = isinstance(vector, np.ndarray) and vector.dtype == np.float32 and vector.shape == (length,)
    require(ok, CLASS, name, f"float32 of shape {length}", vector)


def require_bias(name: str, bias: np.ndarray | None, product: LinearPanels | None) -> None:
    if bias is not None:
        require(product is not None, CLASS, name, "None where there is no such product", bias)
        require_vector(name, bias, product.outputs if product else 0)


def require_panels(name: str, panels: LinearPanels, shape: tuple[int, int]) -> None:
    require(isinstance(panels, LinearPanels), CLASS, name, "a LinearPanels", panels)
    require(panels.shape == shape, CLASS, name, f"of shape {shape_text(shape)}", Phrase(shape_text(panels.shape)))
