"""Which flags would order two accesses: for the description of a race."""

from __future__ import annotations

from decodestep.npu_schedule.graph import Event
from decodestep.npu_schedule.instructions import CUBE, Core, Schedule

# Kernels in the order of the operator, with the flags between producer and consumer.
_KERNELS = (
    "MatmulCq",
    "RmsNormCq",
    "MatmulCkvKr",
    "NormRopeCkvKr",
    "MatmulQcQr",
    "DequantQc",
    "RopeQr",
    "DequantRopeQr",
    "MatmulQn",
    "QuantQnMulQr",
)
_BETWEEN = {
    ("MatmulCq", "RmsNormCq"): ("MM_CQ", "VEC_ALL_CQ"),
    ("RmsNormCq", "MatmulQcQr"): ("RMSNORM_CQ", "VEC_ALL_NORM"),
    ("RmsNormCq", "DequantRopeQr"): ("VEC_ALL_NORM", "VEC_ALL_NORM"),
    ("MatmulCkvKr", "NormRopeCkvKr"): ("MM_CKVKR", "VEC_ALL_CKVKR"),
    ("NormRopeCkvKr", "MatmulCkvKr"): ("CKVKR_DONE", "VEC_ALL_DONE"),
    ("MatmulQcQr", "DequantQc"): ("QCQR", "VEC_ALL_QCQR"),
    ("MatmulQcQr", "RopeQr"): ("QCQR", "VEC_ALL_QCQR"),
    ("MatmulQcQr", "DequantRopeQr"): ("QCQR_SPLIT_N", "QCQR_SPLIT_N"),
    ("MatmulQcQr", "MatmulQn"): ("CUBE_ALL", "CUBE_ALL"),
    ("DequantQc", "MatmulQn"): ("DEQUANT_QC", "VEC_ALL_DEQUANT"),
    ("DequantRopeQr", "MatmulQn"): ("DEQUANT_QC_SPLIT_N", "DEQUANT_QC_SPLIT_N"),
    ("MatmulQn", "QuantQnMulQr"): ("QN_SPLIT_N", "QN_SPLIT_N"),
    ("RopeQr", "QuantQnMulQr"): ("VEC_ALL_ROPE", "VEC_ALL_ROPE"),
}


def place(kernel: str) -> int:
    """The place of a kernel in a step."""
    return _KERNELS.index(kernel) if kernel in _KERNELS else len(_KERNELS)


def what_orders(schedule: Schedule, first: Event, then: Event) -> str:
    """The design's flags between two accesses; if it has none, flags that would order them."""
    kernels = (first.instruction.job.kernel, then.instruction.job.kernel)  # type: ignore[union-attr]
    near = _group(schedule, first.core) == _group(schedule, then.core)
    known = _BETWEEN.get(kernels)
    if known:
        pair, everybody = known
        return pair if near or pair == everybody else f"{pair} and {everybody}"
    if first.core.kind == then.core.kind:
        if first.core == then.core:
            return "a flag that the later pipe's instructions wait for"
        return f"a flag of mode 0 among the {first.core.kind} cores"
    return "a flag of mode 2 in the group" if near else "a flag of mode 2, and one of mode 0 among the vector cores"


def _group(schedule: Schedule, core: Core) -> int:
    return core.number if core.kind == CUBE else core.number // schedule.sizes.group
