"""The computations of a schedule's instructions on tiles: the stages of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from decodestep._base.arrays import widen
from decodestep._base.checks import require, require_choice
from decodestep.npu_schedule.instructions import Compute, Job
from decodestep.npu_schedule.sizes import Sizes
from decodestep.ops.mla_prolog.problem import Problem
from decodestep.ops.mla_prolog.reference import cache_rows, in_query_units, quantise_rows, rms_norm, rotate

PRODUCTS = ("MatmulCq", "MatmulCkvKr", "MatmulQcQr", "MatmulQn")
# Products are computed in blocks too small for NumPy's BLAS to use threads: for many small products the threads would spend
# more time waiting for each other than multiplying.
_ROWS, _INNER, _COLUMNS = 128, 128, 16

Values: TypeAlias = "Sequence[np.ndarray]"


class Products(NamedTuple):
    """An accumulator before summation: parts of A and of B whose products are its terms."""

    a: tuple[np.ndarray, ...]
    b: tuple[np.ndarray, ...]


Local: TypeAlias = "np.ndarray | Products"


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

    def compute(self, instruction: Compute, inputs: Sequence[Local]) -> Sequence[Local]:
        if instruction.job.kernel in PRODUCTS:
            return [_accumulate(*inputs)]
        return self.by_name[instruction.job.kernel](instruction.job, [self.value(v) for v in inputs])

    def check(self, instruction: Compute) -> None:
        """Refuses an unknown kernel or a wrong number of values."""
        kernel, given = instruction.job.kernel, (len(instruction.inputs), len(instruction.outputs))
        require_choice("simulate", "kernel", kernel, (*PRODUCTS, *self.by_name))
        quantised, norms = self.sizes.scenario.partial, 1 + self.sizes.scenario.partial
        wanted = {
            "RmsNormCq": [(1, norms)],
            "NormRopeCkvKr": [(3, 2)],
            "DequantQc": [(2, 1)],
            "RopeQr": [(3 + quantised, 1)],
            "DequantRopeQr": [(4, 2)],
            "QuantQnMulQr": [(2, 3)],
        }.get(kernel, [(2, 1), (3, 1)])
        require(given in wanted, "simulate", f"inputs and outputs of {kernel}", " or ".join(map(str, wanted)), given)

    def value(self, local: Local) -> np.ndarray:
        """The array of a local value. Terms are summed only here, because one product costs less than its parts."""
        if not isinstance(local, Products):
            return local
        a, b = np.concatenate(local.a, axis=1), np.concatenate(local.b)
        if b.dtype == np.int8:  # sums of _INNER such products are exact in float32
            return _product(a.astype(np.float32), b.astype(np.float32), np.float64).astype(np.int64)
        return _product(widen(a, self.math), widen(b, self.math), self.math)

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
        return [self._queries(inputs[0], inputs[1:], columns).astype(self.p.real)]

    def _rotate(self, job: Job, inputs: Values) -> Values:
        """The rope columns of all heads, rotated."""
        s = self.sizes
        columns = np.arange(s.heads * s.head).reshape(s.heads, s.head)[:, s.nope :].reshape(-1)
        return [self._rotate_heads(self._queries(inputs[0], inputs[3:], columns), inputs[1:3])]

    def _by_head(self, job: Job, inputs: Values) -> Values:
        s = self.sizes
        q = self._queries(inputs[0], inputs[3:], slice(*job.columns))
        return [q[:, : s.nope].astype(self.p.real), self._rotate_heads(q[:, s.nope :], inputs[1:3])]

    def _rotate_heads(self, q: np.ndarray, angles: Values) -> np.ndarray:
        sin, cos = (widen(a, self.math)[:, None] for a in angles)
        wide = rotate(q.reshape(len(q), -1, self.sizes.rope), sin, cos)
        return wide.astype(self.p.real).reshape(len(q), -1)

    def _quantise(self, job: Job, inputs: Values) -> Values:
        query, scale = quantise_rows(widen(inputs[0], self.math), self.p.rounding)
        return [query, scale, in_query_units(inputs[1], scale, self.scales["quant_scale_ckv"].flat[0])]


def _accumulate(a: Local, b: Local, so_far: Local | None = None) -> Products:
    earlier = so_far if isinstance(so_far, Products) else Products((), ())
    return Products((*earlier.a, a), (*earlier.b, b))  # type: ignore[arg-type]


def _product(a: np.ndarray, b: np.ndarray, sums: np.dtype[Any] | type[np.floating[Any]]) -> np.ndarray:
    """a @ b in blocks; the blocks' results are added in the dtype `sums`."""
    rows, columns = len(a), b.shape[1]
    if rows > _ROWS:
        return np.concatenate([_product(a[top : top + _ROWS], b, sums) for top in range(0, rows, _ROWS)])
    inner, wide = -a.shape[1] % _INNER, -columns % _COLUMNS
    if inner or wide:
        a, b = np.pad(a, ((0, 0), (0, inner))), np.pad(b, ((0, inner), (0, wide)))
    left = a.reshape(rows, -1, _INNER).transpose(1, 0, 2)[:, None]
    right = b.reshape(-1, _INNER, b.shape[1] // _COLUMNS, _COLUMNS).transpose(0, 2, 1, 3)
    total = (left @ right).sum(axis=0, dtype=sums)
    return total.transpose(1, 0, 2).reshape(rows, -1)[:, :columns]
