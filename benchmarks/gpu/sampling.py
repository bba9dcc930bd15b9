"""bench_decode_step on a GPU: the captured decode step against FlashInfer's kernels and torch's sort, eager and compiled.

Ours does all that the parameters say. FlashInfer's samplers take probabilities, so their time includes its softmax of float32,
and know no min-p beside top-k and top-p: of "full" they do less.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np

import decodestep as ds
from decodestep.ops.decode_step import steps as s
from decodestep.ops.decode_step.arguments import normalise_arguments
from gpu.device import DeviceReport
from measuring.harness import Call, torch
from measuring.sampling import HISTORY, Case, Logits, case, logits_of
from measuring.sampling_check import verify


class Ours:
    """The kernels alone: the steps lie on the device, and nothing is allocated, so that a graph can hold the call."""

    ties = "kept"

    def __init__(self, case: Case, logits: Any, array: np.ndarray) -> None:
        from decodestep.ops.decode_step import triton

        greedy = [params.greedy for params in case.params]
        steps, _, seeds, positions, _ = normalise_arguments(array, case.steps(), np.array(greedy), 1, HISTORY, None)
        self.work = triton.Workspace(case.batch, case.vocab, logits.device)
        table = triton.device_table(steps, case.vocab, logits.device)
        columns = ((greedy, torch.int8), (seeds, torch.int64), (positions, torch.int64))
        held = [torch.tensor(values, dtype=dtype, device=logits.device) for values, dtype in columns]
        self.call = lambda: triton.launch(logits, table, *held, self.work)

    def sample(self, _: Logits) -> np.ndarray:
        return np.array(self.call().tolist())


class Peer:
    """A call that returns tokens on the device, verified before it is timed."""

    def __init__(self, call: Call, ties: str = "cut", lacks: tuple[type, ...] = ()) -> None:
        self.call, self.ties, self.lacks = call, ties, lacks

    def sample(self, _: Logits) -> np.ndarray:
        return np.array(self.call().tolist())


def run(chosen: Namespace) -> None:
    report = DeviceReport("decode_step", chosen.device)
    for vocab in chosen.vocab:
        for batch in chosen.batch:
            for dtype in chosen.dtypes:
                array = logits_of(np.random.default_rng(0), batch, vocab, dtype)
                plain = torch.from_numpy(array.astype(np.float32)).to(getattr(torch, dtype)).to(report.device)
                for name in chosen.cases:
                    measure(report, case(name, batch, vocab), array, plain, dtype, chosen.rounds)
    report.save()


def measure(report: DeviceReport, case: Case, array: np.ndarray, logits: Any, dtype: str, rounds: int) -> None:
    ours, both = Ours(case, logits, array), Logits(array, logits)
    greedy = np.array([params.greedy for params in case.params])
    want = ds.decode_step(array, case.steps(), greedy=greedy, seed=1, position=HISTORY, backend="cpu").tokens
    np.testing.assert_array_equal(ours.sample(both), want)  # the very tokens of the CPU
    verify(case, ours, both)
    theirs = report.peers({name: lambda make=make: verified(case, make(), both) for name, make in peers(case, logits).items()})
    report.on_device(f"{case.name} B={case.batch} V={case.vocab} {dtype}", {"ours": ours.call}, rounds, array.nbytes, theirs)


def verified(case: Case, peer: Peer, logits: Logits) -> Call:
    verify(case, peer, logits)
    return peer.call


def peers(case: Case, logits: Any) -> dict[str, Callable[[], Peer]]:
    params = case.params[0]
    if params.greedy and case.alike:
        return {"torch.argmax": lambda: Peer(lambda: logits.argmax(-1), "kept")}
    return {
        "torch sort": lambda: of_torch("Sort", case, logits),
        "torch sort, compiled": lambda: of_torch("CompiledSort", case, logits),
        "FlashInfer": lambda: flashinfer(case, logits),
    }


def of_torch(name: str, case: Case, logits: Any) -> Peer:
    from peers import torch_samplers

    if case.name in ("penalties", "mixed"):
        raise ValueError("its penalties are laid out on the host")
    with torch.device(logits.device):
        sampler = getattr(torch_samplers, name)(case)

    def call() -> Any:
        with torch.device(logits.device):
            return sampler.draw(logits)

    return Peer(call)


def flashinfer(case: Case, logits: Any) -> Peer:
    import flashinfer.sampling as theirs

    params = case.params[0]
    if not case.alike or case.name == "penalties":
        raise ValueError("needs the same parameters in every row, and no penalties")

    def call() -> Any:
        probs = theirs.softmax(logits.float(), params.temperature)
        if params.top_k:
            return theirs.top_k_top_p_sampling_from_probs(probs, params.top_k, params.top_p)
        if params.top_p < 1:
            return theirs.top_p_sampling_from_probs(probs, params.top_p)
        return theirs.min_p_sampling_from_probs(probs, params.min_p) if params.min_p else theirs.sampling_from_probs(probs)

    return Peer(call, "kept", (s.MinP,) if params.top_k else ())
