"""The sampler: decode_step and ds.Sampler against CPU samplers of other libraries.

    decodestep bench decode_step [--cases full top-p ...] [--vocab 128256] [--batch 1 8 64] [--peers ...] [--threads 1 2]
    decodestep bench decode_step --device cuda --cases full top-p --vocab 128256 151936 --batch 1 64 512

Every row of a table does the same work on the same logits: normal * 2.5 with five peaks near the maximum. "cold" cycles through
more batches of logits than the last-level cache holds, "warm" repeats one. "penalties" is full after a repetition penalty and a
ban of 3-grams, over 1000 tokens; "mixed" is a third greedy, a third top-p, a third penalties, and is compared with its parts.
The floor is one read of the logits by libc's wmemchr, in the same rounds (memory.py).

Peers: argmax is torch's; topk-first is torch.topk, then the filters on k values; sort sorts every row in torch, as GPU servers
without a sampling kernel do, and compiled is the same under torch.compile; llama.cpp is its sampler chain, with and without
filling its candidate array; genai is onnxruntime-genai's search; transformers its processors. Peers use the first of --threads.

The rounds of a case end after --budget seconds.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

import decodestep as ds
from gpu.device import KINDS
from measuring.harness import Call, Prepared, Report, options, run_main, torch
from measuring.memory import READ_BYTES, home, one_read, plain_read
from measuring.sampling import DTYPES, PARAMS, PARTS, Case, Logits, Sampler, UnableError, buffers, case
from measuring.sampling_check import verify
from peers import PEERS, maker, ours

CHOICES = {"cases": (*PARAMS, "mixed"), "caches": ("cold", "warm"), "dtypes": tuple(DTYPES), "peers": (*PEERS, "none")}
CHOICES["device"] = KINDS
USUAL_PEERS = tuple(name for name in PEERS if name != "compiled")  # which compiles for ten seconds per case


def samplers(case: Case, peers: Sequence[str], threads: Sequence[int], excuses: dict[str, str]) -> dict[str, Sampler]:
    """Ours first, then the peers that support the case; `excuses` says why the others do not."""
    made: dict[str, Sampler] = {"ours, decode_step": ours.DecodeStep(case)}
    for count in threads[1:]:
        made[f"ours, {count} threads"] = ours.OnThreads(case, count)
    made["ours, Sampler"] = ours.Sampler(case)
    made["ours, log-probabilities"] = ours.Logprobs(case)
    for name in peers:
        try:
            made[name] = maker(name)(case)
        except UnableError as reason:
            excuses[name] = str(reason)
        except ImportError as error:
            excuses[name] = f"{error.name} is not installed"
    return made


def verified(case: Case, made: Mapping[str, Sampler], logits: Logits) -> None:
    for name, sampler in made.items():
        try:
            verify(case, sampler, logits)
            if isinstance(sampler, ours.DecodeStep):
                sampler.check(logits)
        except AssertionError as error:
            raise AssertionError(f"{case.name}, {name}: {error}") from error


def calls_of(made: Mapping[str, Sampler], turns: Iterator[Logits]) -> dict[str, Call | Prepared]:
    """Each sampler on the next logits: all share one cycle of buffers, so none finds data that another has just read."""

    def on_next(function: Callable[[Logits], Any]) -> Call:
        return lambda: function(next(turns))

    calls: dict[str, Call | Prepared] = {}
    for name, sampler in made.items():
        call = on_next(sampler.sample)
        calls[name] = Prepared(sampler.prepare, call) if hasattr(sampler, "prepare") else call
        if hasattr(sampler, "apply_only") and len(sampler.tokens) == 1:
            fill, apply = on_next(lambda logits, peer=sampler: peer.fill(logits, 0)), lambda peer=sampler: peer.apply_only(0)
            calls[f"{name}, apply only"] = Prepared(fill, apply)
    return calls


def reads_of(slots: Mapping[str, Sequence[Logits]], first: str, threads: Sequence[int]) -> dict[str, Call]:
    """One read of the logits, `first` being how the case finds them; and what several threads can hope for from memory."""
    reads = {}
    for cache in sorted(slots, key=lambda name: name != first):
        each = cycle([one_read(logits.array) for logits in slots[cache]])
        size = slots[cache][0].array.nbytes
        where = "DRAM" if cache == "cold" else home(size)
        reads[f"one read, {cache}, from {where}"] = lambda each=each: next(each)()
    if len(threads) > 1:
        reads |= {f"{READ_BYTES >> 20} MiB from DRAM, {count} thread(s)": plain_read(count) for count in threads}
    return reads


def measure(report: Report, case: Case, dtype: str, slots: Mapping[str, Sequence[Logits]], chosen: Namespace) -> None:
    excuses: dict[str, str] = {}
    made = samplers(case, [name for name in chosen.peers if name != "none"], chosen.threads, excuses)
    logits = next(iter(slots.values()))[0]
    verified(case, made, logits)
    backend = made["ours, decode_step"].backend(logits)
    if case.name == "mixed":
        made |= {f"ours, all {part}": ours.DecodeStep(case.all_of(part)) for part in PARTS}
    for cache, turns in slots.items():
        title = f"{case.name} B={case.batch} V={case.vocab} {dtype} {cache}, backend {backend}"
        calls, reads = calls_of(made, cycle(turns)), reads_of(slots, cache, chosen.threads)
        times = report.case(title, calls, chosen.rounds, reads=reads, budget=chosen.budget)
        if backend == "cpu":
            with ds.use_threads(report.threads):
                core, python, bare = made["ours, decode_step"].around_the_core(cycle(turns), 300 // case.batch + 3)
            print(f"  of a call {core * 1e6:.1f} µs in the native core, {python * 1e6:.1f} µs in Python around it", end="; ")
            print(f"a call without a row takes {bare * 1e6:.1f} µs")
        if case.name == "mixed":
            print(f"  mixed takes {over_its_parts(case, times):.3f} of the mean of its parts")
    kinds = {type(step) for steps in case.steps() for step in steps}
    for name, sampler in made.items():
        for lacking in kinds.intersection(getattr(sampler, "lacks", ())):
            print(f"  {name}: without {lacking.__name__}")
    for name, why in excuses.items():
        print(f"  {name}: {why}")


def over_its_parts(case: Case, times: Mapping[str, Sequence[float]]) -> float:
    """The mixed batch over the mean of whole batches of its parts, each counted as often as the mix has it."""
    shares = [sum(params is PARAMS[part] for params in case.params) / case.batch for part in PARTS]
    rounds = zip(times["ours, decode_step"], *(times[f"ours, all {part}"] for part in PARTS), strict=True)
    return statistics.median(mixed / np.dot(shares, parts) for mixed, *parts in rounds)


def main() -> None:
    chosen = options(
        __doc__,
        CHOICES,
        cases=tuple(PARAMS),
        vocab=(128256,),
        batch=(1,),
        caches=("cold", "warm"),
        dtypes=("float32",),
        peers=USUAL_PEERS,
        threads=(1,),
        budget=1.5,
        device="cpu",
    )
    if chosen.device != "cpu":
        from gpu import sampling as device_sampling

        return device_sampling.run(chosen)
    report = Report("decode_step", chosen.threads[0])
    print("peers not selected:", ", ".join(name for name in PEERS if name not in chosen.peers) or "none")
    for vocab in chosen.vocab:
        for batch in chosen.batch:
            for dtype in chosen.dtypes:
                slots = {cache: buffers(batch, vocab, dtype, cache == "cold", torch) for cache in chosen.caches}
                for name in chosen.cases:
                    if name == "mixed" and batch < len(PARTS):
                        print(f"\nmixed B={batch}: needs a row of each part")
                    else:
                        measure(report, case(name, batch, vocab), dtype, slots, chosen)
    report.save()


if __name__ == "__main__":
    run_main(main)
