"""decodestep serve under load: throughput, latencies, stalls, and whether answers stay independent of the load.

    python benchmarks/bench_serve.py [--model PATH] [--threads 2] [--seconds 10] [--rounds 3] [--clients 1 4 16] [--rates 1 4]
        [--draft auto off] [--stalls 1 4 16]

The server runs as its own process, clients are sockets of this one that read server-sent events. First it verifies: seeded
requests, alone and all at once, have the same texts, and with each --draft. Then

    clients    N clients, each of which asks again as soon as it has its answer: tokens a second of all, in turns with
               llama.cpp's llama_decode of N sequences, without sampling, text or HTTP, on the same file and threads; ratios
               to it, to the same of one sequence, and to our own one client, each within a round: median [least, most].
               With several --draft their servers take turns too, and ratios to the last one's are shown

and of the first --draft

    rates      requests at random times (Poisson), whether or not earlier ones are done: times to the first token and between
    stall      clients' tokens while a prompt of 2000 tokens arrives, against the same tokens without it
    prefix     the first token of a prompt whose 1000 first tokens have been seen, against that of a prompt of 10

Without --model it makes a Q4_0 file of the default model by llama.cpp's quantizer, where llama-cpp-python is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from decodestep.cli.endings import Parser
from decodestep.models.fetch import default_model
from peers import requantised

TOKENS = 128  # of a completion
PROMPT = 16  # tokens of a prompt
PEER_SECONDS = 3.0  # of a measurement of llama_decode


class Answer(NamedTuple):
    """text, when its request was sent, and when each of its events arrived."""

    text: str
    sent: float
    times: list[float]

    @property
    def first(self) -> float:
        return self.times[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


async def ask(port: int, prompt: list[int], *, tokens: int = TOKENS, seed: int = 0) -> Answer:
    body = {"prompt": prompt, "max_tokens": tokens, "seed": seed, "stream": True, "ignore_eos": True, "temperature": 0.8}
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    sent = time.perf_counter()
    writer.write(head.encode() + data)
    pieces, times = [], []
    async for line in reader:
        if line.startswith(b"data: [DONE]"):
            break
        if line.startswith(b"data: "):
            times.append(time.perf_counter())
            pieces.append(json.loads(line[6:])["choices"][0]["text"])
        elif line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
            raise RuntimeError(line.decode())
    writer.close()
    return Answer("".join(pieces), sent, times)


def build_prompt(number: int, length: int = PROMPT) -> list[int]:
    rng = random.Random(number)
    return [rng.randrange(1000, 40000) for _ in range(length)]


def percentiles(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99)) * 1e3
    return f"p50 {p50:.1f}  p95 {p95:.1f}  p99 {p99:.1f} ms"


async def verify(port: int) -> list[str]:
    """The texts of requests alone, which are those of the same requests at once."""
    alone = [(await ask(port, build_prompt(i), seed=i)).text for i in range(8)]
    together = await asyncio.gather(*(ask(port, build_prompt(i % 8), seed=i % 8) for i in range(48)))
    different = [i for i, answer in enumerate(together) if answer.text != alone[i % 8]]
    print(f"equality: {len(together) - len(different)} of {len(together)} seeded answers under load are those alone")
    if different:
        raise SystemExit("answers change with the load")
    return alone


async def closed(port: int, clients: int, seconds: float, prompts: Iterator[list[int]]) -> tuple[float, list[Answer]]:
    """(tokens a second, answers) with this many clients at work all the time."""
    answers: list[Answer] = []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        while time.perf_counter() < end:
            answers.append(await ask(port, next(prompts), seed=number))

    await asyncio.gather(*(client(number) for number in range(clients)))
    begin = min(answer.sent for answer in answers)
    inside = sum(begin <= at <= end for answer in answers for at in answer.times)
    return inside / (end - begin), answers


async def poisson(port: int, rate: float, seconds: float) -> list[Answer]:
    rng, running = random.Random(1), []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        running.append(asyncio.ensure_future(ask(port, build_prompt(len(running)), seed=len(running))))
        await asyncio.sleep(rng.expovariate(rate))
    return await asyncio.gather(*running)


async def stall(port: int, clients: int) -> None:
    """The gaps before the tokens of clients while a long prompt arrives, and before the same tokens without it: with their
    contexts the tokens alone grow slower too."""
    tokens = 1500 // max(1, clients // 8)

    def answers() -> list[asyncio.Future[Answer]]:
        return [asyncio.ensure_future(ask(port, build_prompt(i), tokens=tokens, seed=1)) for i in range(clients)]

    idle = await asyncio.gather(*answers())
    running = answers()
    await asyncio.sleep(0.3)
    long = await ask(port, build_prompt(random.randrange(10**9), 2000), tokens=1)
    beside, alone = [], []
    for answer, same in zip(await asyncio.gather(*running), idle, strict=True):
        for before, gap, gap_alone in zip(answer.times, answer.gaps, same.gaps, strict=False):
            if long.sent <= before <= long.times[0]:
                beside.append(gap)
                alone.append(gap_alone)
    ratio = float(np.percentile(beside, 99)) / statistics.median(alone)
    print(
        f"stall, {clients:>2} clients: alone {percentiles(alone)}; beside 2000 tokens {percentiles(beside)}, worst "
        f"{max(beside) * 1e3:.1f} ms: p99 {ratio:.2f} times the median alone; its first token after {long.first:.2f} s"
    )


async def prefix(port: int) -> None:
    seen = build_prompt(5, 1000)
    await ask(port, seen, tokens=1)
    repeated, short = [], []
    for i in range(30):
        repeated.append((await ask(port, [*seen, *build_prompt(100 + i, 10)], tokens=1)).first)
        short.append((await ask(port, build_prompt(200 + i, 10), tokens=1)).first)
    ratio = statistics.median(repeated) / statistics.median(short)
    print(f"prefix: 1000 seen tokens and 10 more {percentiles(repeated)}; 10 tokens {percentiles(short)}: {ratio:.2f} times")


def llama_decode(path: Path, sequences: int, threads: int, seconds: float) -> float:
    """Tokens a second of llama_decode alone."""
    from peers.llama_cpp_model import LlamaCpp

    model = LlamaCpp(path, PROMPT + TOKENS + 8, threads, flash_attention=True, sequences=sequences)
    for sequence in range(sequences):
        model.evaluate(np.array(build_prompt(sequence)), 0, sequence=sequence)
    done, position, started = 0, PROMPT, time.perf_counter()
    while time.perf_counter() - started < seconds:
        model.step([1000] * sequences, position)
        done += sequences
        position += 1
        if position == PROMPT + TOKENS:
            model.forget(PROMPT)
            position = PROMPT
    rate = done / (time.perf_counter() - started)
    model.close()
    return rate


def serve(path: str, threads: int, draft: str) -> tuple[subprocess.Popen[str], int]:
    options = ["--threads", str(threads), "--port", "0", "--draft", draft]
    command = [sys.executable, "-m", "decodestep", "serve", path, *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"listening on http://127.0.0.1:(\d+)", line):
            threading.Thread(target=process.stderr.read, daemon=True).start()  # or the log would fill the pipe, and wait
            return process, int(found[1])
    raise RuntimeError("the server did not start")


async def throughput(options: argparse.Namespace, ports: dict[str, int], peer: Path | None) -> None:
    """peer: the file for llama_decode, or None without it."""
    kinds = [(clients, draft) for clients in options.clients for draft in ports]
    ours: dict[tuple[int, str], list[float]] = {kind: [] for kind in kinds}
    theirs: dict[int, list[float]] = {clients: [] for clients in options.clients}
    answers: dict[tuple[int, str], list[Answer]] = {kind: [] for kind in kinds}
    prompts = map(build_prompt, itertools.count(10**6))  # none twice: its tokens would be in the cache
    for _ in range(options.rounds):
        for clients, draft in kinds:
            rate, more = await closed(ports[draft], clients, options.seconds, prompts)
            ours[clients, draft].append(rate)
            answers[clients, draft] += more
            if peer is not None and draft == options.draft[0]:
                theirs[clients].append(llama_decode(peer, clients, options.threads, PEER_SECONDS))
    for clients, draft in kinds:
        rates = ours[clients, draft]
        print(f"{clients:>2} clients, --draft {draft}: {statistics.median(rates):.0f} tokens/s; first token "
              f"{percentiles([answer.first for answer in answers[clients, draft]])}; between "
              f"{percentiles([gap for answer in answers[clients, draft] for gap in answer.gaps])}")  # fmt: skip
        others = {
            "llama_decode of as many": theirs[clients],
            "llama_decode of one": theirs.get(1),
            "our one client": ours.get((1, draft)),
            f"--draft {options.draft[-1]}": ours[clients, options.draft[-1]],
        }
        for name, other in others.items():
            if other and other is not rates:
                ratios = [mine / its for mine, its in zip(rates, other, strict=True)]
                print(f"           {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}] of {name}")


async def measure(options: argparse.Namespace, ports: dict[str, int], peer: Path | None) -> None:
    """Measures servers by their --draft."""
    if len({tuple(await verify(port)) for port in ports.values()}) > 1:
        raise SystemExit("answers change with the drafts")
    await throughput(options, ports, peer)
    port = ports[options.draft[0]]
    for rate in options.rates:
        answers = await poisson(port, rate, options.seconds)
        gaps = [gap for answer in answers for gap in answer.gaps]
        print(f"{rate:g} requests/s: first token {percentiles([a.first for a in answers])}; between {percentiles(gaps)}")
    for clients in options.stalls:
        await stall(port, clients)
    await prefix(port)


def main(argv: list[str] | None = None) -> int:
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a GGUF file or a folder")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4, 16, 64], help="how many send at once")
    parser.add_argument("--rates", type=float, nargs="*", default=[1.0, 4.0], help="requests a second")
    parser.add_argument("--rounds", type=int, default=3, help="of the measurements of clients")
    parser.add_argument("--draft", nargs="+", default=["auto"], help="of the server; several are compared")
    parser.add_argument("--stalls", type=int, nargs="*", default=[1, 4, 16], help="clients beside a long prompt")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        try:
            import llama_cpp  # noqa: F401
        except ImportError:
            peer = False
            print("left out: llama.cpp, whose package llama-cpp-python is not installed", file=sys.stderr)
        else:
            peer = True
        path = Path(options.model) if options.model else default_model()
        if peer and not options.model:
            path = requantised.write(path, Path(folder) / "default-q4_0.gguf", "Q4_0")
        servers = {draft: serve(str(path), options.threads, draft) for draft in options.draft}
        try:
            ports = {draft: port for draft, (_, port) in servers.items()}
            asyncio.run(measure(options, ports, path if peer and path.suffix == ".gguf" else None))
        finally:
            for process, _ in servers.values():
                process.terminate()
                process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
