"""swiglu as its formula."""

from __future__ import annotations

import numpy as np


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):  # exp(-gate) = inf gives the right limit, zero
        return gate / (1 + np.exp(-gate)) * up
