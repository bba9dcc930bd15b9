"""decode_step: logits to the next token of every row, each row with its own steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.arrays import Array
from decodestep._base.checks import refuse, require, require_dtype
from decodestep._base.devices import choose_triton
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run, timed
from decodestep.ops.decode_step import cpu, reference
from decodestep.ops.decode_step.arguments import normalise_arguments
from decodestep.ops.decode_step.steps import Steps

_OP = "decode_step"
_FLOATS = tuple(np.dtype(name) for name in ("float32", "float16", "bfloat16", "float64"))
_Columns = tuple[Sequence[Steps], Any, Any, Any, Any]  # steps, greedy, seed, position and top_logprobs as given


class TokenLogprobs(NamedTuple):
    """Natural logarithms of probabilities at one step: of the drawn token, and of the most likely tokens, best first.

    Attributes:
        raw: under the original logits.
        processed: under the scores after the steps; 0 if they left one token.
        top_raw: (token id, log-probability) pairs under the original logits, lowest id first among equals.
        top_processed: likewise under the scores after the steps.
    """

    raw: float
    processed: float
    top_raw: tuple[tuple[int, float], ...]
    top_processed: tuple[tuple[int, float], ...]


class DecodeStep(NamedTuple):
    """The result of `decode_step`, arrays in the kind of its logits.

    Attributes:
        tokens: int64 (B,), -1 for a row without a candidate.
        processed: (B, V), or None if not requested.
        logprobs: for each row a `TokenLogprobs`, or None if not requested or for a row without a candidate.
    """

    tokens: Array
    processed: Any
    logprobs: tuple[TokenLogprobs | None, ...]


def decode_step(
    logits: Array,
    steps: Sequence[Steps],
    *,
    greedy: bool | Sequence[bool] | Array = False,
    seed: int | Sequence[int] | Array = 0,
    position: int | Sequence[int] | Array = 0,
    top_logprobs: int | Sequence[int | None] | None = None,
    need_processed: bool = False,
    backend: str = "auto",
) -> DecodeStep:
    """Runs each row's steps on its logits, then draws its token from the resulting scores, or takes the maximum.

        for every row b:
            s = logits[b] as float32, NaN as -inf
            for step in steps[b]:  s = step(s)                        # see decodestep.steps
            token = first argmax of s[i]                              where greedy[b]
                    first argmax of s[i] + gumbel(seed[b], position[b], i) over s[i] > -inf     elsewhere

    Args:
        logits: (B, V), V >= 1, float32, float16 or bfloat16, any strides; also float64, for "reference" only, in float64.
            Not written to.
        steps: for each row a sequence of the values of `decodestep.steps`; their ids are int64 arrays of at most V
            ids in [0, V).
        greedy: bool, a scalar or (B,).
        seed: integers in [0, 2^64), a scalar or (B,).
        position: integers in [0, 2^32), a scalar or (B,): the index of the drawn token in its own sequence, prompt included.
        top_logprobs: how many of the most likely tokens to report, >= 0, or None for no log-probabilities; a scalar or (B,).
        need_processed: whether to return the scores after the steps: float32 (float64 for float64 logits), -inf where dropped.
        backend: "auto", "cpu", "triton" or "reference"; only "reference" takes float64. "triton" takes tensors on a GPU, and
            "auto" is "triton" for these. All give the same bits.

    Returns:
        A `DecodeStep`. A row that has no score above -inf, before or after its steps, has token -1 and no
        log-probabilities.

    Raises:
        ValueError: for an argument outside these rules.

    Notes:
        Probabilities, entropies and deviations are float64, over the tokens above -inf. A sum over a row adds token i to
        partial sum i mod 16, in vocabulary order, and folds these in halves; a running sum goes in the order of its ranking.
        +inf scores share the mass equally, at every temperature. A token depends on its row's logits, steps, seed and position
        alone.

    Source:
        The filters of transformers 5.23; the draw is the Gumbel-max trick on `decodestep.random`.
    """
    if need_processed is not False and need_processed is not True:
        refuse(_OP, "need_processed", "a bool", need_processed)
    if devices.goes_to_triton(backend, logits):
        return _on_device(logits, (steps, greedy, seed, position, top_logprobs), need_processed, backend)
    rows = logits if type(logits) is np.ndarray else arrays.view(_OP, "logits", logits)
    result = None
    if backend == "auto" or backend == "cpu":
        # The core checks every argument while it reads it, before it computes anything. To ask first whether it will take them
        # would visit every step of every row a second time, which costs as much as the kernel. What it does not take is valid
        # in another form or not valid: `normalise_arguments` tells which.
        try:
            result = timed(_OP, "cpu", cpu.decode_step)(rows, steps, greedy, seed, position, top_logprobs, need_processed)
        except (TypeError, ValueError):
            result = None
    if result is None:
        result = _normalise_and_run(rows, (steps, greedy, seed, position, top_logprobs), need_processed, backend)
    tokens, processed, logprobs = result
    if rows is not logits:
        tokens, processed = arrays.like(logits, tokens), None if processed is None else arrays.like(logits, processed)
    return DecodeStep(tokens, processed, (None,) * len(rows) if logprobs is None else _as_named(logprobs))


def _normalise_and_run(rows: np.ndarray, columns: _Columns, need_processed: bool, backend: str) -> tuple[Any, Any, Any]:
    _check_logits(rows, _FLOATS)
    obstacle = "has no float64" if rows.dtype == np.float64 else None
    backend = choose(_OP, backend, {"cpu": obstacle, "reference": None})
    normalised = normalise_arguments(rows, *columns)
    if backend == "cpu":
        return run(_OP, backend, cpu.decode_step, arrays.contiguous_rows(rows), *normalised, need_processed)
    return run(_OP, backend, reference.decode_step, rows, *normalised, need_processed)


def _on_device(logits: Any, columns: _Columns, need_processed: bool, backend: str) -> DecodeStep:
    choose_triton(_OP, backend, logits)
    from decodestep.ops.decode_step import triton

    rows = devices.outline(_OP, "logits", logits, logits.device)
    _check_logits(rows, _FLOATS[:3])
    steps, greedy, *others = columns
    normalised = normalise_arguments(rows, steps, devices.to_host(greedy), *others)
    tokens, processed, logprobs = devices.run_there(
        _OP, logits.device, triton.decode_step, logits.detach(), *normalised, need_processed
    )
    return DecodeStep(tokens, processed, (None,) * len(rows) if logprobs is None else _as_named(logprobs))


def _check_logits(rows: np.ndarray, dtypes: Collection[Any]) -> None:
    require_dtype(_OP, "logits", rows, dtypes)
    require(rows.ndim == 2 and rows.shape[1] >= 1, _OP, "logits", "of shape (B, V) with V >= 1", rows)


def _as_named(logprobs: Sequence[Any]) -> tuple[TokenLogprobs | None, ...]:
    return tuple(None if row is None else TokenLogprobs(*row) for row in logprobs)
