"""decode_step: logits to the next token of every row, each row with its own parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from decodestep import arrays
from decodestep.checks import refuse, require, require_dtype
from decodestep.dispatch import choose, run
from decodestep.ops.decode_step import reference

_OP = "decode_step"


def decode_step(
    logits: Any,
    *,
    temperature: Any = 1.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    repetition_penalty: Any = 1.0,
    history: Sequence[Any] | None = None,
    seed: Any = 0,
    position: Any = 0,
    backend: str = "auto",
) -> Any:
    """Draws the next token of every row: penalty, temperature, top-k, top-p, min-p, then a draw or the argmax.

        for every row b, with its own parameters, s = logits[b] as float32:
            s[i] = s[i] * r if s[i] < 0 else s[i] / r       for each distinct token i of history[b], r = repetition_penalty
            if temperature is 0: token = first argmax of s, and nothing else is done
            s = s / temperature
            keep i with s[i] >= the k-th largest                                          where 0 < top_k < V
            keep the shortest prefix, largest first, of probability mass >= top_p         where top_p < 1
            keep i with softmax(s)[i] >= min_p * the largest                              where min_p > 0
            token = first argmax over the kept of s[i] + gumbel(seed, position, i)

    logits: (B, V), V >= 1, float32, float16 or bfloat16 (float64 for the oracle's own sake).
    Each of the others is a scalar or a (B,) column:
    temperature: finite, >= 0; 0 takes the argmax.
    top_k: integer >= 0; 0 keeps all. Every tie of the k-th value is kept.
    top_p: in [0, 1]; 1 keeps all. At least one token is kept; among exact ties at the cut the lowest ids are.
    min_p: in [0, 1].
    repetition_penalty: finite, > 0; 1 changes nothing.
    seed: integers in [0, 2^64). position: integers in [0, 2^32), the index of the token drawn in its sequence.
    history: B arrays or lists of token ids in [0, V), prompt and generated; None for no penalty.
    backend: "auto" or "reference".

    Returns int64 tokens, (B,), in the kind of logits.
    Raises ValueError for a parameter outside its range, and for a row in which no logit is above -inf (NaN counts as -inf).

    Notes: probabilities are float64, softmax over what the previous filter kept, their sum in vocabulary order. A token
    depends on its row's logits, parameters, seed and position alone. +inf: only the +inf tokens can be drawn.
    Source: the order and filters of transformers 5.23; the draw is the Gumbel-max trick on `decodestep.random`.
    """
    rows = arrays.view(_OP, "logits", logits)
    require_dtype(_OP, "logits", rows, _FLOATS)
    require(rows.ndim == 2 and rows.shape[1] >= 1, _OP, "logits", "of shape (B, V) with V >= 1", rows)
    batch, vocab = rows.shape
    columns = {
        "temperature": _column("temperature", temperature, batch, 0.0, math.inf, "a finite number >= 0"),
        "top_k": _integers("top_k", top_k, batch, 2**63),
        "top_p": _column("top_p", top_p, batch, 0.0, 1.0, "in [0, 1]"),
        "min_p": _column("min_p", min_p, batch, 0.0, 1.0, "in [0, 1]"),
        "penalty": _column("repetition_penalty", repetition_penalty, batch, 0.0, math.inf, "a finite number > 0"),
        "seed": _integers("seed", seed, batch, 2**64),
        "position": _integers("position", position, batch, 2**32),
    }
    if not (columns["penalty"] > 0).all():
        refuse(_OP, "repetition_penalty", "a finite number > 0", columns["penalty"].min())
    past = _history(history, batch, vocab)
    backend = choose(_OP, backend, {"reference": None})
    tokens = run(_OP, backend, reference.decode_step, rows, past, **columns)
    if (tokens < 0).any():
        refuse(_OP, "logits", "above -inf somewhere in every row", f"row {int(np.argmax(tokens < 0))} without a candidate")
    return arrays.like(logits, tokens)


_FLOATS = ("float32", "float16", "bfloat16", "float64")


def _column(name: str, value: Any, batch: int, low: float, high: float, rule: str) -> np.ndarray:
    array = _as_array(name, value, batch)
    require(array.dtype.kind in "iuf", _OP, name, rule, array)
    column = np.broadcast_to(array.astype(np.float64), (batch,))
    if not (np.isfinite(column) & (column >= low) & (column <= high)).all():
        refuse(_OP, name, rule, f"{column.tolist()}" if column.ndim and batch <= 8 else column)
    return column


def _integers(name: str, value: Any, batch: int, bound: int) -> np.ndarray:
    rule = f"integers in [0, 2^{bound.bit_length() - 1})"
    if isinstance(value, int) and not isinstance(value, bool):
        require(0 <= value < bound, _OP, name, rule, value)
        return np.full(batch, value, np.uint64)
    array = _as_array(name, value, batch)
    require(array.dtype.kind in "iu", _OP, name, rule, array)
    if array.size and not (int(array.min()) >= 0 and int(array.max()) < bound):
        refuse(_OP, name, rule, f"{array.min()} to {array.max()}")
    return np.broadcast_to(array.astype(np.uint64), (batch,))


def _as_array(name: str, value: Any, batch: int) -> np.ndarray:
    array = arrays.view(_OP, name, value) if arrays.is_array(value) else np.asarray(value)
    require(array.shape in ((), (1,), (batch,)), _OP, name, f"a scalar or of shape {batch}", array)
    return array


def _history(history: Sequence[Any] | None, batch: int, vocab: int) -> list[np.ndarray]:
    if history is None:
        return [np.zeros(0, np.int64)] * batch
    require(len(history) == batch, _OP, "history", f"{batch} rows of token ids", f"{len(history)} rows")
    past = []
    for ids in history:
        row = arrays.view(_OP, "history", ids) if arrays.is_array(ids) else np.asarray(ids)
        require(row.ndim == 1 and (row.dtype.kind in "iu" or not row.size), _OP, "history", "rows of token ids", row)
        if row.size and not (row.min() >= 0 and row.max() < vocab):
            refuse(_OP, "history", f"token ids in [0, {vocab})", f"{row.min()} to {row.max()}")
        past.append(row.astype(np.int64, copy=False))
    return past
