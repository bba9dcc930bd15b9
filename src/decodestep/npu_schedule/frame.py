"""What the programs of all cores share: steps, the division of work, and the matrices in global memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from decodestep._base.checks import is_int, require, require_choice
from decodestep.npu_schedule.design import JOINS, Design
from decodestep.npu_schedule.instructions import Flag, Span
from decodestep.npu_schedule.sizes import Sizes
from decodestep.ops.mla_prolog.plan import MlaPrologPlan

_OP = "mla_prolog_schedule"
REAL, SCALE = 2, 4  # bytes of a bfloat16, and of an int32 or a float32
TILE_COLUMNS = 128  # columns of a product that a cube core computes at a time
# By product, the bytes of a row of A that are multiplied at a time.
INNER_BYTES = {"MatmulCq": 1024, "MatmulCkvKr": 1024, "MatmulQcQr": 512}
_CUBE_TO_VECTOR = _VECTOR_TO_CUBE = 6
_ALL = 7

# The flags of the design. One id serves both directions of mode 2, because cube and vector cores have separate counters.
FLAGS = {
    "MM_CQ": Flag(_CUBE_TO_VECTOR, 2),
    "VEC_ALL_CQ": Flag(_ALL, 0),
    "VEC_ALL_NORM": Flag(_ALL, 0),
    "RMSNORM_CQ": Flag(_VECTOR_TO_CUBE, 2),
    "MM_CKVKR": Flag(_CUBE_TO_VECTOR, 2),
    "VEC_ALL_CKVKR": Flag(_ALL, 0),
    "VEC_ALL_DONE": Flag(_ALL, 0),
    "CKVKR_DONE": Flag(9, 2),
    "QCQR": Flag(_CUBE_TO_VECTOR, 2),
    "VEC_ALL_QCQR": Flag(_ALL, 0),
    "CUBE_ALL": Flag(_ALL, 0),
    "VEC_ALL_DEQUANT": Flag(_ALL, 0),
    "DEQUANT_QC": Flag(_VECTOR_TO_CUBE, 2),
    "QCQR_SPLIT_N": Flag(_CUBE_TO_VECTOR, 2),
    "DEQUANT_QC_SPLIT_N": Flag(_VECTOR_TO_CUBE, 2),
    "VEC_ALL_ROPE": Flag(_ALL, 0),
    "QN_SPLIT_N": Flag(_CUBE_TO_VECTOR, 2),
}


@dataclass(frozen=True)
class Step:
    index: int
    first: int  # the call's token that is row 0
    count: int

    @property
    def tokens(self) -> Span:
        return (self.first, self.first + self.count)

    @property
    def rows(self) -> Span:
        return (0, self.count)


@dataclass(frozen=True)
class Frame:
    """The sizes of a call and the choices of a design, with nothing left to choose."""

    sizes: Sizes
    design: Design
    step_tokens: int
    blocks: int  # vector cores over which tokens are split
    cq_columns: int
    ckvkr_columns: int
    qcqr_columns: int
    core_heads: int

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        s, total = self.step_tokens, self.sizes.tokens
        return tuple(Step(i, first, min(s, total - first)) for i, first in enumerate(range(0, total, s)))

    def own_tokens(self, vector: int, step: Step) -> Span:
        """The rows of a step that only this vector core works on: contiguous; the first cores may have one more."""
        if vector >= self.blocks:
            return (0, 0)
        each, more = divmod(step.count, self.blocks)
        first = vector * each + min(vector, more)
        return (first, first + each + (vector < more))

    def group_tokens(self, vector: int, step: Step) -> Span:
        """The rows of a step that a vector core works on for the heads of its group."""
        part = vector % self.sizes.group
        return (step.count * part // self.sizes.group, step.count * (part + 1) // self.sizes.group)

    def heads_of(self, cube: int) -> range:
        """The heads of a cube core in MatmulQn."""
        return range(min(cube * self.core_heads, self.sizes.heads), min((cube + 1) * self.core_heads, self.sizes.heads))

    def columns_of(self, kernel: str, cube: int) -> Span:
        s = self.sizes
        width, total = {
            "MatmulCq": (self.cq_columns, s.hcq),
            "MatmulCkvKr": (self.ckvkr_columns, s.hckv + s.rope if s.cached else 0),
            "MatmulQcQr": (self.qcqr_columns, s.heads * s.head),
        }[kernel]
        if kernel == "MatmulCkvKr" and self.design.ckvkr_from_last:
            cube = s.cubes - 1 - cube
        return (min(cube * width, total), min((cube + 1) * width, total))

    def tiles(self, columns: Span) -> list[Span]:
        left, right = columns
        return [(at, min(at + TILE_COLUMNS, right)) for at in range(left, right, TILE_COLUMNS)]

    @property
    def joins(self) -> bool:
        """Whether vector cores signal to the cube cores that they have read MatmulCkvKr's result."""
        return self.design.join == "flag" and self.sizes.cached

    def copy(self, buffer: str, step: Step) -> str:
        """The name of a workspace in this step."""
        return f"{buffer}.{step.index % 2}" if buffer in self.twofold else buffer

    @cached_property
    def twofold(self) -> tuple[str, ...]:
        """Workspaces with two copies, for alternate steps. With overlapping steps a core may still multiply the queries of one
        step while another core computes those of the next; dequantised queries are never written that early."""
        queries = ("qcqr",) if self.design.overlap and not self.sizes.scenario.partial else ()
        return queries + (("ckvkr",) if self.design.join == "copies" else ())

    @cached_property
    def workspace(self) -> dict[str, tuple[int, int, str]]:
        """Rows, columns and kind of value ("real", "int8", "int32", "float32") of each matrix between the kernels."""
        s, rows = self.sizes, self.step_tokens
        scenario = s.scenario
        down, up = ("int32" if q else "real" for q in (scenario.full, scenario.partial))
        made = {"cq": (s.hcq, down), "cq_normed": (s.hcq, "int8" if scenario.partial else "real")}
        if s.by_head:
            made["cq_scale"] = (1, "float32")
        if s.cached:
            made["ckvkr"] = (s.hckv + s.rope, down)
        made["qcqr"] = (s.heads * s.head, up)
        if scenario.partial:
            made["qc"] = (s.heads * s.nope, "real")
        if scenario.query_quantised:
            made["qn"] = (s.heads * s.hckv, "real")
        return {
            name: (rows, columns, kind)
            for buffer, (columns, kind) in made.items()
            for name in ([f"{buffer}.0", f"{buffer}.1"] if buffer in self.twofold else [buffer])
        }


