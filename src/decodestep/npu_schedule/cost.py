"""The cost model: the time of each instruction, from named parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from decodestep._base.checks import is_finite, is_int, is_real, require
from decodestep.npu_schedule.instructions import CUBE, Compute, Core, Load, Store
from decodestep.npu_schedule.sizes import Sizes

HBM, L2 = "hbm", "l2"

# Vector operations per value, counted from the formulas: casts, products, sums, roundings.
_PASSES = {
    "RmsNormCq": 11.0,
    "NormRopeCkvKr": 9.0,
    "DequantQc": 4.0,
    "RopeQr": 8.0,
    "DequantRopeQr": 6.0,
    "QuantQnMulQr": 7.0,
}
# Data that many cores read, or that cores exchange, is in the L2 cache; weights, caches and results are in HBM.
_L2 = ("token_x", "cq", "cq_normed", "cq_scale", "ckvkr", "qcqr", "qc", "qn", "rope_sin", "rope_cos")


@dataclass(frozen=True)
class CostModel:
    """The costs of one device, in seconds, bytes per second and cycles per second.

    cube_hz: clock rate of a cube core. bfloat16_cycles, int8_cycles: cycles for a product of two fractals, `fractal_rows` x c0
        by c0 x `fractal_columns`, where c0 values occupy `fractal_bytes`. A partial fractal costs as much as a whole one.
    vector_hz, vector_lanes: clock rate of a vector core; float32 values per operation. vector_passes: by kernel, operations per
        value.
    hbm_bytes, l2_bytes: bandwidth of HBM and of the L2 cache for all cores together, shared equally by concurrent moves.
        core_bytes: the highest bandwidth of one move. l2_buffers: the matrices that are in the L2 cache.
    flag_seconds: the latency from a set to the waits that it ends. move_seconds: the fixed cost of a move.
    buffers: how many computations ahead moves to a core may run.

    The defaults are one die of an Ascend 910C: 24 cube and 48 vector cores, 376 TFLOPS in bfloat16, 1.6 TB/s (P. Zuo et al.,
    "Serving Large Language Models on Huawei CloudMatrix384", arXiv:2506.12708, 2025), hence the cycles; products of
    16 x 16 x 16 (int8: 16 x 16 x 32) and 2048 bits a cycle, 4 TB/s of L2 (Ascend 910, Hot Chips 31, 2019). Not published and
    assumed: 128 bytes a cycle for one core, half a microsecond for a flag, nothing for starting a move, the kernels' passes.
    Raises ValueError for a rate that is not > 0 or a time that is not >= 0.
    """

    cube_hz: float = 1.9124e9
    bfloat16_cycles: float = 1.0
    int8_cycles: float = 1.0
    fractal_rows: int = 16
    fractal_columns: int = 16
    fractal_bytes: int = 32
    vector_hz: float = 1.9124e9
    vector_lanes: int = 64
    vector_passes: Mapping[str, float] = field(default_factory=lambda: MappingProxyType(_PASSES))
    hbm_bytes: float = 1.6e12
    l2_bytes: float = 4e12
    core_bytes: float = 128 * 1.9124e9
    l2_buffers: tuple[str, ...] = _L2
    flag_seconds: float = 0.5e-6
    move_seconds: float = 0.0
    buffers: int = 2

    def __post_init__(self) -> None:
        costs = {f"vector_passes[{kernel!r}]": self.vector_passes.get(kernel) for kernel in _PASSES}
        for name, kind in NUMBERS.items():
            value = getattr(self, name)
            if kind == "int":
                require(is_int(value) and value >= 1, "CostModel", name, "an integer >= 1", value)
            elif name.endswith(("_seconds", "_cycles")):  # of what may take no time
                costs[name] = value
            else:
                require(is_real(value) and value > 0, "CostModel", name, "a number > 0", value)
        for name, cost in costs.items():
            require(is_finite(cost) and cost >= 0, "CostModel", name, "a finite number >= 0", cost)

    def level(self, instruction: Load | Store) -> str:
        """The memory level that a move reads from or writes to."""
        tile = instruction.source if isinstance(instruction, Load) else instruction.target
        return L2 if tile.buffer.partition(".")[0] in self.l2_buffers else HBM

    def seconds(self, core: Core, instruction: Compute, sizes: Sizes) -> float:
        """The time of a computation."""
        kernel = instruction.job.kernel
        if core.kind != CUBE:
            return instruction.values * self.vector_passes.get(kernel, 1.0) / (self.vector_lanes * self.vector_hz)
        rows, inner, columns = instruction.shape
        int8 = {"MatmulQcQr": sizes.scenario.partial, "MatmulQn": False}.get(kernel, sizes.scenario.full)
        c0 = self.fractal_bytes // (1 if int8 else 2)
        fractals = -(-rows // self.fractal_rows) * -(-columns // self.fractal_columns) * -(-inner // c0)
        return fractals * (self.int8_cycles if int8 else self.bfloat16_cycles) / self.cube_hz


NUMBERS = {f.name: f.type for f in fields(CostModel) if f.type in ("int", "float")}  # its fields that --cost can set
