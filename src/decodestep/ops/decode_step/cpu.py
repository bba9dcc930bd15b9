"""The call of the native core."""

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
