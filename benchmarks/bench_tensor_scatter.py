"""tensor_scatter: one token into a 64 MiB float16 cache, in place and as a new array, against NumPy, torch, onnxruntime.

    python benchmarks/bench_tensor_scatter.py [--rounds 15] [--threads 1] [--device cuda]

All batch rows write to the same slot, since torch's `index_copy_` and a slice know no other case.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np

import decodestep as ds
from gpu.device import KINDS, DeviceReport
from measuring.harness import Call, Report, options, run_main, torch

try:
    import onnxruntime
    from onnx import TensorProto, helper
except ImportError:
    onnxruntime = None

BATCH, HEADS, ROWS, WIDTH, SLOT = 4, 8, 16384, 64, 9001
rng = np.random.default_rng(0)
CACHE = rng.integers(0, 2**15, (BATCH, HEADS, ROWS, WIDTH), np.int16).view(np.float16)
UPDATE = rng.integers(0, 2**15, (BATCH, HEADS, 1, WIDTH), np.int16).view(np.float16)
STARTS = np.full(BATCH, SLOT)
EACH = np.arange(BATCH)


def numpy_in_place(cache: np.ndarray) -> np.ndarray:
    cache[EACH, :, STARTS] = UPDATE[:, :, 0]
    return cache


def numpy_slice(cache: np.ndarray) -> np.ndarray:
    cache[:, :, SLOT : SLOT + 1] = UPDATE
    return cache


def torch_calls(cache: np.ndarray) -> tuple[dict[str, Call], dict[str, Call]]:
    t, update, starts, each = map(torch.from_numpy, (cache, UPDATE, STARTS, EACH))
    whole, one = torch.from_numpy(CACHE), torch.tensor([SLOT])

    def slice_() -> Any:
        t[:, :, SLOT : SLOT + 1] = update
        return t

    def put_() -> Any:
        t[each, :, starts] = update[:, :, 0]
        return t

    in_place = {"torch slice": slice_, "torch index_copy_": lambda: t.index_copy_(2, one, update), "torch index_put_": put_}
    made = {
        "ours, torch tensors": lambda: ds.tensor_scatter(whole, update, starts),
        "torch index_copy": lambda: whole.index_copy(2, one, update),
        "torch index_put": lambda: whole.transpose(1, 2).index_put((each, starts), update[:, :, 0]).transpose(1, 2),
    }
    return {"ours, torch tensors": lambda: ds.tensor_scatter(t, update, starts, out=t), **in_place}, made


def onnxruntime_calls(cache: np.ndarray) -> tuple[dict[str, Call], dict[str, Call]]:
    def value(name: str, type_: int, rank: int) -> Any:
        return helper.make_tensor_value_info(name, type_, [None] * rank)

    node = helper.make_node("TensorScatter", ["past", "update", "w"], ["present"])
    inputs = [value("past", TensorProto.FLOAT16, 4), value("update", TensorProto.FLOAT16, 4), value("w", TensorProto.INT64, 1)]
    graph = helper.make_graph([node], "one", inputs, [value("present", TensorProto.FLOAT16, 4)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    binding, shared = session.io_binding(), onnxruntime.OrtValue.ortvalue_from_numpy(cache)  # on the same memory
    binding.bind_ortvalue_input("past", shared)
    binding.bind_ortvalue_output("present", shared)
    binding.bind_cpu_input("update", UPDATE)
    binding.bind_cpu_input("w", STARTS)

    def bound() -> Any:
        session.run_with_iobinding(binding)
        return shared

    return {"onnxruntime, bound": bound}, {
        "onnxruntime": lambda: session.run(None, {"past": CACHE, "update": UPDATE, "w": STARTS})[0]
    }


def calls(cache: np.ndarray) -> tuple[dict[str, Call], dict[str, Call]]:
    """In place, all on the memory of `cache`; and as a new array."""
    in_place: dict[str, Call] = {
        "ours": lambda: ds.tensor_scatter(cache, UPDATE, STARTS, out=cache),
        "NumPy index arrays": lambda: numpy_in_place(cache),
        "NumPy slice": lambda: numpy_slice(cache),
    }
    made: dict[str, Call] = {
        "ours": lambda: ds.tensor_scatter(CACHE, UPDATE, STARTS),
        "NumPy copy, slice": lambda: numpy_slice(CACHE.copy()),
    }
    for present, maker in ((torch, torch_calls), (onnxruntime, onnxruntime_calls)):
        if present is not None:
            more = maker(cache)
            in_place |= more[0]
            made |= more[1]
    return in_place, made


def verify(cache: np.ndarray, *groups: dict[str, Call]) -> None:
    expected = CACHE.copy()
    for b in range(BATCH):
        expected[b, :, SLOT] = UPDATE[b, :, 0]
    before = CACHE.tobytes()
    for name, call in (item for group in groups for item in group.items()):
        cache[...] = CACHE
        result = call()
        result = result.numpy() if hasattr(result, "numpy") else np.asarray(result)
        assert np.array_equal(result.view(np.int16), expected.view(np.int16)), name
    assert CACHE.tobytes() == before


def on_device(chosen: Namespace) -> None:
    report = DeviceReport("tensor_scatter", chosen.device)
    expected = CACHE.copy()
    expected[:, :, SLOT : SLOT + 1] = UPDATE
    cache, update = (torch.from_numpy(array.copy()).to(report.device) for array in (CACHE, UPDATE))
    one = torch.tensor([SLOT], device=report.device)
    calls = {"ours, in place": lambda: ds.tensor_scatter(cache, update, STARTS, out=cache, backend="triton")}
    assert np.array_equal(calls["ours, in place"]().cpu().numpy().view(np.int16), expected.view(np.int16))
    theirs = report.peers({"torch index_copy_": lambda: lambda: cache.index_copy_(2, one, update)})
    report.on_device("in place", calls, chosen.rounds, 2 * UPDATE.nbytes, theirs)
    report.save()


def main() -> None:
    chosen = options(__doc__, {"device": KINDS}, device="cpu")
    if chosen.device != "cpu":
        return on_device(chosen)
    cache = CACHE.copy()
    in_place, made = calls(cache)
    verify(cache, in_place, made)
    report = Report("tensor_scatter", chosen.threads)
    report.case("in place", in_place, chosen.rounds, 2 * UPDATE.nbytes)
    report.case("a new array", made, chosen.rounds, 2 * CACHE.nbytes)
    report.save()


if __name__ == "__main__":
    run_main(main)
