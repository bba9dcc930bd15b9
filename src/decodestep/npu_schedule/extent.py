"""The length of a schedule's programs, computed before they are built."""

from __future__ import annotations

from decodestep._base.checks import Words, require
from decodestep.npu_schedule.frame import INNER_BYTES, REAL, TILE_COLUMNS, Frame
from decodestep.npu_schedule.instructions import CUBE, ISSUE, PIPES, VECTOR

_OP = "mla_prolog_schedule"
_MOST_CLOCKS = 2**26  # entries of `Clocks`, one for each instruction and pipe: checking this many takes about half a minute
# The largest number of instructions of a step, for each of these.
_PART, _TILE, _HEAD, _GROUP_HEAD, _CUBE, _VECTOR = 3, 2, 6, 13, 9, 43


def check_extent(frame: Frame) -> None:
    """Refuses a schedule whose programs would be too long to be checked."""
    s = frame.sizes
    pipes = s.cubes * len((ISSUE, *PIPES[CUBE])) + s.vectors * len((ISSUE, *PIPES[VECTOR]))
    most, wanted = _MOST_CLOCKS // pipes, instructions(frame)
    rule = f"of a schedule of at most {most} instructions, on {s.cubes} cube and {s.vectors} vector cores"
    require(wanted <= most, _OP, "plan", rule, Words(f"one of up to {wanted}"))


def instructions(frame: Frame) -> int:
    """An upper bound on the number of instructions of all programs together."""
    s = frame.sizes
    step = s.cubes * _CUBE + s.vectors * _VECTOR + s.heads * (_HEAD + s.group * _GROUP_HEAD)
    for kernel, inputs, width, total, quantised in (
        ("MatmulCq", s.hidden, frame.cq_columns, s.hcq, s.scenario.full),
        ("MatmulCkvKr", s.hidden, frame.ckvkr_columns, s.hckv + s.rope if s.cached else 0, s.scenario.full),
        ("MatmulQcQr", s.hcq, frame.qcqr_columns, s.heads * s.head, s.scenario.partial),
    ):
        parts = -(-inputs * (1 if quantised else REAL) // INNER_BYTES[kernel])
        step += _tiles(width, total) * (parts * _PART + _TILE)
    return -(-s.tokens // frame.step_tokens) * step


def _tiles(width: int, total: int) -> int:
    """The number of tiles of a product whose columns are split over cores, `width` to each."""
    if total == 0:
        return 0
    cores, rest = divmod(total, width)
    return cores * -(-width // TILE_COLUMNS) + -(-rest // TILE_COLUMNS)
