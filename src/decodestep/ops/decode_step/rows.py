"""Rows that the core keeps from one step to the next, so that a step hands over their logits and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.checks import require_dtype
from decodestep._base.dispatch import run, timed
from decodestep.ops.decode_step import cpu
from decodestep.ops.decode_step.arguments import usual_step
from decodestep.ops.decode_step.steps import Following, Step, While

_OP = "decode_step"
_READ = tuple(np.dtype(name) for name in ("float32", "float16", "bfloat16"))

# Steps, what follows from the history by itself, or a function from the history to steps.
Part = tuple[Step, ...] | Following | Callable[[Any], tuple[Step, ...]]

# How a row goes on, by the core's numbers.
ENDS = ("", "eos", "stop", "length", "no_candidate")


def kept_row(
    vocab: int,
    history: _native.History,
    parts: Sequence[Part],
    *,
    greedy: bool,
    seed: int,
    top_logprobs: int | None,
    ends: Collection[int],
    stops: Collection[int],
    limit: int | None,
) -> _native.Row:
    """A row of the core: what `decode_step` takes for it, read once, and how it ends.

    ends, stops: the tokens at which it ends as "eos" and as "stop". limit: how many tokens it draws at most, or None.
    """
    plain = [_plain(part, vocab) for part in parts]
    wanted = None if top_logprobs is None else int(top_logprobs)
    return _native.Row(
        vocab, history, plain, greedy, int(seed), wanted, list(ends), list(stops), None if limit is None else int(limit)
    )


def step_rows(logits: np.ndarray, rows: list[_native.Row]) -> tuple[np.ndarray, bytes | None, Sequence[Any] | None]:
    """Draws a token for every row, and notes it in the row's history; nothing is done for rows that have ended.

    Returns the tokens, int64, -1 for a row without one; the numbers of `ENDS`, None where no row has ended now or before,
    0 for those that had; and log-probabilities for each row or None, None where no row has any.
    """
    try:
        return timed(_OP, "cpu", cpu.step_rows)(logits, rows)
    except ValueError:  # the core refuses, before it writes, all but its types in rows without gaps
        require_dtype(_OP, "logits", logits, _READ)
        return run(_OP, "cpu", cpu.step_rows, arrays.contiguous_rows(logits), rows)


def _plain(part: Part, vocab: int) -> Part:
    if isinstance(part, While):
        return While(part.first, part.last, _plain_steps(part.steps, vocab))
    if isinstance(part, Following) or callable(part):
        return part
    return _plain_steps(part, vocab)


def _plain_steps(steps: tuple[Step, ...], vocab: int) -> tuple[Step, ...]:
    return tuple(usual_step(step, vocab) for step in steps)
