"""Builds the programs of all cores from a plan."""

from __future__ import annotations

from collections.abc import Iterator

from decodestep.ops.mla_prolog.plan import MlaPrologPlan
from decodestep.ops.mla_prolog.schedule.cube import CubeProgram
from decodestep.ops.mla_prolog.schedule.design import Design
from decodestep.ops.mla_prolog.schedule.extent import check_extent
from decodestep.ops.mla_prolog.schedule.frame import FLAGS, Frame, Step, frame_of
from decodestep.ops.mla_prolog.schedule.instructions import CUBE, VECTOR, Core, Instruction, Schedule, SetFlag, WaitFlag
from decodestep.ops.mla_prolog.schedule.sizes import sizes_of
from decodestep.ops.mla_prolog.schedule.vector import VectorProgram


def mla_prolog_schedule(plan: MlaPrologPlan, design: Design | None = None, *, group: int = 2) -> Schedule:
    """Builds the program of every core for a plan.

        for step of tokens:
            cube core:    MatmulCq, set MM_CQ; wait CKVKR_DONE of the step before; MatmulCkvKr, set MM_CKVKR;
                          wait RMSNORM_CQ; MatmulQcQr, set QCQR; all cube cores (int8: wait DEQUANT_QC); MatmulQn
            vector core:  sin, cos; wait MM_CQ; all vector cores; norm; all vector cores; set RMSNORM_CQ;
                          wait MM_CKVKR; all vector cores; norm, rotate, scatter; all vector cores; set CKVKR_DONE;
                          wait QCQR; all vector cores; (int8: dequantise; all vector cores; set DEQUANT_QC;) rotate

    With int8 queries of eight heads or more a vector core dequantises and rotates the heads of its group, half of the tokens
    each: wait QCQR_SPLIT_N for every tile, set DEQUANT_QC_SPLIT_N for every head, for which MatmulQn then waits. FULL_KV sets
    QN_SPLIT_N after every head of MatmulQn; the vector cores wait for it, quantise the head and scale its rope part.

    plan: of `mla_prolog_plan`. design: what differs from the published design. group: vector cores of each cube core, >= 1.
    Returns a `Schedule`; without tokens its programs are empty.
    Raises ValueError for a plan whose parts do not fit each other or its cores, for a design that the plan cannot have, and for
    programs too long to be checked: 2^26 clocks, one for each instruction and pipe, four pipes to a core.
    Notes: CKVKR_DONE and the join before it are not in the published design, in which MatmulCkvKr of a step may overwrite rows
    that a slow vector core has yet to read: `Design(join="none")`. Its later kernels have such a flag too.
    """
    design = design or Design()
    sizes = sizes_of(plan, group)
    frame = frame_of(plan, sizes, design)
    check_extent(frame)
    programs: dict[Core, tuple[Instruction, ...]] = {}
    for kind, count, program in ((CUBE, sizes.cubes, CubeProgram), (VECTOR, sizes.vectors, VectorProgram)):
        for index in range(count):
            writer = program(frame, index)
            for phase, step in _phases(frame):
                getattr(writer, phase)(step)
            programs[Core(kind, index)] = tuple(writer.made)
    used = {i.flag for made in programs.values() for i in made if isinstance(i, (SetFlag, WaitFlag))}
    return Schedule(plan, design, sizes, {name: flag for name, flag in FLAGS.items() if name in used}, programs)


def _phases(frame: Frame) -> Iterator[tuple[str, Step]]:
    """The phases of all steps as every core has them; overlapping, a step's first comes before the last of the one before."""
    steps = frame.steps
    if not frame.design.overlap:
        yield from ((phase, step) for step in steps for phase in ("down", "up", "absorb"))
        return
    for step, following in zip(steps, (*steps[1:], None), strict=True):
        if step.index == 0:
            yield "down", step
        yield "up", step
        if following:
            yield "down", following
        yield "absorb", step
