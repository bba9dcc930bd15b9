"""decode_step on a GPU, in Triton: results with the bits of the reference.

A call has a general form, in which each row's steps run on its scores, one after the other, and then its tokens race; and a
quick one for calls that want the tokens alone, for the rows whose filters are the usual ones (see quick.py). `Workspace` holds
everything that they write and `DeviceTable` what they read, so that `launch` neither allocates nor waits and can be captured
into a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from decodestep._base.devices import to_device, to_device_together
from decodestep._base.triton import LAUNCH
from decodestep.ops.decode_step.steps import Step
from decodestep.ops.decode_step.triton.draw import finish, make_scores, race, report
from decodestep.ops.decode_step.triton.listed import choose_listed
from decodestep.ops.decode_step.triton.quick import sweep
from decodestep.ops.decode_step.triton.raced import judge_winners, settle, weigh_before
from decodestep.ops.decode_step.triton.step_kernel import finish_left, run_steps
from decodestep.ops.decode_step.triton.table import LISTED, PATCHING, PLAIN, RACED, make_table

_BLOCK = 1024  # tokens of a sweep's step
_STRIPS = 8  # strips of a block, each with a peak
_PEAKS = 128
_ROW_WARPS = 16  # of a program that has a row for itself
_MOST_STRIPS = 4096  # of a row whose candidates are listed
_LIST = 512  # candidates
_PROGRAMS = 2112  # that fill the largest GPUs: rows that are fewer are split
_MOST_PARTS = 64
_FEW_ROWS = 32  # with more, it is likely that one must race a third time


@dataclass(frozen=True)
class DeviceTable:
    """A `table.Table` in the device's memory. Its tensors may be overwritten by those of another table of the same sizes."""

    rows: torch.Tensor
    integers: torch.Tensor
    floats: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor
    masks: torch.Tensor
    ways: torch.Tensor
    amounts: torch.Tensor
    kinds: int
    found: int

    @property
    def steps(self) -> tuple[torch.Tensor, ...]:
        """What the kernels of the steps read."""
        return self.rows, self.integers, self.floats, self.ids, self.values, self.masks


def device_table(steps: Sequence[Sequence[Step]], vocab: int, device: torch.device | str) -> DeviceTable:
    """`steps` in the form of `normalise_arguments`."""
    table: dict[str, Any] = make_table(steps, vocab)._asdict()
    numbers = {name: table.pop(name) for name in ("kinds", "found")}
    tensors = to_device_together(list(table.values()), torch.device(device))
    return DeviceTable(**dict(zip(table, tensors, strict=True)), **numbers)


