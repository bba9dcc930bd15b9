"""The one table of tolerances: by dtype of a result, and of whole models. Integers are compared exactly."""

from __future__ import annotations

import numpy as np

# Relative to the largest magnitude of the expected result: a sum's error grows with its terms, not with its value.
TOLERANCE = {
    "float64": 1e-12,
    "float32": 2e-6,
    "float16": 2.0**-10,  # two units in the last place
    "bfloat16": 2.0**-7,
}
# Of the logits of a whole model in float32, relative to the largest of a row (`family_models.relative`).
LOGITS = 1e-4  # against transformers, whose sums have another order
REWRITTEN_LOGITS = 1e-5  # of the same weights from another file
LLAMA_CPP = 1e-2  # against llama.cpp, which rounds activations or the cache
# Of the scores after a chain of steps, relative and absolute.
CHAIN = {"float64": 1e-9, "float32": 2e-5}


def assert_close(actual: np.ndarray, expected: np.ndarray, terms: np.ndarray | None = None) -> None:
    """`actual` equals `expected`, of any dtype, within the tolerance of `actual`'s dtype; NaN and infinities match.

    terms: what to measure the error by instead, element for element: the sum of the magnitudes that were added up.
    """
    assert actual.shape == expected.shape
    name = actual.dtype.name
    if name not in TOLERANCE:
        np.testing.assert_array_equal(actual, expected)
        return
    expected = np.asarray(expected, np.float64)
    if terms is not None:
        assert (np.abs(actual - expected) <= TOLERANCE[name] * terms).all()
        return
    finite = np.abs(expected[np.isfinite(expected)])
    scale = finite.max() if finite.size else 0.0
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=TOLERANCE[name], atol=TOLERANCE[name] * scale)


def assert_same_chain(fused: np.ndarray, expected: np.ndarray) -> None:
    """The scores after a chain of fused steps equal those of its processors, called one by one."""
    bound = CHAIN[fused.dtype.name]
    np.testing.assert_allclose(fused, expected, rtol=bound, atol=bound)
