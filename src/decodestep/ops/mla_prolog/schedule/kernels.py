"""What the instructions of a schedule compute, on tiles: the stages of the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decodestep._base.arrays import widen
from decodestep._base.checks import refuse
from decodestep.ops.mla_prolog.problem import Problem
from decodestep.ops.mla_prolog.reference import cache_rows, exact_product, in_query_units, quantise_rows, rms_norm, rotate
from decodestep.ops.mla_prolog.schedule.instructions import Compute, Job
from decodestep.ops.mla_prolog.schedule.sizes import Sizes

Values = Sequence[np.ndarray]


class Kernels:
    """The kernels of one call. Each takes local values and returns local values."""

    def __init__(self, sizes: Sizes, p: Problem) -> None:
        self.sizes, self.p = sizes, p
        self.math = np.dtype(np.float64 if p.real == np.float64 else np.float32)
        self.scales = {name: scale.astype(self.math) for name, scale in p.scales.items()}
        self.by_name = {
            "RmsNormCq": self._norm,
            "NormRopeCkvKr": self._cache_rows,
            "DequantQc": self._dequant,
            "RopeQr": self._rotate,
            "DequantRopeQr": self._by_head,
            "QuantQnMulQr": self._quantise,
        }

    def compute(self, instruction: Compute, inputs: Values) -> Values:
        kernel = instruction.job.kernel
        if kernel.startswith("Matmul"):
            return [self._multiply(inputs)]
        if kernel not in self.by_name:
            refuse("simulate", "kernel", f"one of the four products or {', '.join(self.by_name)}", repr(kernel))
        return self.by_name[kernel](instruction.job, inputs)

    def _multiply(self, inputs: Values) -> np.ndarray:
        a, w, *so_far = inputs
        product = exact_product(a, w) if w.dtype == np.int8 else widen(a, self.math) @ widen(w, self.math)
        return product + so_far[0] if so_far else product

    def _raw(self, values: np.ndarray, job: Job, scale: str) -> np.ndarray:
        """The result of a product of tokens: the integers of an int8 product with their scales."""
        wide = values.astype(self.math)
        if self.sizes.scenario.full:
            return wide * self.scales["dequant_scale_x"][slice(*job.tokens)] * self.scales[scale]
        return wide

    def _queries(self, values: np.ndarray, scale: Values, columns: slice | np.ndarray) -> np.ndarray:
        wide = values.astype(self.math)
        return wide * scale[0] * self.scales["dequant_scale_w_uq_qr"][:, columns] if scale else wide

    def _norm(self, job: Job, inputs: Values) -> Values:
        p = self.p
        normed = rms_norm(self._raw(inputs[0], job, "dequant_scale_w_dq"), p.gamma_cq, p.eps_cq, p.alpha_cq)
        if not self.sizes.scenario.partial:
            return [normed.astype(p.real)]
        return quantise_rows(normed * self.scales.get("smooth_scales_cq", self.math.type(1)))

    def _cache_rows(self, job: Job, inputs: Values) -> Values:
        p, hckv = self.p, self.sizes.hckv
        sin, cos = (widen(a, self.math) for a in inputs[1:])
        raw = self._raw(inputs[0], job, "dequant_scale_w_dkv_kr")
        kc = rms_norm(raw[:, :hckv], p.gamma_ckv, p.eps_ckv, p.alpha_ckv)
        rows = cache_rows(p, kc, rotate(raw[:, hckv:], sin, cos).astype(p.real), self.scales)
        return [rows["kv"], rows.get("kr", np.empty((len(kc), 0), p.real))]

    def _dequant(self, job: Job, inputs: Values) -> Values:
        """The nope columns of all heads, dequantised."""
        s = self.sizes
        columns = np.arange(s.heads * s.head).reshape(s.heads, s.head)[:, : s.nope].reshape(-1)
        return [self._queries(inputs[0][:, columns], inputs[1:], columns).astype(self.p.real)]

    def _rotate(self, job: Job, inputs: Values) -> Values:
        """The rope columns of all heads, rotated."""
        s = self.sizes
        columns = np.arange(s.heads * s.head).reshape(s.heads, s.head)[:, s.nope :].reshape(-1)
        return [self._rotated(self._queries(inputs[0][:, columns], inputs[3:], columns), inputs[1:3])]

    def _by_head(self, job: Job, inputs: Values) -> Values:
        s = self.sizes
        q = self._queries(inputs[0], inputs[3:], slice(*job.columns))
        return [q[:, : s.nope].astype(self.p.real), self._rotated(q[:, s.nope :], inputs[1:3])]

    def _rotated(self, q: np.ndarray, angles: Values) -> np.ndarray:
        sin, cos = (widen(a, self.math)[:, None] for a in angles)
        wide = rotate(q.reshape(len(q), -1, self.sizes.rope), sin, cos)
        return wide.astype(self.p.real).reshape(len(q), -1)

    def _quantise(self, job: Job, inputs: Values) -> Values:
        query, scale = quantise_rows(widen(inputs[0], self.math), self.p.rounding)
        return [query, scale, in_query_units(inputs[1], scale, self.scales["quant_scale_ckv"].flat[0])]
