"""``decodestep generate``: stream a completion to a terminal, or print one JSON object."""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
import time
from typing import Any

import decodestep as ds
from decodestep.generation import Completion, Prompt
from decodestep.models.fetch import DEFAULT_MODEL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("prompt", help="the prompt; - reads it from standard input")
    add("--model", default=DEFAULT_MODEL, metavar="NAME_OR_PATH", help="a GGUF file of the Llama family [%(default)s]")
    add("--system", metavar="TEXT", help="a system message before the prompt")
    add("--raw", action="store_true", help="give the model the prompt as it stands, without the chat template")
    add("--max-new-tokens", type=int, default=256, metavar="N", help="[%(default)s]")
    add("--greedy", action="store_true", help="take the most likely token at every step")
    add("--temperature", type=float, default=0.7, metavar="T", help=">= 0; 0 is greedy [%(default)s]")
    add("--top-k", type=int, default=50, metavar="K", help="0 keeps all tokens [%(default)s]")
    add("--top-p", type=float, default=0.9, metavar="P", help="in [0, 1]; 1 keeps all tokens [%(default)s]")
    add("--min-p", type=float, default=0.0, metavar="P", help="in [0, 1]; 0 keeps all tokens [%(default)s]")
    add("--repetition-penalty", type=float, default=1.0, metavar="R", help="> 0; 1 changes nothing [%(default)s]")
    add("--seed", type=int, metavar="S", help="in [0, 2^64); the same seed gives the same text [chosen at random]")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given several times")
    add("--max-time", type=float, metavar="SECONDS", help="end after this long")
    add("--threads", type=int, metavar="N", help="of the native kernels [DECODESTEP_THREADS, else all cores]")
    add("--dtype", default="auto", help="how weights are multiplied: auto or float32 [%(default)s]")
    add("--stats", action="store_true", help="print what ran, and how fast, at the end")
    add("--json", action="store_true", help="print one JSON object at the end instead of streaming")


def run(options: argparse.Namespace) -> int:
    clock = _Clock()
    params = ds.SamplingParams(
        max_new_tokens=options.max_new_tokens,
        do_sample=not options.greedy,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        seed=secrets.randbits(32) if options.seed is None else options.seed,
        stop_strings=tuple(options.stop),
        max_time=options.max_time,
    )
    prompt = _prompt(options)
    model = ds.load(options.model, dtype=options.dtype, threads=options.threads)
    clock.loaded = time.monotonic()
    cancelled = _Cancelled()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character must not end the answer

    def stream(_row: int, piece: str) -> bool:
        clock.tokens.append(time.monotonic())
        if piece and not options.json:
            sys.stdout.write(piece)
            sys.stdout.flush()
        return not cancelled.asked

    with cancelled, ds.profile() as profile:
        completion = ds.generate(model, [prompt], params, stream=stream)[0]
    stats = _stats(model, profile, completion, clock)
    if options.json:
        print(json.dumps({
            "text": completion.text,
            "token_ids": completion.token_ids,
            "prompt_token_ids": completion.prompt_token_ids,
            "finish_reason": completion.finish_reason,
            "seed": params.seed,
            "stats": stats,
        }))
    elif not completion.text.endswith("\n"):
        print()
    if options.stats:
        sys.stdout.flush()
        _print_stats(stats, params.seed, completion.finish_reason)
    return 0


class _Clock:
    """When things happened, in seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.loaded = self.started
        self.tokens: list[float] = []


class _Cancelled:
    """Inside the block the first Ctrl-C only sets `asked`; a second one interrupts."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> None:
        self._previous = signal.signal(signal.SIGINT, self._interrupt)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _interrupt(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def _prompt(options: argparse.Namespace) -> Prompt:
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    if not text.strip() and not (options.raw and text):
        raise ValueError("generate: prompt must be at least one token long; got an empty prompt")
    if options.raw:
        return str(text)
    system = [{"role": "system", "content": options.system}] if options.system is not None else []
    return [*system, {"role": "user", "content": text}]


def _stats(model: ds.Model, profile: Any, completion: Completion, clock: _Clock) -> dict[str, Any]:
    from decodestep import _native, dispatch

    decoding = clock.tokens[-1] - clock.tokens[0] if len(clock.tokens) > 1 else 0.0
    spent = sum(cost.seconds for cost in profile.costs.values()) or 1.0
    with ds.use_threads(model.threads):
        threads = dispatch.threads()
    return {
        "model": model.config.name,
        "isa": _native.isa(),
        "threads": threads,
        "prompt_tokens": len(completion.prompt_token_ids),
        "new_tokens": len(completion.token_ids),
        "load_s": clock.loaded - clock.started,
        "time_to_first_token_s": clock.tokens[0] - clock.started if clock.tokens else None,
        "tokens_per_s": (len(clock.tokens) - 1) / decoding if decoding else None,
        "operators": [
            {"operator": op, "backend": backend, "calls": cost.calls, "ms": cost.seconds * 1e3, "share": cost.seconds / spent}
            for (op, backend), cost in sorted(profile.costs.items(), key=lambda item: -item[1].seconds)
        ],
    }


def _print_stats(stats: dict[str, Any], seed: int, finish_reason: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=True)
    table = Table("operator", "backend", box=None, header_style="bold", pad_edge=False)
    for name in ("calls", "ms", "share"):
        table.add_column(name, justify="right")
    for row in stats["operators"]:
        table.add_row(row["operator"], row["backend"], str(row["calls"]), f"{row['ms']:.1f}", f"{row['share']:.1%}")
    console.print()
    console.print(table)
    rate = f"{stats['tokens_per_s']:.1f} tokens/s" if stats["tokens_per_s"] else "no rate"
    first = stats["time_to_first_token_s"]
    console.print(
        f"{stats['new_tokens']} tokens after {stats['prompt_tokens']} of prompt, {rate}, "
        f"first token after {f'{first:.2f} s' if first is not None else 'none'} (loading {stats['load_s']:.2f} s), "
        f"{stats['threads']} threads, {stats['isa']}, seed {seed}, ended by {finish_reason}",
        highlight=False,
    )
