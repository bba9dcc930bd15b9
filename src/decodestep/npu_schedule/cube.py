"""The program of a cube core: four products a step, in three phases between which steps may overlap."""

from __future__ import annotations

from decodestep.npu_schedule.core_program import CoreProgram
from decodestep.npu_schedule.frame import INNER_BYTES, REAL, SCALE, Frame, Step
from decodestep.npu_schedule.instructions import (
    CUBE,
    Compute,
    Job,
    Load,
    Span,
    Store,
    Tile,
    WaitFlag,
)

_RESIDENT_ROWS = 64  # A of MatmulQcQr stays on the core up to this many rows times bytes per value
_PRELOADED = 2  # tiles of weights that a core can load ahead of its products


class CubeProgram(CoreProgram):
    kind = CUBE

    def __init__(self, frame: Frame, index: int) -> None:
        super().__init__(frame, index)
        self.preloaded: set[str] = set()  # weights that have been loaded ahead of their product

    def down(self, step: Step) -> None:
        """MatmulCq and MatmulCkvKr."""
        order = ("MatmulCq", "MatmulCkvKr")
        for kernel in reversed(order) if self.frame.design.ckvkr_first else order:
            if kernel == "MatmulCkvKr" and self.frame.joins and step.index:
                self.made.append(WaitFlag("CKVKR_DONE", step.index - 1))
            self._down(kernel, step)
            self.set("MM_CQ" if kernel == "MatmulCq" else "MM_CKVKR", step)

    def up(self, step: Step) -> None:
        """MatmulQcQr, of the normalised queries."""
        if self.frame.design.preload:
            self._up(step, preload=True)
        self.wait("RMSNORM_CQ", step)
        self._up(step, preload=False)
        for head in self.frame.heads_of(self.index)[:_PRELOADED]:
            self._weight_uk(head, step)
        if not self.sizes.by_head:
            self.set("QCQR", step)

    def absorb(self, step: Step) -> None:
        """MatmulQn, head by head."""
        s, frame = self.sizes, self.frame
        if not s.scenario.partial:
            self.join("CUBE_ALL", step)
        elif not s.by_head:
            self.wait("DEQUANT_QC", step)
        for head in frame.heads_of(self.index):
            if s.by_head:
                self.wait("DEQUANT_QC_SPLIT_N", step)
            self._absorb(head, step)
            if s.scenario.query_quantised:
                self.set("QN_SPLIT_N", step)

    def _down(self, kernel: str, step: Step) -> None:
        cq = kernel == "MatmulCq"
        value = 1 if self.sizes.scenario.full else REAL
        for columns in self.frame.tiles(self.frame.columns_of(kernel, self.index)):
            job = Job(kernel, step.index, step.tokens, columns)
            self._product(
                job,
                Tile("token_x", step.tokens, (0, self.sizes.hidden)),
                "weight_dq" if cq else "weight_dkv_kr",
                value,
                Tile(self.frame.copy("cq" if cq else "ckvkr", step), step.rows, columns),
                SCALE if value == 1 else REAL,
            )

    def _up(self, step: Step, *, preload: bool) -> None:
        s = self.sizes
        value = 1 if s.scenario.partial else REAL
        resident = step.count * value <= _RESIDENT_ROWS
        for n, columns in enumerate(self.frame.tiles(self.frame.columns_of("MatmulQcQr", self.index))):
            job = Job("MatmulQcQr", step.index, step.tokens, columns)
            if preload:
                for inner in self._inner(job.kernel, s.hcq, value)[:_PRELOADED] if n == 0 else ():
                    self._weight(job, "weight_uq_qr", inner, value)
                continue
            self._product(
                job,
                Tile("cq_normed", step.rows, (0, s.hcq)),
                "weight_uq_qr",
                value,
                Tile(self.frame.copy("qcqr", step), step.rows, columns),
                SCALE if value == 1 else REAL,
                keep_a=resident and n > 0,
            )
            if s.by_head:
                self.set("QCQR_SPLIT_N", step)

    def _product(self, job: Job, a: Tile, weight: str, value: int, out: Tile, out_value: int, *, keep_a: bool = False) -> None:
        """A (rows, K) by (K, columns) product, `inner` of K at a time into one accumulator."""
        (first, end), columns = a.rows, job.columns
        rows, width = end - first, columns[1] - columns[0]
        total = "accumulator"
        for inner in self._inner(job.kernel, a.columns[1], value):
            size = inner[1] - inner[0]
            if not keep_a:
                self.made.append(Load(job, Tile(a.buffer, a.rows, inner), f"a.{inner[0]}", rows * size * value))
            w = self._weight(job, weight, inner, value)
            inputs = (f"a.{inner[0]}", w) if inner[0] == 0 else (f"a.{inner[0]}", w, total)
            self.made.append(Compute(job, inputs, (total,), inner, (rows, size, width)))
        self.made.append(Store(job, total, out, rows * width * out_value))

    def _weight(self, job: Job, weight: str, inner: Span, value: int) -> str:
        local = f"w.{job.kernel}.{job.step}.{job.columns[0]}.{inner[0]}"
        if local not in self.preloaded:
            self.preloaded.add(local)
            size = (inner[1] - inner[0]) * (job.columns[1] - job.columns[0]) * value
            self.made.append(Load(job, Tile(weight, inner, job.columns), local, size))
        return local

    def _inner(self, kernel: str, k: int, value: int) -> list[Span]:
        size = INNER_BYTES[kernel] // value
        return [(at, min(at + size, k)) for at in range(0, k, size)]

    def _matmul_qn(self, head: int, step: Step) -> Job:
        return Job("MatmulQn", step.index, step.tokens, (head * self.sizes.hckv, (head + 1) * self.sizes.hckv))

    def _weight_uk(self, head: int, step: Step) -> str:
        s, local = self.sizes, f"w.MatmulQn.{step.index}.{head}"
        if local not in self.preloaded:
            self.preloaded.add(local)
            tile = Tile("weight_uk", (head * s.nope, (head + 1) * s.nope), (0, s.hckv))
            self.made.append(Load(self._matmul_qn(head, step), tile, local, s.nope * s.hckv * REAL))
        return local

    def _absorb(self, head: int, step: Step) -> None:
        s, job = self.sizes, self._matmul_qn(head, step)
        buffer, stride = ("qc", s.nope) if s.scenario.partial else (self.frame.copy("qcqr", step), s.head)
        a = Tile(buffer, step.rows, (head * stride, head * stride + s.nope))
        w = self._weight_uk(head, step)
        out = Tile("qn", step.rows, job.columns) if s.scenario.query_quantised else Tile("query", step.tokens, job.columns)
        self.made += [
            Load(job, a, "qc", step.count * s.nope * REAL),
            Compute(job, ("qc", w), ("qn",), (0, s.nope), (step.count, s.nope, s.hckv)),
            Store(job, "qn", out, step.count * s.hckv * REAL),
        ]
