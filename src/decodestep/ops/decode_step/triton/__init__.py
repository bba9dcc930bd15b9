"""decode_step on a GPU, in Triton: results with the bits of the reference.

A call is up to four launches: logits to scores, each row's steps, the race, and its finish where several programs share a row.
`Workspace` holds everything that they write and `DeviceTable` what they read, so that `launch` neither allocates nor waits and
can be captured into a CUDA graph. Without steps the race reads the logits themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from decodestep._base.triton import LAUNCH
from decodestep.ops.decode_step.steps import Step
from decodestep.ops.decode_step.triton.draw import finish, make_scores, race, report
from decodestep.ops.decode_step.triton.step_kernel import run_steps
from decodestep.ops.decode_step.triton.table import make_table

_BLOCK = 1024  # tokens of a sweep's step
_PEAKS = 128
_PROGRAMS = 264  # that fill the largest GPUs twice: rows that are fewer are split
_MOST_PARTS = 64


@dataclass(frozen=True)
class DeviceTable:
    """A `table.Table` in the device's memory. Its tensors may be overwritten by those of another table of the same sizes."""

    rows: torch.Tensor
    integers: torch.Tensor
    floats: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor
    masks: torch.Tensor
    kinds: int


def device_table(steps: Sequence[Sequence[Step]], vocab: int, device: Any) -> DeviceTable:
    """`steps` in the form of `normalise_arguments`."""
    table = make_table(steps, vocab)
    names = ("rows", "integers", "floats", "ids", "values", "masks")
    return DeviceTable(**{name: torch.from_numpy(getattr(table, name)).to(device) for name in names}, kinds=table.kinds)


class Workspace:
    """The memory that calls of up to (batch, vocab) write. tokens: int64 (batch,), the results of the last call."""

    def __init__(self, batch: int, vocab: int, device: Any, *, block: int = _BLOCK, programs: int = _PROGRAMS) -> None:
        def new(*shape: int, dtype: Any) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        blocks = -(-vocab // block)
        self.block = block
        # A program's share of a row is whole blocks.
        wanted = min(blocks, _MOST_PARTS, max(1, programs // max(batch, 1)))
        self.share = -(-blocks // wanted) * block
        self.parts = -(-vocab // self.share)
        self.scores = new(batch, vocab, dtype=torch.float32)
        self.peaks = new(batch, blocks, dtype=torch.float32)
        self.best_totals = new(batch, self.parts, 2, dtype=torch.float64)
        self.best_tokens = new(batch, self.parts, dtype=torch.int64)
        self.tokens = new(batch, dtype=torch.int64)


def launch(
    logits: torch.Tensor,
    table: DeviceTable,
    greedy: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    work: Workspace,
    *,
    need_scores: bool = False,
) -> torch.Tensor:
    """The token of every row, in work.tokens; the scores that its steps leave in work.scores, if it has any or `need_scores`.

    logits: (B, V). greedy: int8, seeds: int64 (the bits of a uint64), positions: int64, all (B,) on the logits' device. Checks
    nothing, allocates nothing and does not wait for the device.
    """
    batch, vocab = logits.shape
    if batch == 0:
        return work.tokens
    size = {"BLOCK": work.block, **LAUNCH}
    grid = (batch, work.parts)
    scores, row_stride, stride = logits, logits.stride(0), logits.stride(1)
    if table.kinds or need_scores:
        make_scores[grid](logits, row_stride, stride, work.scores, work.peaks, vocab, work.share, **size)
        scores, row_stride, stride = work.scores, vocab, 1
    if table.kinds:
        run_steps[(batch,)](
            work.scores, work.peaks, table.rows, table.integers, table.floats, table.ids, table.values, table.masks, positions,
            vocab, KINDS=table.kinds, PEAKS=_PEAKS, **size,
        )  # fmt: skip
    race[grid](
        scores, row_stride, stride, greedy, seeds, positions, work.best_totals, work.best_tokens, work.tokens, vocab,
        work.share, **size,
    )  # fmt: skip
    if work.parts > 1:
        finish[(batch,)](work.best_totals, work.best_tokens, work.tokens, work.parts, PARTS=_MOST_PARTS)
    return work.tokens


def decode_step(
    logits: torch.Tensor,
    steps: Sequence[Sequence[Step]],
    greedy: Sequence[bool],
    seeds: Sequence[int],
    positions: Sequence[int],
    top_logprobs: Sequence[int | None],
    need_processed: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, list[Any] | None]:
    """(tokens, processed scores or None, log-probabilities per row or None).

    The arguments are in the form of `normalise_arguments`.
    """
    batch, vocab = logits.shape
    work = Workspace(batch, vocab, logits.device)
    reported = any(count is not None for count in top_logprobs)
    launch(
        logits,
        device_table(steps, vocab, logits.device),
        _column(greedy, np.int8, logits.device),
        _column([seed if seed < 2**63 else seed - 2**64 for seed in seeds], np.int64, logits.device),
        _column(positions, np.int64, logits.device),
        work,
        need_scores=need_processed or reported,
    )
    return work.tokens, work.scores if need_processed else None, _logprobs(logits, work, top_logprobs) if reported else None


def _column(values: Sequence[Any], dtype: Any, device: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype)).to(device)


def _logprobs(logits: torch.Tensor, work: Workspace, top_logprobs: Sequence[int | None]) -> list[Any]:
    """The fields of each row's `TokenLogprobs`, or None."""
    batch, vocab = logits.shape
    raw = Workspace(batch, vocab, logits.device, block=work.block)
    make_scores[(batch, raw.parts)](
        logits, logits.stride(0), logits.stride(1), raw.scores, raw.peaks, vocab, raw.share, BLOCK=raw.block, **LAUNCH
    )
    counts = [-1 if count is None else min(count, vocab) for count in top_logprobs]
    wanted = _column(counts, np.int64, logits.device)
    rows: list[list[Any]] = [[] for _ in range(batch)]
    for side in (raw, work):
        most = max(1, *counts)
        chosen = torch.full((batch,), -torch.inf, dtype=torch.float64, device=logits.device)
        ids = torch.full((batch, most), -1, dtype=torch.int64, device=logits.device)
        values = torch.zeros((batch, most), dtype=torch.float64, device=logits.device)
        report[(batch,)](
            side.scores, side.peaks, work.tokens, wanted, chosen, ids, values, most, vocab,
            BLOCK=side.block, PEAKS=_PEAKS, **LAUNCH,
        )  # fmt: skip
        for row, one, best, of_best in zip(rows, chosen.tolist(), ids.tolist(), values.tolist(), strict=True):
            row += [one, tuple((i, v) for i, v in zip(best, of_best, strict=True) if i >= 0)]
    drawn = work.tokens.tolist()
    return [
        None if count < 0 or token < 0 else (row[0], row[2], row[1], row[3])
        for row, count, token in zip(rows, counts, drawn, strict=True)
    ]
