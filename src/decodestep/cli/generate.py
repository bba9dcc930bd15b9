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
from decodestep.params import SAMPLERS

# Options that are fields of SamplingParams: what follows the name, and how it is read.
_NUMBERS: dict[str, tuple[type, str, str]] = {
    "max_new_tokens": (int, "N", "how many tokens at most"),
    "min_new_tokens": (int, "N", "no end before so many"),
    "temperature": (float, "T", ">= 0; 0 is greedy"),
    "top_k": (int, "K", "keep the K most likely; 0 keeps all"),
    "top_p": (float, "P", "in [0, 1]: keep the most likely up to this mass; 1 keeps all"),
    "min_p": (float, "P", "in [0, 1]: keep at least this share of the largest probability"),
    "typical_p": (float, "P", "in (0, 1]: keep the tokens of typical surprise up to this mass"),
    "top_h": (float, "H", "in (0, 1]: keep this share of the entropy"),
    "epsilon_cutoff": (float, "E", "in [0, 1): drop probabilities below"),
    "eta_cutoff": (float, "E", "in [0, 1): the same, falling with the entropy"),
    "top_n_sigma": (float, "N", ">= 0: keep scores within N standard deviations of the largest; 0 keeps all"),
    "xtc_probability": (float, "P", "in [0, 1]: how often the top choices are excluded"),
    "xtc_threshold": (float, "P", "in [0, 1]: what a top choice is"),
    "repetition_penalty": (float, "R", "> 0; 1 changes nothing"),
    "presence_penalty": (float, "R", "off every generated token"),
    "frequency_penalty": (float, "R", "off a generated token for each occurrence"),
    "dry_multiplier": (float, "R", ">= 0: penalty for continuing a repetition; 0 is off"),
    "no_repeat_ngram_size": (int, "N", "no sequence of N tokens twice; 0 is off"),
    "max_time": (float, "SECONDS", "end after this long"),
    "logprobs": (int, "N", "report log-probabilities, and the N most likely tokens, in the JSON object"),
    "num_beams": (int, "N", "beam search with N beams"),
    "num_beam_groups": (int, "N", "diverse beam search with N groups"),
    "diversity_penalty": (float, "R", "> 0, with groups: off what earlier groups picked"),
    "length_penalty": (float, "R", "beams: > 0 prefers longer, < 0 shorter text"),
}
# What a plain call uses; SmolLM2 is small, and the whole distribution's tail does it no good.
_DEFAULTS = {"max_new_tokens": 256, "temperature": 0.7, "top_k": 50, "top_p": 0.9}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("prompt", help="the prompt; - reads it from standard input")
    add("--model", default=DEFAULT_MODEL, metavar="NAME_OR_PATH", help="a GGUF file of the Llama family [%(default)s]")
    add("--system", metavar="TEXT", help="a system message before the prompt")
    add("--raw", action="store_true", help="give the model the prompt as it stands, without the chat template")
    add("--greedy", action="store_true", help="take the most likely token at every step")
    add("--seed", type=int, metavar="S", help="in [0, 2^64); the same seed gives the same text [chosen at random]")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given several times")
    for name, (kind, metavar, text) in _NUMBERS.items():
        note = f" [{_DEFAULTS[name]}]" if name in _DEFAULTS else ""
        add(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text + note)
    add("--samplers", metavar="NAME,NAME", help=f"run these alone, in this order: {', '.join(SAMPLERS)}")
    add("--threads", type=int, metavar="N", help="of the native kernels [DECODESTEP_THREADS, else all cores]")
    add("--dtype", default="auto", help="how weights are multiplied: auto or float32 [%(default)s]")
    add("--explain-plan", action="store_true", help="print what happens to the logits before the draw")
    add("--stats", action="store_true", help="print what ran, and how fast, at the end")
    add("--json", action="store_true", help="print one JSON object at the end instead of streaming")


def _params(options: argparse.Namespace) -> ds.SamplingParams:
    samplers = None if options.samplers is None else tuple(options.samplers.split(","))
    given = {name: getattr(options, name) for name in _NUMBERS if getattr(options, name) is not None}
    usual = {name: value for name, value in _DEFAULTS.items() if samplers is None or name in (*samplers, "max_new_tokens")}
    seed = secrets.randbits(32) if options.seed is None else options.seed
    return ds.SamplingParams(
        **{**usual, **given},
        do_sample=not (options.greedy or (given.get("num_beams", 1) > 1)),
        seed=seed,
        stop_strings=tuple(options.stop),
        samplers=samplers,
    )


def run(options: argparse.Namespace) -> int:
    clock = _Clock()
    params = _params(options)
    prompt = _prompt(options)
    model = ds.load(options.model, dtype=options.dtype, threads=options.threads)
    clock.loaded = time.monotonic()
    if options.explain_plan:
        sampler = ds.Sampler(
            params,
            vocab_size=model.config.vocab_size,
            eos_token_id=model.tokenizer.end_token_ids,
            token_bytes=model.tokenizer.token_bytes,
        )
        print(sampler.explain(), file=sys.stderr)
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
        print(
            json.dumps(
                {
                    "text": completion.text,
                    "token_ids": completion.token_ids,
                    "prompt_token_ids": completion.prompt_token_ids,
                    "finish_reason": completion.finish_reason,
                    "logprobs": _logprobs(completion, model),
                    "seed": params.seed,
                    "stats": stats,
                }
            )
        )
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


def _logprobs(completion: Completion, model: ds.Model) -> list[dict[str, Any]] | None:
    """For each token its log-probability before and after the processors, and the most likely ones of both."""
    if completion.logprobs is None:
        return None

    def described(pairs: tuple[tuple[int, float], ...]) -> list[dict[str, Any]]:
        return [{"token_id": i, "token": model.tokenizer.token(i), "logprob": value} for i, value in pairs]

    return [
        {
            "token_id": token,
            "raw": step.raw,
            "processed": step.processed,
            "top_raw": described(step.top_raw),
            "top_processed": described(step.top_processed),
        }
        for token, step in zip(completion.token_ids, completion.logprobs, strict=True)
    ]


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
        # The prolog ends with the write of its latents and keys into the cache.
        name = "mla_prolog, cache write" if row["operator"] == "mla_prolog" else row["operator"]
        table.add_row(name, row["backend"], str(row["calls"]), f"{row['ms']:.1f}", f"{row['share']:.1%}")
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