class Workspace:
    """The memory that calls of up to (batch, vocab) write. tokens: int64 (batch,), the results of the last call."""

    def __init__(
        self, batch: int, vocab: int, device: torch.device | str, *, block: int = _BLOCK, programs: int = _PROGRAMS
    ) -> None:
        def new(*shape: int, dtype: torch.dtype) -> torch.Tensor:
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
        self.strip = max(1, block // _STRIPS)
        strips = -(-vocab // self.strip)
        self.listed_strips = min(max(16, 1 << (strips - 1).bit_length()), _MOST_STRIPS)
        self.strip_peaks = new(batch, strips, dtype=torch.float32)
        self.above = new(batch, self.parts, dtype=torch.float64)
        self.second_totals = new(batch, self.parts, 2, dtype=torch.float64)
        self.second_tokens = new(batch, self.parts, dtype=torch.int64)
        self.tops = new(batch, self.parts, dtype=torch.float32)
        self.masses = new(batch, self.parts, dtype=torch.float64)
        self.strips = new(batch, self.listed_strips, dtype=torch.int32)
        self.list_ids = new(batch, _LIST, dtype=torch.int32)
        self.list_scores = new(batch, _LIST, dtype=torch.float32)
        self.list_weights = new(batch, _LIST, dtype=torch.float64)
        self.left = new(batch, dtype=torch.int8)


class _Draws(NamedTuple):
    """How the tokens are drawn from their rows, as `launch` takes it."""

    greedy: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor


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
    """The token of every row, a view of work.tokens; with `need_scores` also the scores that its steps leave, in work.scores.

    logits: (B, V). greedy: int8, seeds: int64 (the bits of a uint64), positions: int64, all (B,) on the logits' device. Checks
    nothing, allocates nothing and does not wait for the device.
    """
    if len(logits):
        run = _launch_general if need_scores or not table.found else _launch_quick
        run(logits, table, _Draws(greedy, seeds, positions), work)
    return work.tokens[: len(logits)]


def _launch_general(logits: torch.Tensor, table: DeviceTable, draws: _Draws, work: Workspace) -> None:
    batch, vocab = logits.shape
    _make_scores(logits, work)
    if table.kinds:
        _run_steps(table, draws.positions, work, vocab, leading=False)
    race[(batch, work.parts)](
        work.scores, vocab, 1, *draws, work.best_totals, work.best_tokens, work.tokens, vocab, work.share,
        BLOCK=work.block, **LAUNCH,
    )  # fmt: skip
    if work.parts > 1:
        finish[(batch,)](work.best_totals, work.best_tokens, work.tokens, work.parts, PARTS=_MOST_PARTS)


def _launch_quick(logits: torch.Tensor, table: DeviceTable, draws: _Draws, work: Workspace) -> None:
    batch, vocab = logits.shape
    grid = (batch, work.parts)
    is_copied = table.kinds & PATCHING != 0
    if is_copied:
        _make_scores(logits, work)
        _run_steps(table, draws.positions, work, vocab, leading=True)
    ways = table.found | (PLAIN if table.found & RACED else 0)
    x = (work.scores, vocab, 1) if is_copied else (logits, *logits.stride())
    drawing = table.amounts, *draws
    end = vocab, work.share
    size = {"STRIP": work.strip, "BLOCK": work.block, **LAUNCH}
    tops, best = (work.strip_peaks, work.tops), (work.best_totals, work.best_tokens)
    sweep[grid](*x, table.ways, *drawing, *tops, work.masses, *best, *end, WAYS=ways, **size)
    if ways & LISTED:
        choose_listed[(batch,)](
            *x, table.ways, *drawing, *tops, work.strips, work.list_ids, work.list_scores, work.list_weights, work.tokens,
            work.left, vocab, work.parts, WAYS=ways, STRIP=work.strip, PEAKS=work.listed_strips, PARTS=_MOST_PARTS, LIST=_LIST,
            num_warps=8, **LAUNCH,
        )  # fmt: skip
    if ways & PLAIN:
        size["PARTS"] = _MOST_PARTS
        rounds = 0 if not ways & RACED else 1 if batch <= _FEW_ROWS else 2
        following = work.second_totals, work.second_tokens
        for again in range(1 + rounds):
            if ways & RACED:
                weigh_before[grid](
                    *x, table.ways, table.amounts, *tops, *best, work.above, work.left, *end, REPEATED=again > 0, **size
                )
            if again < max(rounds, 1):
                judge_winners[grid](
                    *x, table.ways, *drawing, *tops, work.masses, *best, work.above, *following, work.tokens, work.left, *end,
                    WAYS=ways, REPEATED=again > 0, **size,
                )  # fmt: skip
                # Each race has the other buffers: while a program writes its winner, others of its row read those before.
                best, following = following, best
        if rounds:
            settle[(batch,)](
                *x, *drawing, *tops, work.masses, *best, work.above, work.tokens, work.left, vocab, work.parts,
                num_warps=8, **size | {"BLOCK": 2 * work.block},
            )  # fmt: skip
    finish_left[(batch,)](
        logits, *logits.stride(), work.scores, work.peaks, *table.steps, draws.positions, table.ways, work.left, draws.greedy,
        draws.seeds, work.tokens, vocab, COPIED=is_copied, KINDS=table.kinds, BLOCK=work.block, PEAKS=_PEAKS,
        num_warps=_ROW_WARPS, **LAUNCH,
    )  # fmt: skip


def _make_scores(logits: torch.Tensor, work: Workspace) -> None:
    batch, vocab = logits.shape
    make_scores[(batch, work.parts)](
        logits, *logits.stride(), work.scores, work.peaks, vocab, work.share, BLOCK=work.block, **LAUNCH
    )


def _run_steps(table: DeviceTable, positions: torch.Tensor, work: Workspace, vocab: int, *, leading: bool) -> None:
    kinds = table.kinds & PATCHING if leading else table.kinds
    run_steps[(len(positions),)](
        work.scores, work.peaks, *table.steps, positions, table.ways, vocab,
        LEADING=leading, KINDS=kinds, BLOCK=work.block, PEAKS=_PEAKS, num_warps=_ROW_WARPS, **LAUNCH,
    )  # fmt: skip


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
    table = device_table(steps, vocab, logits.device)
    bits = [seed if seed < 2**63 else seed - 2**64 for seed in seeds]
    columns = [np.array(column, dtype) for column, dtype in ((greedy, np.int8), (bits, np.int64), (positions, np.int64))]
    flags, seeds_there, positions_there = to_device_together(columns, logits.device)
    launch(logits, table, flags, seeds_there, positions_there, work, need_scores=need_processed or reported)
    return work.tokens, work.scores if need_processed else None, _logprobs(logits, work, top_logprobs) if reported else None


def _logprobs(logits: torch.Tensor, work: Workspace, top_logprobs: Sequence[int | None]) -> list[Any]:
    """The fields of each row's `TokenLogprobs`, or None."""
    batch, vocab = logits.shape
    raw = Workspace(batch, vocab, logits.device, block=work.block)
    _make_scores(logits, raw)
    counts = [-1 if count is None else min(count, vocab) for count in top_logprobs]
    wanted = to_device(np.array(counts, np.int64), logits.device)
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
