"""Shared by the GPU benchmarks: timing on the device, memory bandwidth, and runs without a GPU that only verify.

Calls are timed with device events, each after the caches have been filled with zeros, and as a replay of a CUDA graph if the
call can be captured, because launching from Python takes longer than most of these kernels.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Mapping
from typing import Any

from measuring.harness import Call, Report, torch

KINDS = ("cpu", "cuda", "interpreted")
_FLUSHED = 1 << 28  # bytes, more than the caches of any GPU
_COPIED = 1 << 30


class DeviceReport(Report):
    """A `Report` of calls on a GPU. kind: "cuda", or "interpreted", which verifies on the CPU by Triton's interpreter and times
    nothing."""

    def __init__(self, stem: str, kind: str) -> None:
        if torch is None:
            sys.exit(f"bench_{stem}: --device {kind} needs torch")
        if kind == "cuda" and not torch.cuda.is_available():
            sys.exit(f"bench_{stem}: --device cuda needs a GPU, and torch finds none here")
        self.stem, self.threads, self.rows = stem, 1, list[tuple[Any, ...]]()
        self.interpreted = kind == "interpreted"
        self.device = "cpu" if self.interpreted else "cuda"
        if self.interpreted:
            os.environ["TRITON_INTERPRET"] = "1"
            self.isa = "interpreted"
            print(f"{stem}: by Triton's interpreter on the CPU: verified, not timed")
        else:
            self.isa = torch.cuda.get_device_properties(0).name
            self.rate = self._bandwidth()
            print(f"{stem}: {self.isa}, whose memory copies {self.rate / 1e9:.0f} GB/s")

    def peers(self, made: Mapping[str, Callable[[], Call]]) -> dict[str, Call]:
        """The calls that can be made; the others are listed with the reason. Interpreted runs have no peers."""
        calls = {}
        for name, make in {} if self.interpreted else made.items():
            try:
                calls[name] = make()
            except Exception as error:  # a package that is missing, or does not support this device or shape
                print(f"  {name}: left out, {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        return calls

    def on_device(
        self, case: str, calls: Mapping[str, Call], rounds: int, floor_bytes: float, peers: Mapping[str, Call] | None = None
    ) -> None:
        """Times verified calls, ours first, interleaved; the floor is `floor_bytes` at the bandwidth of a copy."""
        if self.interpreted:
            print(f"{case}: verified {', '.join(calls)}")
            return
        replays = {name: self._captured(name, call) for name, call in {**calls, **(peers or {})}.items()}
        times = self._times(replays, rounds)
        floor = floor_bytes / self.rate
        about = f"floor {floor * 1e6:.2f} us: {floor_bytes:.0f} bytes at {self.rate / 1e9:.0f} GB/s"
        self.show(case, times, [floor] * rounds, about)

    def _captured(self, name: str, call: Call) -> Call:
        """A replay of the call's graph, or, with a message, the call itself if it cannot be captured."""
        for _ in range(3):  # compiles, tunes and allocates
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
        except Exception as error:
            torch.cuda.synchronize()
            print(f"  {name}: timed with its launches, as it cannot be captured: {str(error).splitlines()[0]}")
            return call
        return graph.replay

    def _times(self, calls: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
        flushed = torch.empty(_FLUSHED, dtype=torch.uint8, device=self.device)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                flushed.zero_()
                times[name].append(self._seconds(call))
        return times

    def _seconds(self, call: Call) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def _bandwidth(self) -> float:
        """Bytes a second, read and written, of the median of nine copies."""
        source = torch.ones(_COPIED, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        times = [self._seconds(lambda: target.copy_(source)) for _ in range(10)][1:]
        return 2 * _COPIED / statistics.median(times)
