"""Builds the programs of all cores from a plan."""

from __future__ import annotations

from collections.abc import Iterator

from decodestep.npu_schedule.cube import CubeProgram
from decodestep.npu_schedule.design import Design
from decodestep.npu_schedule.extent import check_extent
from decodestep.npu_schedule.frame import FLAGS, Frame, Step, frame_of
from decodestep.npu_schedule.instructions import Core, Instruction, Schedule, SetFlag, WaitFlag
from decodestep.npu_schedule.sizes import sizes_of
from decodestep.npu_schedule.vector import VectorProgram
from decodestep.ops.mla_prolog.plan import MlaPrologPlan


def mla_prolog_schedule(plan: MlaPrologPlan, design: Design | None = None, *, group: int = 2) -> Schedule:
    """Builds the program of every core for a plan.

        for step of tokens:
            cube core:    MatmulCq, set MM_CQ; wait CKVKR_DONE of the previous step; MatmulCkvKr, set MM_CKVKR;
                          wait RMSNORM_CQ; MatmulQcQr, set QCQR; all cube cores (int8: wait DEQUANT_QC); MatmulQn
            vector core:  sin, cos; wait MM_CQ; all vector cores; norm; all vector cores; set RMSNORM_CQ;
                          wait MM_CKVKR; all vector cores; norm, rotate, scatter; all vector cores; set CKVKR_DONE;
                          wait QCQR; all vector cores; (int8: dequantise; all vector cores; set DEQUANT_QC;) rotate

    With int8 queries of eight or more heads, the vector cores of a group share its tokens and dequantise and rotate its heads:
    they wait for QCQR_SPLIT_N for every tile and set DEQUANT_QC_SPLIT_N for every head; MatmulQn waits for it. FULL_KV sets
    QN_SPLIT_N after every head of MatmulQn; the vector cores wait for it, quantise the head and scale its rope part.

    plan: from `mla_prolog_plan`. design: differences from the published design. group: vector cores per cube core, >= 1.
    Returns a `Schedule`; without tokens its programs are empty.
    Raises ValueError for a plan that is inconsistent or does not fit its cores, for a design that does not fit the plan, and
    for programs too long to be checked: more than 2^26 clocks, one for each instruction and pipe, with four pipes per core.
    Notes: CKVKR_DONE and the join before it are not in the published design, in which MatmulCkvKr of a step may overwrite rows
    that a slow vector core has yet to read: `Design(join="none")`. Its later kernels do have such a flag.
    """
    design = design or Design()
    sizes = sizes_of(plan, group)
    frame = frame_of(plan, sizes, design)
    check_extent(frame)
    programs: dict[Core, tuple[Instruction, ...]] = {}
    for program_of, count in ((CubeProgram, sizes.cubes), (VectorProgram, sizes.vectors)):
        for index in range(count):
            program = program_of(frame, index)
            for phase, step in _phases(frame):
                getattr(program, phase)(step)
            programs[Core(program.kind, index)] = tuple(program.made)
    used = {i.flag for made in programs.values() for i in made if isinstance(i, (SetFlag, WaitFlag))}
    return Schedule(plan, design, sizes, {name: flag for name, flag in FLAGS.items() if name in used}, programs)


def _phases(frame: Frame) -> Iterator[tuple[str, Step]]:
    """The phases of all steps in program order; with overlap, a step's first phase precedes the previous step's last one."""
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
