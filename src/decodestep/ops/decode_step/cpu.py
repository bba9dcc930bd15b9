"""Calls of the native core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from decodestep import _native
from decodestep._base.threads import threads
from decodestep.ops.decode_step.steps import Steps


def decode_step(
    logits: np.ndarray,
    steps: Sequence[Steps],
    greedy: Sequence[bool],
    seed: Sequence[int],
    position: Sequence[int],
    top_logprobs: Sequence[int | None],
    need_processed: bool,
) -> tuple[np.ndarray, np.ndarray | None, Sequence[Any] | None]:
    """(tokens, processed scores or None, log-probabilities per row or None where no row reports any).

    The core takes arguments as `arguments.normalise_arguments` returns them; greedy, seed, position and top_logprobs may also
    be one Python value for all rows. Raises ValueError, before it computes anything, for every other form.
    """
    count = threads() if len(steps) > 1 else 1
    return _native.decode_step(logits, steps, greedy, seed, position, top_logprobs, need_processed, count)


def step_rows(logits: np.ndarray, rows: list[_native.Row]) -> tuple[np.ndarray, bytes | None, Sequence[Any] | None]:
    """(tokens, end codes or None where no row has ever ended, log-probabilities as above); see `rows.step_rows`."""
    return _native.step_rows(logits, rows, threads() if len(rows) > 1 else 1)


def accept_tokens(rows: list[_native.Row], tokens: list[int], vocab: int) -> bytes | None:
    """The end codes; see `rows.accept_tokens`."""
    return _native.accept_tokens(rows, tokens, vocab)
