"""decode_step in the native core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from decodestep import _native
from decodestep._base import dispatch
from decodestep.ops.decode_step.steps import Steps


def decode_step(
    logits: np.ndarray,
    steps: Sequence[Steps],
    greedy: Any,
    seed: Any,
    position: Any,
    top_logprobs: Any,
    need_processed: bool,
) -> tuple[np.ndarray, np.ndarray | None, Sequence[Any] | None]:
    """Tokens, processed scores or None, and log-probabilities or None where no row wants them.

    ValueError where an argument is not in the form that the core reads.
    """
    threads = dispatch.threads() if len(steps) > 1 else 1
    made: tuple[np.ndarray, np.ndarray | None, Sequence[Any] | None] = _native.decode_step(
        logits, steps, greedy, seed, position, top_logprobs, need_processed, threads
    )
    return made


def step_rows(logits: np.ndarray, rows: list[_native.Row]) -> tuple[np.ndarray, bytes | None, Sequence[Any] | None]:
    """Tokens, how each row ends or None where all go on, and log-probabilities, as `decode_step`; see `rows`.

    ValueError where the logits are not in the form that the core reads.
    """
    made: tuple[np.ndarray, bytes | None, Sequence[Any] | None] = _native.step_rows(
        logits, rows, dispatch.threads() if len(rows) > 1 else 1
    )
    return made
