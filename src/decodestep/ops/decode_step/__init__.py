"""decode_step: logits to the next token of every row, each row with its own steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from decodestep import arrays
from decodestep.checks import is_int, is_real, refuse, require, require_dtype
from decodestep.dispatch import choose, run
from decodestep.ops.decode_step import cpu, reference
from decodestep.ops.decode_step import steps as kinds
from decodestep.ops.decode_step.steps import PATCHES, Step, Steps

_OP = "decode_step"
_FLOATS = tuple(np.dtype(name) for name in ("float32", "float16", "bfloat16", "float64"))


class TokenLogprobs(NamedTuple):
    """Natural logarithms of probabilities at one step: of the token drawn, and of the most likely ones, best first.

    raw: from the logits as they came; processed: from what the steps left, 0 where it left one token.
    top_raw, top_processed: (token id, log-probability) pairs, lowest id first among equals.
    """

    raw: float
    processed: float
    top_raw: tuple[tuple[int, float], ...]
    top_processed: tuple[tuple[int, float], ...]


class DecodeStep(NamedTuple):
    """tokens: int64 (B,). processed: (B, V) or None. logprobs: for each row a `TokenLogprobs` or None."""

    tokens: Any
    processed: Any
    logprobs: tuple[TokenLogprobs | None, ...]


def decode_step(
    logits: Any,
    steps: Sequence[Steps],
    *,
    greedy: Any = False,
    seed: Any = 0,
    position: Any = 0,
    top_logprobs: Sequence[int | None] | None = None,
    need_processed: bool = False,
    backend: str = "auto",
) -> DecodeStep:
    """Runs every row's own steps over its logits and draws its token from what they leave, or takes the first maximum.

        for every row b:
            s = logits[b] as float32, NaN as -inf
            for step in steps[b]:  s = step(s)                        # see decodestep.ops.decode_step.steps
            token = first argmax of s[i]                              where greedy[b]
                    first argmax of s[i] + gumbel(seed[b], position[b], i) over s[i] > -inf     elsewhere

    logits: (B, V), V >= 1, float32, float16 or bfloat16 (float64 for the oracle's own sake). Not written to.
    steps: for each row a sequence of the values of `decodestep.ops.decode_step.steps`, ids being distinct int64 in [0, V).
    greedy: bool, a scalar or (B,). seed: integers in [0, 2^64). position: integers in [0, 2^32), the index of the token drawn
        in its own sequence. Scalars or (B,).
    top_logprobs: None, or for each row how many of the most likely tokens to report, >= 0; None for no log-probabilities.
    need_processed: whether to return what the steps leave: float32 (float64 for float64 logits), -inf where dropped.
    backend: "auto", "cpu" or "reference"; "cpu" has no float64.

    Returns a `DecodeStep`, arrays in the kind of logits. A row that its steps leave empty, or whose logits were all -inf or
    NaN, has token -1 and no log-probabilities.
    Raises ValueError for an argument outside these rules.

    Notes: probabilities, entropies and deviations are float64, over the tokens above -inf. A sum over a row adds token i to
    partial sum i mod 16, in vocabulary order, and folds these in halves; a running sum goes in the order of its ranking. +inf
    scores share the mass equally; a temperature leaves them alone. A token depends on its row's logits, steps, seed and
    position alone. Source: the filters of transformers 5.23; the draw is the Gumbel-max trick on `decodestep.random`.
    """
    rows = arrays.view(_OP, "logits", logits)
    require_dtype(_OP, "logits", rows, _FLOATS)
    require(rows.ndim == 2 and rows.shape[1] >= 1, _OP, "logits", "of shape (B, V) with V >= 1", rows)
    wide = "has no float64" if rows.dtype == np.float64 else None
    backend = choose(_OP, backend, {"cpu": wide, "reference": None})
    arguments = (rows, steps, greedy, seed, position, top_logprobs)
    if backend == "cpu":
        result = run(_OP, backend, _on_core, *arguments, need_processed)
    else:
        result = run(_OP, backend, reference.decode_step, rows, *_usual(*arguments), need_processed)
    tokens, processed, logprobs = result
    return DecodeStep(
        arrays.like(logits, tokens),
        None if processed is None else arrays.like(logits, processed),
        (None,) * len(rows) if logprobs is None else tuple(None if row is None else TokenLogprobs(*row) for row in logprobs),
    )


def _on_core(
    rows: np.ndarray, steps: Any, greedy: Any, seed: Any, position: Any, wanted: Any, need_processed: bool
) -> tuple[Any, Any, Any]:
    try:  # the core reads arguments in their usual forms, and refuses all others before it writes
        return cpu.decode_step(rows, steps, greedy, seed, position, wanted, need_processed)
    except ValueError:
        return cpu.decode_step(rows, *_usual(rows, steps, greedy, seed, position, wanted), need_processed)


def _usual(
    rows: np.ndarray, steps: Sequence[Steps], greedy: Any, seed: Any, position: Any, top_logprobs: Sequence[int | None] | None
) -> tuple[list[list[Step]], list[bool], list[int], list[int], list[int | None]]:
    """The arguments, checked, in the one form that both backends read: lists, one item a row, of plain numbers."""
    batch, vocab = rows.shape
    require(len(steps) == batch, _OP, "steps", f"given for {batch} rows", f"{len(steps)} rows")
    plain = [[_usual_step(step, vocab) for step in row] for row in steps]
    flags = np.broadcast_to(np.asarray(greedy), (batch,))
    require(flags.dtype == np.bool_, _OP, "greedy", f"bool, a scalar or {batch}", greedy)
    wanted = [None] * batch if top_logprobs is None else list(top_logprobs)
    ok = len(wanted) == batch and all(n is None or (is_int(n) and n >= 0) for n in wanted)
    require(ok, _OP, "top_logprobs", f"None or an integer >= 0 for each of {batch} rows", top_logprobs)
    seeds, positions = _integers("seed", seed, batch, 2**64), _integers("position", position, batch, 2**32)
    return plain, flags.tolist(), seeds, positions, [None if n is None else int(n) for n in wanted]


def _integers(name: str, value: Any, batch: int, bound: int) -> list[int]:
    rule = f"integers in [0, 2^{bound.bit_length() - 1}), a scalar or {batch}"
    given = value.tolist() if arrays.is_array(value) else value
    column = list(given) if isinstance(given, (list, tuple)) else [given] * batch
    if len(column) != batch or not all(is_int(v) and 0 <= v < bound for v in column):
        refuse(_OP, name, rule, value)
    return [int(v) for v in column]


def _usual_step(step: Step, vocab: int) -> Step:
    _check_step(step, vocab)
    return type(step)(*(_plain(value) for value in step))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value, value.dtype if value.dtype.kind == "i" else np.float64)
    return value.item() if isinstance(value, np.generic) else value


def _check_step(step: Step, vocab: int) -> None:
    legal = _LEGAL.get(type(step))
    require(legal is not None, _OP, "steps", "of the types in decodestep.ops.decode_step.steps", type(step).__name__)
    if isinstance(step, PATCHES):
        ids = step.ids
        ok = isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype == np.int64
        require(
            ok and len(ids) <= vocab and (not ids.size or (ids.min() >= 0 and ids.max() < vocab)),
            _OP,
            "steps",
            f"about distinct int64 ids in [0, {vocab})",
            step,
        )
    for name, (rule, check) in (legal or {}).items():
        require(check(getattr(step, name)), _OP, f"{type(step).__name__}.{name}", rule, getattr(step, name))
    if isinstance(step, kinds.Add):
        require(step.values.shape == step.ids.shape, _OP, "Add.values", "one for each id", step.values)


def _finite(value: Any) -> bool:
    return is_real(value) and math.isfinite(value)


_POSITIVE = ("a finite number > 0", lambda v: _finite(v) and v > 0)
_SHARE = ("in [0, 1]", lambda v: is_real(v) and 0 <= v <= 1)
_INSIDE = ("in (0, 1)", lambda v: is_real(v) and 0 < v < 1)
_COUNT = ("an integer >= 1", lambda v: is_int(v) and v >= 1)
_LEGAL: dict[type, dict[str, Any]] = {
    kinds.Penalise: {"factor": _POSITIVE},
    kinds.Add: {"values": ("a float array", lambda v: isinstance(v, np.ndarray) and v.dtype.kind == "f")},
    kinds.Lift: {"factor": ("a finite number", _finite)},
    kinds.Ban: {},
    kinds.Allow: {},
    kinds.Force: {},
    kinds.Temperature: {"temperature": _POSITIVE},
    kinds.TopK: {"k": _COUNT, "keep": _COUNT},
    kinds.TopP: {"p": _SHARE, "keep": _COUNT},
    kinds.MinP: {"p": _SHARE, "keep": _COUNT},
    kinds.Typical: {"mass": _INSIDE, "keep": _COUNT},
    kinds.Epsilon: {"epsilon": _INSIDE, "keep": _COUNT},
    kinds.Eta: {"epsilon": _INSIDE, "keep": _COUNT},
    kinds.TopH: {"share": ("in (0, 1]", lambda v: is_real(v) and 0 < v <= 1), "top": _COUNT},
    kinds.TopNSigma: {"n": ("a finite number >= 0", lambda v: _finite(v) and v >= 0)},
    kinds.Xtc: {
        "threshold": _SHARE,
        "probability": _SHARE,
        "seed": ("an integer in [0, 2^64)", lambda v: is_int(v) and 0 <= v < 2**64),
    },
    kinds.Normalise: {},
}
