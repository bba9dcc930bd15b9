"""Sequences for the goldens of the gated delta rule, and how results are compared with theirs."""

from __future__ import annotations

import numpy as np
import torch

REPOSITORY = "mirror-cann/ops-transformer", "3a280bcc34d8716c477c5506f3e507c1d0ea3214"
# Heads of keys and of values, their widths, and the rows' numbers of tokens.
SIZES = [(1, 1, 16, 16, (1,)), (2, 6, 24, 40, (3, 1, 8)), (4, 8, 128, 128, (2, 5)), (8, 32, 7, 18, (2, 2))]
Sizes = tuple[int, int, int, int, tuple[int, ...]]


def inputs_of(sizes: Sizes, rng: np.random.Generator) -> list[np.ndarray]:
    """q, k, v, beta, g: normalised queries and keys, values up to 10, and decays from 0 to -1, as in the vendor's cases."""
    keys, heads, rows, columns, lengths = sizes
    tokens = sum(lengths)
    q, k = (rng.uniform(-1, 1, (tokens, keys, rows)) for _ in range(2))
    q, k = (each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (q, k))
    beta, g = (rng.uniform(*bounds, (tokens, heads)) for bounds in ((0, 1), (-1, 0)))
    v = rng.uniform(-10, 10, (tokens, heads, columns))
    return [each.astype(np.float32) for each in (q, k, v, beta, g)]


def differences(bound: float, **pairs: tuple[np.ndarray, np.ndarray | torch.Tensor]) -> str:
    """What is further from the golden's than a bound times its largest value; "" if nothing is."""
    found = []
    for name, (ours, theirs) in pairs.items():
        expected = np.asarray(theirs)
        if ours.shape != expected.shape:
            found.append(f"{name} of shape {ours.shape} where the golden's is {expected.shape}")
        elif (far := np.abs(ours - expected).max() / np.abs(expected).max()) > bound:
            found.append(f"{name} by {far:.1e} of the largest")
    return "; ".join(found)
