"""decode_step in the native core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from decodestep import _native, arrays, dispatch
from decodestep.ops.decode_step.steps import Steps

_NUMBERS = {np.dtype(np.float32): 0, np.dtype(ml_dtypes.bfloat16): 1, np.dtype(np.float16): 2}  # as csrc/decode_step.h has them


def decode_step(
    logits: np.ndarray,
    steps: Sequence[Steps],
    greedy: Any,
    seed: Any,
    position: Any,
    top_logprobs: Any,
    need_processed: bool,
) -> tuple[np.ndarray, np.ndarray | None, Sequence[Any] | None]:
    """Tokens, processed scores, and log-probabilities or None where no row wants them.

    ValueError where an argument is not in the form that the core reads.
    """
    rows = arrays.packed_rows(logits)
    number = _NUMBERS[rows.dtype]
    batch = len(rows)
    tokens = np.empty(batch, np.int64)
    processed = np.empty(rows.shape, np.float32) if need_processed else None
    logprobs = _native.decode_step(
        rows if number == 0 else rows.view(np.uint16),
        number,
        steps,
        greedy,
        seed,
        position,
        top_logprobs,
        tokens,
        processed,
        dispatch.threads() if batch > 1 else 1,
    )
    return tokens, processed, logprobs
