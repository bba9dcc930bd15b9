"""bench_mla_prolog on a GPU, against torch eager and compiled. Interpreted, the sizes are smaller."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np

import bench_mla_prolog as host
import decodestep as ds
from gpu.device import DeviceReport
from measuring.harness import Call, torch

SMALL = {"He": 96, "Hcq": 64, "D": 16, "Hckv": 32, "Dr": 16}


def run(chosen: Namespace) -> None:
    report = DeviceReport("mla_prolog", chosen.device)
    if report.interpreted:
        vars(host).update(SMALL)
    for N in chosen.heads:
        for kind in chosen.types:
            cases(report, chosen, N, kind == "int8")
    report.save()


def cases(report: DeviceReport, chosen: Namespace, N: int, int8: bool) -> None:
    rng = np.random.default_rng(0)
    plain = host.weights(rng, N)
    given = host.int8_weights(plain) if int8 else plain
    nbytes = sum(given[name].nbytes for name in (*host.WEIGHTS, "weight_uk"))
    from decodestep.ops.mla_prolog.triton import prepare  # after the choice of the interpreter

    operator: Any = ds.mla_prolog_v2 if int8 else ds.mla_prolog
    for T in chosen.tokens:
        p = host.problem(rng, T, plain)
        expected = host.truth(p)
        p = host.int8_problem(p, given) if int8 else p
        there = {name: host.tensor(np.array(value)).to(report.device) for name, value in p.items()}
        calls: dict[str, Call] = {"ours": prepare(operator, **there, backend="triton").run}
        verified("ours", calls["ours"](), expected, int8)

        def made(name: str, there: Any = there, expected: Any = expected) -> Call:
            own = there if int8 else there | {w: there[w].t().contiguous() for w in host.WEIGHTS}
            function = host.torch_int8 if int8 else host.torch_bf16
            if "compiled" in name:
                torch.compiler.reset()
                function = torch.compile(function, dynamic=False)
            verified(name, function(own), expected, int8)
            return lambda: function(own)

        names = ["torch eager"] + ["torch compiled"] * bool(chosen.compile)
        peers = report.peers({name: lambda name=name, made=made: made(name) for name in names})
        report.on_device(f"{'int8' if int8 else 'bfloat16'} N={N} T={T}", calls, chosen.rounds, nbytes, peers)


def verified(name: str, made: Any, expected: tuple[np.ndarray, np.ndarray], int8: bool) -> None:
    pair = host.real_query(made) if int8 else made
    host.verify(name, [each.float().cpu() for each in pair[:2]], expected, 0.05 if int8 else 0.02)
