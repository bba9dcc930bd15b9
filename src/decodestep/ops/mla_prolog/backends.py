"""The backends of a call: which one runs it, on the host or on a GPU, and its results in the caller's kind."""

from __future__ import annotations

from decodestep._base import arrays, devices
from decodestep._base.arrays import Array
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep.ops.mla_prolog import cpu, reference
from decodestep.ops.mla_prolog.arguments import bind
from decodestep.ops.mla_prolog.call import Call
from decodestep.ops.mla_prolog.problem import Results, kernel_obstacle
from decodestep.ops.mla_prolog.results import MlaPrologV3Result


def run_call(call: Call) -> MlaPrologV3Result:
    """Runs a call of any version; what V1 and V2 lack is None."""
    made = _run_on_device(call) if devices.goes_to_triton(call.backend, call.token_x) else _run_on_host(call)
    return MlaPrologV3Result(
        _with_axes_of(made.query, call.token_x),
        _with_axes_of(made.query_rope, call.token_x),
        _of_kind(made.dequant_scale_q_nope, call.token_x),
        _with_axes_of(made.query_norm, call.token_x),
        _of_kind(made.dequant_scale_q_norm, call.token_x),
    )


def _run_on_host(call: Call) -> Results:
    problem = bind(call)
    backend = choose(call.op, call.backend, {"cpu": kernel_obstacle(problem), "reference": None})
    return run(call.op, backend, cpu.prolog if backend == "cpu" else reference.prolog, problem)


def _run_on_device(call: Call) -> Results:
    devices.choose_triton(call.op, call.backend, call.token_x)
    from decodestep.ops.mla_prolog import triton
    from decodestep.ops.mla_prolog.triton.binding import bind_on_device

    return devices.run_there(call.op, call.token_x.device, triton.prolog, bind_on_device(call), call)


def _with_axes_of(result: Array | None, token_x: Array) -> Array | None:
    """A result of merged tokens with token_x's own axes, in its kind."""
    if result is None:
        return None
    if len(token_x.shape) == 3:
        result = result.reshape(*token_x.shape[:2], *result.shape[1:])
    return result if arrays.is_torch(result) else arrays.like(token_x, result)


def _of_kind(result: Array | None, token_x: Array) -> Array | None:
    """A result that keeps T as one axis, in token_x's kind."""
    return result if result is None or arrays.is_torch(result) else arrays.like(token_x, result)
