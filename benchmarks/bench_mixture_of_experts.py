"""mixture_of_experts on panels of Q4_0 and Q8_0, against torch's float32 products expert by expert.

    python benchmarks/bench_mixture_of_experts.py [--rounds 15] [--threads 1] [--hidden 2048] [--width 1408] [--experts 64]

The defaults are a layer of DeepSeek-V2-Lite, six experts a token and a shared block of two. The floor is one read of the panels
of all experts that are used. torch has the weights in float32; its floor would be 7 times that of Q4_0. With --device cuda
weights are bfloat16.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np

import decodestep as ds
from decodestep.weights import DeviceRows, FeedForward, Format, LinearPanels, PackedWeight
from gpu.device import KINDS, DeviceReport
from measuring.harness import Call, Report, options, run_main, torch

TOKENS, USED, SHARED = (1, 8, 64), 6, 2
BLOCK_BYTES = {Format.Q4_0: 18, Format.Q8_0: 34}
rng = np.random.default_rng(0)


def weight(form: Format, inputs: int, outputs: int) -> LinearPanels:
    blocks = rng.integers(0, 256, (outputs, inputs // 32, BLOCK_BYTES[form]), np.uint8)
    blocks[..., :2] = np.array([0.01], np.float16).view(np.uint8)
    return LinearPanels.pack(PackedWeight(blocks.reshape(outputs, -1), form, inputs))


def feed_forward(form: Format, hidden: int, width: int, count: int) -> FeedForward:
    return FeedForward(*(weight(form, *size) for size in ((hidden, count * width),) * 2 + ((width, count * hidden),)), count)


def dense(w: FeedForward, number: int) -> list[np.ndarray]:
    block = w.block(number)
    return [np.ascontiguousarray(m.rows().dense().T) for m in (block.gate, block.up, block.down) if isinstance(m, LinearPanels)]


def in_torch(x: np.ndarray, experts: np.ndarray, weights: np.ndarray, routed: FeedForward, shared: FeedForward) -> Call:
    used = {int(e): [torch.from_numpy(m) for m in dense(routed, e)] for e in np.unique(experts)}
    always = [torch.from_numpy(m) for m in dense(shared, 0)]
    t, names, factors = torch.from_numpy(x), torch.from_numpy(experts), torch.from_numpy(weights)
    linear = torch.nn.functional.linear

    def through(rows: object, gate: object, up: object, down: object) -> object:
        return linear(torch.nn.functional.silu(linear(rows, gate)) * linear(rows, up), down)

    def call() -> np.ndarray:
        y = through(t, *always)
        for expert, matrices in used.items():
            rows, column = torch.where(names == expert)
            y.index_add_(0, rows, through(t[rows], *matrices) * factors[rows, column, None])
        return y.numpy()

    return call


def on_device(chosen: Namespace) -> None:
    report = DeviceReport("mixture_of_experts", chosen.device)
    sizes = ((chosen.experts, chosen.width), (1, SHARED * chosen.width))
    routed, shared = (_random_block(chosen.hidden, width, count, report.device) for count, width in sizes)
    for tokens in TOKENS:
        x = torch.from_numpy(rng.standard_normal((tokens, chosen.hidden), np.float32)).to(report.device)
        logits = rng.standard_normal((tokens, chosen.experts), np.float32)
        experts, weights = (torch.from_numpy(a).to(report.device) for a in ds.expert_router(logits, min(USED, chosen.experts)))
        call = (x, experts, weights, routed, shared)
        ours, theirs = launched(*call), dense_on_device(*call)
        expected = theirs()
        assert (ours() - expected).abs().max() < 0.01 * expected.abs().max()
        read = len(experts.unique()) * routed.nbytes / routed.count + shared.nbytes
        report.on_device(
            f"bfloat16 T={tokens}", {"ours": ours}, chosen.rounds, read, report.peers({"torch": lambda t=theirs: t})
        )
    report.save()


def launched(x: Any, experts: Any, weights: Any, routed: FeedForward, shared: FeedForward) -> Call:
    """The launch, which a graph can hold; its result is that of the checked call."""
    from decodestep.ops.mixture_of_experts import triton

    plan = triton.make_plan(experts.cpu().numpy(), routed, shared, x.device)
    work = triton.Workspace(plan, routed, shared, x.device)
    call = lambda: triton.launch(x, weights, plan, routed, shared, work)  # noqa: E731
    assert torch.equal(call(), ds.mixture_of_experts(x, experts, weights, routed, shared, backend="triton"))
    return call


def _random_block(hidden: int, width: int, count: int, device: str) -> FeedForward:
    shapes = ((count * width, hidden),) * 2 + ((count * hidden, width),)
    values = (torch.randn(shape, device=device).mul_(shape[1] ** -0.5).bfloat16() for shape in shapes)
    return FeedForward(*(DeviceRows(matrix) for matrix in values), count)


def dense_on_device(x: Any, experts: Any, weights: Any, routed: FeedForward, shared: FeedForward) -> Call:
    """Expert by expert in float32, as the contract has it."""
    linear = torch.nn.functional.linear

    def through(rows: Any, block: FeedForward) -> Any:
        gate, up, down = (weight.values.float() for weight in block.weights)
        return linear(torch.nn.functional.silu(linear(rows, gate)) * linear(rows, up), down)

    def call() -> Any:
        y = through(x, shared)
        for expert in experts.unique().tolist():
            rows, column = torch.where(experts == expert)
            y.index_add_(0, rows, through(x[rows], routed.block(expert)) * weights[rows, column, None])
        return y

    return call


def main() -> None:
    chosen = options(__doc__, {"device": KINDS}, hidden=2048, width=1408, experts=64, device="cpu")
    if chosen.device != "cpu":
        return on_device(chosen)
    report = Report("mixture_of_experts", chosen.threads)
    for form in (Format.Q4_0, Format.Q8_0):
        routed = feed_forward(form, chosen.hidden, chosen.width, chosen.experts)
        shared = feed_forward(form, chosen.hidden, SHARED * chosen.width, 1)
        for tokens in TOKENS:
            x = rng.standard_normal((tokens, chosen.hidden), np.float32)
            logits = rng.standard_normal((tokens, chosen.experts), np.float32)
            call = (x, *ds.expert_router(logits, min(USED, chosen.experts)), routed, shared)
            calls: dict[str, Call] = {"ours": lambda call=call: ds.mixture_of_experts(*call)}
            expected = ds.mixture_of_experts(*call, backend="reference")
            assert np.abs(calls["ours"]() - expected).max() < 0.01 * np.abs(expected).max()
            if torch is not None:
                calls["torch float32"] = in_torch(*call)
                assert np.abs(calls["torch float32"]() - expected).max() < 0.1 * np.abs(expected).max()
            read = len(np.unique(call[1])) * routed.nbytes / routed.count + shared.nbytes
            report.case(f"{form.name} T={tokens}", calls, chosen.rounds, read)
    report.save()


if __name__ == "__main__":
    run_main(main)
