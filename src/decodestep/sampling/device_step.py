"""A sampler's step on GPU logits: it runs on the GPU, and only the tokens are copied to the host.

The steps of each row are made on the host from its history. The core keeps the history and ends rows, as for logits on the CPU,
and the same seed draws the same token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decodestep._base import devices
from decodestep._base.checks import Phrase, require, require_dtype
from decodestep.ops.decode_step import TokenLogprobs, decode_step
from decodestep.ops.decode_step.rows import DTYPES, accept_tokens
from decodestep.ops.decode_step.steps import Force, Step
from decodestep.sampling.row import Row

if TYPE_CHECKING:
    import torch

_NOTHING = (Force(np.empty(0, np.int64)),)  # of a row that has ended


class Drawn(NamedTuple):
    """tokens: int64 (B,), on the device; tokens_on_host: the same there. end_codes, logprobs: one for each row, as in
    `step_rows`. held: what rows that failed had held back, by their index."""

    tokens: torch.Tensor
    tokens_on_host: list[int]
    end_codes: bytes
    logprobs: tuple[TokenLogprobs | None, ...]
    held: dict[int, str]


def outline(op: str, rows: Sequence[Row], logits: torch.Tensor, vocab: int, backend: str) -> np.ndarray:
    """An array of the logits' shape and dtype without values; ValueError for logits or rows that no kernel serves."""
    devices.choose_triton(op, backend, logits)
    array = devices.outline(op, "logits", logits, logits.device)
    require_dtype(op, "logits", array, DTYPES)
    require(array.shape == (len(rows), vocab), op, "logits", f"of shape {len(rows)}x{vocab}", array)
    for row in rows:
        apart = ", ".join(type(processor).__name__ for _, processor in row.plan.unfused)
        require(not apart, op, "processors", "fused where the logits are on a device", Phrase(apart))
    return array


def draw(rows: Sequence[Row], logits: torch.Tensor, vocab: int) -> Drawn:
    """Draws a token for every running row, and appends it to the row's history. The logits have an `outline`.

    A row whose processor raises while its steps are made ends with that error.
    """
    held: dict[int, str] = {}
    steps: list[Sequence[Step]] = []
    for i, row in enumerate(rows):
        made: Sequence[Step] = _NOTHING
        if not row.native.ended:
            try:
                made = row.plan.tail.steps(row.history)
            except Exception as error:
                held[i] = row.fail(error)
        steps.append(made)
    result = decode_step(
        logits,
        steps,
        greedy=[row.params.greedy for row in rows],
        seed=[row.seed or 0 for row in rows],
        position=[len(row.history) for row in rows],
        top_logprobs=[row.params.logprobs for row in rows],
        backend="triton",
    )
    tokens_on_host = result.tokens.tolist()
    end_codes = accept_tokens([row.native for row in rows], tokens_on_host, vocab) or bytes(len(rows))
    return Drawn(result.tokens, tokens_on_host, end_codes, result.logprobs, held)


def processed(op: str, rows: Sequence[Row], logits: torch.Tensor, vocab: int, backend: str) -> torch.Tensor:
    """The scores that each row's steps leave, on the device. Raises ValueError as `outline` does."""
    outline(op, rows, logits, vocab, backend)
    steps = [row.plan.tail.steps(row.history) for row in rows]
    positions = [len(row.history) for row in rows]
    return decode_step(logits, steps, position=positions, need_processed=True, backend="triton").processed