def _check_design(design: Design) -> None:
    require(isinstance(design, Design), _OP, "design", "a Design", design)
    require_choice(_OP, "join", design.join, JOINS)
    for name in ("step", "cq_columns", "ckvkr_columns", "qcqr_columns", "core_heads"):
        value = getattr(design, name)
        require(value is None or (is_int(value) and value >= 1), _OP, name, "None or an integer >= 1", value)
    for name in ("ckvkr_first", "ckvkr_from_last", "preload", "overlap"):
        require(isinstance(getattr(design, name), bool), _OP, name, "True or False", getattr(design, name))
    require(not design.overlap or design.join != "none", _OP, "join", '"flag" or "copies" where steps overlap', design.join)


def build_frame(plan: MlaPrologPlan, sizes: Sizes, design: Design) -> Frame:
    _check_design(design)
    if sizes.tokens == 0:
        return Frame(sizes, design, 1, 0, 0, 0, 0, 0)
    by_name = {m.name: m for m in plan.matmuls}

    def columns(kernel: str, chosen: int | None, total: int) -> int:
        width = chosen if chosen is not None else by_name[kernel].columns if kernel in by_name else 0
        if kernel in by_name:
            rule = f"None or at least {-(-total // sizes.cubes)}, for {total} columns on {sizes.cubes} cube cores"
            require(width * sizes.cubes >= total, _OP, f"columns of {kernel}", rule, width)
        return width

    core_heads = design.core_heads or by_name["MatmulQn"].heads
    rule = f"None or at least {-(-sizes.heads // sizes.cubes)}, for {sizes.heads} heads on {sizes.cubes} cube cores"
    require(core_heads * sizes.cubes >= sizes.heads, _OP, "core_heads", rule, core_heads)
    qcqr = columns("MatmulQcQr", design.qcqr_columns, sizes.heads * sizes.head)
    rule = f"the {core_heads} heads of a core in MatmulQn, {core_heads * sizes.head}, where it is dequantised by head"
    require(not sizes.by_head or qcqr == core_heads * sizes.head, _OP, "columns of MatmulQcQr", rule, qcqr)
    step = min(design.step or plan.steps[0], sizes.tokens)
    return Frame(
        sizes,
        design,
        step,
        min(step, len(plan.vector_blocks) if design.step is None else sizes.vectors),
        columns("MatmulCq", design.cq_columns, sizes.hcq),
        columns("MatmulCkvKr", design.ckvkr_columns, sizes.hckv + sizes.rope),
        qcqr,
        core_heads,
    )
