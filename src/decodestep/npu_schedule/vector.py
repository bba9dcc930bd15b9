"""The program of a vector core, in the cube cores' phases: norms, cache rows and rotations of its tokens, int8 conversions."""

from __future__ import annotations

from decodestep.npu_schedule.core_program import CoreProgram
from decodestep.npu_schedule.frame import REAL, SCALE, Frame, Step
from decodestep.npu_schedule.instructions import (
    VECTOR,
    Compute,
    Job,
    Load,
    Span,
    Store,
    Tile,
)


class VectorProgram(CoreProgram):
    kind = VECTOR

    def __init__(self, frame: Frame, index: int) -> None:
        super().__init__(frame, index)
        cube = index // frame.sizes.group
        self.heads = frame.heads_of(cube)
        left, right = frame.columns_of("MatmulQcQr", cube)
        self.query_tiles = frame.tiles((left, right))

    def down(self, step: Step) -> None:
        """Loads sin and cos, normalises the queries, writes the cache rows."""
        self._angles("kr", self._own(step), step)
        if self.sizes.by_head and self.heads:
            self._angles("qr", self._group_tokens(step), step)
        order = (self._norm, self._cache_rows)
        for part in reversed(order) if self.frame.design.ckvkr_first else order:
            part(step)

    def up(self, step: Step) -> None:
        """Rotates the queries, after dequantising those of int8 products."""
        s = self.sizes
        if s.by_head:
            self._by_head(step)
            return
        self.wait("QCQR", step)
        self.join("VEC_ALL_QCQR", step)
        if s.scenario.partial:
            self._dequant(step)
            self.join("VEC_ALL_DEQUANT", step)
            self.set("DEQUANT_QC", step)
        self._rotate(step)
        if s.scenario.query_quantised:
            self.join("VEC_ALL_ROPE", step)

    def absorb(self, step: Step) -> None:
        """Quantises the absorbed queries of an int8 query, head by head."""
        if self.sizes.scenario.query_quantised:
            for head in self.heads:
                self.wait("QN_SPLIT_N", step)
                self._quantise(head, step)

    def _own(self, step: Step) -> Span:
        return self.frame.own_tokens(self.index, step)

    def _group_tokens(self, step: Step) -> Span:
        return self.frame.group_tokens(self.index, step)

    def _job(self, kernel: str, rows: Span, columns: Span, step: Step) -> Job:
        return Job(kernel, step.index, (step.first + rows[0], step.first + rows[1]), columns)

    def _angles(self, which: str, rows: Span, step: Step) -> None:
        if rows[1] > rows[0]:
            job = self._job("LoadSinCos", rows, (0, self.sizes.rope), step)
            size = (rows[1] - rows[0]) * self.sizes.rope * REAL
            for name in ("sin", "cos"):
                self.made.append(Load(job, Tile(f"rope_{name}", job.tokens, job.columns), f"{name}.{which}", size))

    def _norm(self, step: Step) -> None:
        s, rows = self.sizes, self._own(step)
        self.wait("MM_CQ", step)
        self.join("VEC_ALL_CQ", step)
        if (count := rows[1] - rows[0]) > 0:
            job = self._job("RmsNormCq", rows, (0, s.hcq), step)
            value = SCALE if s.scenario.full else REAL
            self.made += [
                Load(job, Tile("cq", rows, job.columns), "cq", count * s.hcq * value),
                Compute(job, ("cq",), ("normed", "scale") if s.scenario.partial else ("normed",), values=count * s.hcq),
                Store(job, "normed", Tile("cq_normed", rows, job.columns), count * s.hcq * (1 if s.scenario.partial else REAL)),
            ]
            if s.by_head:
                self.made.append(Store(job, "scale", Tile("cq_scale", rows, (0, 1)), count * SCALE))
        self.join("VEC_ALL_NORM", step)
        shared = self._group_tokens(step)
        if s.by_head and self.heads and shared[1] > shared[0]:
            job = self._job("DequantRopeQr", shared, (0, 1), step)
            self.made.append(Load(job, Tile("cq_scale", shared, (0, 1)), "scale.qr", (shared[1] - shared[0]) * SCALE))
        self.set("RMSNORM_CQ", step)

    def _cache_rows(self, step: Step) -> None:
        s, rows = self.sizes, self._own(step)
        self.wait("MM_CKVKR", step)
        self.join("VEC_ALL_CKVKR", step)
        if (count := rows[1] - rows[0]) > 0 and s.cached:
            job = self._job("NormRopeCkvKr", rows, (0, s.hckv + s.rope), step)
            value = SCALE if s.scenario.full else REAL
            kv = count * s.hckv * (1 if s.scenario.kv else REAL)
            kr = count * s.rope * (1 if s.scenario.kr_int8 else REAL)
            self.made += [
                Load(job, Tile(self.frame.copy("ckvkr", step), rows, job.columns), "ckvkr", count * job.columns[1] * value),
                Compute(job, ("ckvkr", "sin.kr", "cos.kr"), ("kv", "kr"), values=count * job.columns[1]),
                Store(job, "kv", Tile("kv_cache", job.tokens, (0, s.hckv)), kv),
                Store(job, "kr", Tile("kr_cache", job.tokens, (0, s.rope)), kr),
            ]
        if self.frame.joins and step.index + 1 < len(self.frame.steps):
            self.join("VEC_ALL_DONE", step)
            self.set("CKVKR_DONE", step)

    def _dequant(self, step: Step) -> None:
        s, rows = self.sizes, self._own(step)
        if (count := rows[1] - rows[0]) > 0:
            job = self._job("DequantQc", rows, (0, s.heads * s.nope), step)
            size = count * s.heads * s.nope
            self.made += [
                Load(job, Tile(self.frame.copy("qcqr", step), rows, (0, s.nope), s.heads, s.head), "qcqr", size * SCALE),
                Compute(job, ("qcqr", "scale"), ("qc",), values=size),
                Store(job, "qc", Tile("qc", rows, job.columns), size * REAL),
            ]

    def _rotate(self, step: Step) -> None:
        s, rows = self.sizes, self._own(step)
        if (count := rows[1] - rows[0]) > 0:
            job = self._job("RopeQr", rows, (0, s.heads * s.rope), step)
            size = count * s.heads * s.rope
            value, scale = (SCALE, ("scale",)) if s.scenario.partial else (REAL, ())
            self.made += [
                Load(job, Tile(self.frame.copy("qcqr", step), rows, (s.nope, s.head), s.heads, s.head), "qcqr", size * value),
                Compute(job, ("qcqr", "sin.kr", "cos.kr", *scale), ("qr",), values=size),
                Store(job, "qr", Tile("query_rope", job.tokens, job.columns), size * REAL),
            ]

    def _by_head(self, step: Step) -> None:
        """Processes each head of the group as soon as its tiles of MatmulQcQr are ready."""
        s, rows, seen = self.sizes, self._group_tokens(step), 0
        count = rows[1] - rows[0]
        for head in self.heads:
            columns = (head * s.head, (head + 1) * s.head)
            while seen < len(self.query_tiles) and self.query_tiles[seen][0] < columns[1]:
                self.wait("QCQR_SPLIT_N", step)
                seen += 1
            if count:
                job = self._job("DequantRopeQr", rows, columns, step)
                qc, qr = ((head * width, (head + 1) * width) for width in (s.nope, s.rope))
                self.made += [
                    Load(job, Tile(self.frame.copy("qcqr", step), rows, columns), "qcqr", count * s.head * SCALE),
                    Compute(job, ("qcqr", "sin.qr", "cos.qr", "scale.qr"), ("qc", "qr"), values=count * s.head),
                    Store(job, "qc", Tile("qc", rows, qc), count * s.nope * REAL),
                    Store(job, "qr", Tile("query_rope", job.tokens, qr), count * s.rope * REAL),
                ]
            self.set("DEQUANT_QC_SPLIT_N", step)

    def _quantise(self, head: int, step: Step) -> None:
        s, rows = self.sizes, self._group_tokens(step)
        if (count := rows[1] - rows[0]) > 0:
            job = self._job("QuantQnMulQr", rows, (head * s.hckv, (head + 1) * s.hckv), step)
            rope = Tile("query_rope", job.tokens, (head * s.rope, (head + 1) * s.rope))
            self.made += [
                Load(job, Tile("qn", rows, job.columns), "qn", count * s.hckv * REAL),
                Load(job, rope, "qr", count * s.rope * REAL),
                Compute(job, ("qn", "qr"), ("q", "q_scale", "qr"), values=count * (s.hckv + s.rope)),
                Store(job, "q", Tile("query", job.tokens, job.columns), count * s.hckv),
                Store(job, "q_scale", Tile("dequant_scale_q_nope", job.tokens, (head, head + 1)), count * SCALE),
                Store(job, "qr", rope, count * s.rope * REAL),
            ]
