"""Programs as data: tiles of memory, typed instructions, flags, and a schedule of the programs of all cores.

A core issues its program in order, each instruction to one of its pipes. A pipe executes in order; the pipes of a core run
concurrently. Two rules order them: an instruction starts after those whose local values it uses, and nothing after a WaitFlag
is issued before the wait has ended. Any other order requires a flag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from decodestep._base.checks import Words, is_int, refuse, require
from decodestep.npu_schedule.design import Design
from decodestep.npu_schedule.sizes import Sizes
from decodestep.ops.mla_prolog.plan import MlaPrologPlan

OP = "schedule"
CUBE, VECTOR = "cube", "vector"
# By kind of core: the pipes that load, compute and store.
PIPES = {CUBE: ("MTE2", "M", "FIX"), VECTOR: ("MTE2", "V", "MTE3")}
ISSUE = "S"  # the scalar unit, which issues instructions and executes waits

Span: TypeAlias = "tuple[int, int]"  # [first, end)


class Core(NamedTuple):
    """Cube core `number`, or vector core `number`, which is in the group of cube core number // vectors of a group."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


class Tile(NamedTuple):
    """A rectangle of a named matrix in global memory, or `repeats` rectangles at a distance of `stride` columns."""

    buffer: str
    rows: Span
    columns: Span
    repeats: int = 1
    stride: int = 0

    @property
    def parts(self) -> list[Span]:
        """The columns of each rectangle."""
        left, right = self.columns
        return [(left + n * self.stride, right + n * self.stride) for n in range(self.repeats)]

    def __str__(self) -> str:
        more = f", {self.repeats} times every {self.stride}" if self.repeats > 1 else ""
        return f"{self.buffer}[{self.rows[0]}:{self.rows[1]}, {self.columns[0]}:{self.columns[1]}{more}]"


class Job(NamedTuple):
    """The work that an instruction is part of: a kernel over tokens of the call and columns of its result."""

    kernel: str
    step: int
    tokens: Span
    columns: Span

    def __str__(self) -> str:
        (first, end), (left, right) = self.tokens, self.columns
        rows = f"token {first}" if end - first == 1 else f"tokens {first}-{end - 1}" if end > first else "no tokens"
        return f"{self.kernel} of {rows}, columns {left}-{right - 1}"


@dataclass(frozen=True, slots=True)
class Load:
    """Loads a tile of global memory into the core as the local value `local`."""

    job: Job
    source: Tile
    local: str
    size: int  # bytes moved, for the cost


@dataclass(frozen=True, slots=True)
class Compute:
    """Computes local values from local values: the terms `inner` of a product's sums, or a kernel of a vector core."""

    job: Job
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    inner: Span = (0, 0)
    shape: tuple[int, int, int] = (0, 0, 0)  # cube cores: rows, inner, columns of the product
    values: int = 0  # vector cores: values that pass through the vector unit


@dataclass(frozen=True, slots=True)
class Store:
    """Stores a local value to a tile of global memory."""

    job: Job
    local: str
    target: Tile
    size: int


@dataclass(frozen=True, slots=True)
class SetFlag:
    """Sets a flag once everything issued to `pipe` before it has been executed."""

    flag: str
    pipe: str
    step: int = 0


@dataclass(frozen=True, slots=True)
class WaitFlag:
    """Waits until the core's counter of the flag is above 0 and decrements it. Nothing after it is issued before that."""

    flag: str
    step: int = 0


Instruction: TypeAlias = "Load | Compute | Store | SetFlag | WaitFlag"


@dataclass(frozen=True, slots=True)
class Flag:
    """A named synchronisation. Flags with the same id share a counter on each core: the hardware knows only ids.

    mode 0: when all cores of the setters' kind have set it once more, the counter of each of them rises by 1. mode 1: the same
    within the vector cores of a group. mode 2: a set by a cube core raises the counters of the vector cores of its group; when
    each of these has set it once more, the counter of their cube core rises.
    """

    id: int
    mode: int


@dataclass(frozen=True)
class Schedule:
    """The programs of all cores. The methods return edited copies; `check` says whether one is still correct."""

    plan: MlaPrologPlan
    design: Design
    sizes: Sizes
    flags: Mapping[str, Flag]
    programs: Mapping[Core, tuple[Instruction, ...]]

    @property
    def cores(self) -> list[Core]:
        return sorted(self.programs)

    def without(self, flag: str, step: int | None = None) -> Schedule:
        """A copy without the sets and waits of a flag, in all steps or in one."""
        require(flag in self.flags, OP, "flag", f"one of {', '.join(self.flags)}", flag)

        def kept(i: Instruction) -> bool:
            return not (isinstance(i, (SetFlag, WaitFlag)) and i.flag == flag and step in (None, i.step))

        return self.with_programs({core: tuple(filter(kept, program)) for core, program in self.programs.items()})

    def drop(self, core: Core, position: int) -> Schedule:
        """A copy without one instruction."""
        return self.edit(core, position, ())

    def insert(self, core: Core, position: int, *instructions: Instruction) -> Schedule:
        program = self._program(core)
        require(is_int(position) and 0 <= position <= len(program), OP, "position", f"in [0, {len(program)}]", position)
        return self.with_programs({core: (*program[:position], *instructions, *program[position:])})

    def swap(self, core: Core, first: int, second: int) -> Schedule:
        """A copy with two instructions of a core exchanged."""
        a, b = self._at(core, first), self._at(core, second)
        return self.edit(core, first, (b,)).edit(core, second, (a,))

    def edit(self, core: Core, position: int, instructions: Iterable[Instruction]) -> Schedule:
        """A copy with one instruction replaced by others."""
        self._at(core, position)
        program = self.programs[core]
        return self.with_programs({core: (*program[:position], *instructions, *program[position + 1 :])})

    def with_programs(self, programs: Mapping[Core, tuple[Instruction, ...]]) -> Schedule:
        return replace(self, programs={**self.programs, **programs})

    def _program(self, core: Core) -> tuple[Instruction, ...]:
        if core not in self.programs:
            refuse(OP, "core", f"one of {len(self.programs)} of this schedule", Words(core))
        return self.programs[core]

    def _at(self, core: Core, position: int) -> Instruction:
        program = self._program(core)
        require(is_int(position) and 0 <= position < len(program), OP, "position", f"in [0, {len(program)})", position)
        return program[position]


def operands(instruction: Instruction) -> tuple[str, ...]:
    """The local values that an instruction uses."""
    match instruction:
        case Compute():
            return instruction.inputs
        case Store():
            return (instruction.local,)
    return ()


def pipe_of(core: Core, instruction: Instruction) -> str:
    """The pipe that executes an instruction."""
    into, compute, out = PIPES[core.kind]
    match instruction:
        case Load():
            return into
        case Compute():
            return compute
        case Store():
            return out
        case SetFlag():
            return instruction.pipe
    return ISSUE
