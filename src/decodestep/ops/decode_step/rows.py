"""Rows that the core keeps between steps, so that a step only needs their logits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.checks import require_dtype
from decodestep._base.profiling import timed
from decodestep._base.threads import threads
from decodestep.ops.decode_step.arguments import normalise_step
from decodestep.ops.decode_step.steps import HistoryPart, Step, While

_OP = "decode_step"
DTYPES = tuple(np.dtype(name) for name in ("float32", "float16", "bfloat16"))

# A row in the core; `ended` may be set to end it.
NativeRow = _native.Row

# Where a row's steps come from: steps that never change, steps that the core derives from the history, or a function
# (history) -> steps that it calls once per token.
Part = tuple[Step, ...] | HistoryPart | Callable[[Any], tuple[Step, ...]]

# Why a row ended in a step, by the code that the core returns; "" if it is running.
END_REASONS = ("", "eos", "stop", "length", "no_candidate")


def new_row(
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
) -> NativeRow:
    """Creates a row of the core, which reads and checks its parts once.

    history: the row's tokens; each step appends the token that it draws.
    greedy, seed, top_logprobs: as in `decode_step`.
    ends, stops: the tokens that end the row with the reasons "eos" and "stop". limit: how many tokens it draws at most, or
        None.

    Raises ValueError for a step outside the rules of `decode_step`.
    """
    given: dict[str, Any] = {
        "vocab": vocab,
        "history": history,
        "greedy": greedy,
        "seed": int(seed),
        "top_logprobs": None if top_logprobs is None else int(top_logprobs),
        "ends": list(ends),
        "stops": list(stops),
        "limit": None if limit is None else int(limit),
    }
    try:
        return NativeRow(parts=list(parts), **given)
    except (TypeError, ValueError):  # not valid, or valid in another form: as in `decode_step`
        return NativeRow(parts=[_normalise_part(part, vocab) for part in parts], **given)


def step_rows(
    logits: np.ndarray, rows: list[NativeRow], places: list[int] | None = None
) -> tuple[np.ndarray, bytes | None, Sequence[Any] | None]:
    """Draws a token for every row that has not ended, and appends it to the row's history.

    logits: (len(rows), V), float32, float16 or bfloat16; with places any number of rows.
    places: for each of rows, which row of the logits it draws from; None: the one of its own index.

    Returns (tokens, end_codes, logprobs).
    tokens: int64, one per row; -1 for a row that had ended before its token was drawn, or meanwhile by another thread, and for
        one without a candidate.
    end_codes: one per row, an index into `END_REASONS`, 0 if the row is running or had ended otherwise; None if no row has ever
        ended.
    logprobs: one item per row, the fields of a `TokenLogprobs` or None; None if no row reports any.
    Raises ValueError for logits of another dtype, shape or vocabulary, for places outside them, for a row that is given twice
    or is being stepped, MemoryError, and whatever a part's own function raises; no row has changed then.
    """
    # In the usual case, packed rows of a known dtype, this one test is all that Python does.
    if not (logits.flags.carray and logits.dtype in DTYPES):
        require_dtype(_OP, "logits", logits, DTYPES)
        logits = arrays.contiguous_rows(logits)
    return timed(_OP, "cpu", _native.step_rows)(logits, rows, threads() if len(rows) > 1 else 1, places)


def accept_tokens(rows: list[NativeRow], tokens: Sequence[int], vocab: int) -> bytes | None:
    """Appends tokens that were drawn elsewhere, for example on a GPU, to the histories of the rows that have not ended.

    tokens: one for each row, in [0, vocab), or -1 for none.

    Returns the end codes, as `step_rows` does. Raises ValueError, and no row has changed, for other tokens, a row of another
    vocabulary, or one that is given twice or is being stepped.
    """
    return _native.accept_tokens(rows, list(tokens), vocab)


def _normalise_part(part: Part, vocab: int) -> Part:
    if isinstance(part, While):
        return While(part.first, part.last, _normalise_steps(part.steps, vocab))
    if isinstance(part, HistoryPart) or callable(part):
        return part
    return _normalise_steps(part, vocab)


def _normalise_steps(steps: tuple[Step, ...], vocab: int) -> tuple[Step, ...]:
    return tuple(normalise_step(step, vocab) for step in steps)
