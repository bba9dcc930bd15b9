"""``decodestep generate``: stream a completion to a terminal, or print one JSON object."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

from decodestep._base.checks import require
from decodestep._base.profiling import Cost, Profile, profile
from decodestep._base.threads import isa, threads, use_threads
from decodestep.cli.endings import early_end
from decodestep.cli.options import (
    add_ban,
    add_beams,
    add_draft,
    add_model,
    add_params,
    add_prompt,
    add_thinking_budget,
    build_params,
    load,
    load_draft,
    read_prompt,
    with_bans,
    with_model_defaults,
    with_thinking_budget,
)
from decodestep.cli.prompt_cache import add_prompt_cache, prompt_cache
from decodestep.cli.running import Cancelled, prompt_progress
from decodestep.generation import prompts
from decodestep.generation.completion import Completion
from decodestep.generation.generate import generate
from decodestep.generation.prompts import Prompt
from decodestep.models import Model
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row_factory import RowFactory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("prompt", help="the prompt; - reads it from standard input")
    add_prompt(parser)
    add_thinking_budget(parser)
    add_params(parser)
    add_beams(parser)
    add_ban(parser)
    add_draft(parser)
    add_prompt_cache(parser)
    add_model(parser)
    add(
        "--show-alternatives",
        type=int,
        nargs="?",
        const=3,
        metavar="N",
        help="after the text, print each token's probability and the N most likely alternatives [3]",
    )
    add("--logprobs", type=int, metavar="N", help="with --json: report log-probabilities, and the N most likely tokens")
    add("--explain-plan", action="store_true", help="print what happens to the logits before the draw")
    add("--stats", action="store_true", help="print timing statistics at the end")
    add("--json", action="store_true", help="print one JSON object at the end instead of streaming")


def run(options: argparse.Namespace) -> int:
    clock = _Clock()
    params, alternatives = with_thinking_budget(build_params(options), options), options.show_alternatives
    params = params.replace(logprobs=options.logprobs)
    require(options.json or options.logprobs is None, "generate", "logprobs", "given with --json", options.logprobs)
    require(alternatives is None or alternatives >= 1, "generate", "show-alternatives", "an integer >= 1", alternatives)
    prompt = read_prompt(options)
    draft = load_draft(options)
    model = load(options)
    params = with_bans(with_model_defaults(params, options, model), options, model)
    if alternatives is not None:
        params = params.replace(logprobs=max(params.logprobs or 0, alternatives + 1))
    clock.loaded = time.monotonic()

    def stream(_row: int, piece: str) -> None:
        clock.tokens.append(time.monotonic())
        if piece and not options.json:
            sys.stdout.write(piece)
            sys.stdout.flush()

    with prompt_cache(model, options.prompt_cache) as texts:
        with Cancelled() as cancelled, profile() as measured, prompt_progress() as progress:
            if options.explain_plan:
                print(_plan_text(model, prompt, params), file=sys.stderr, flush=True)
            completion = generate(
                model, [prompt], params, stream=stream, cancelled=cancelled.requested, progress=progress, draft=draft
            )[0]
        texts.append([*completion.prompt_token_ids, *completion.token_ids])
        _report(completion, model, _stats(model, measured, completion, clock), options)
    if completion.error is not None:
        raise completion.error
    early = early_end(completion, params)
    if early and not options.json and len(completion.token_ids) != options.max_new_tokens:
        sys.stdout.flush()
        print(f"decodestep: {early}", file=sys.stderr)
    return 0


def _report(completion: Completion, model: Model, stats: dict[str, Any], options: argparse.Namespace) -> None:
    """What the options ask for after the text, which has been streamed unless it is part of the JSON."""
    if options.json:
        print(json.dumps({**_facts(completion, model), "stats": stats}))
    else:
        print(end="" if completion.text.endswith("\n") else "\n")
        if options.show_alternatives is not None:
            _print_alternatives(completion, model, options.show_alternatives)
    if options.stats:
        sys.stdout.flush()
        _print_stats(stats, completion)


def _plan_text(model: Model, prompt: Prompt, params: SamplingParams) -> str:
    factory = RowFactory.from_model(model).showing(model.tokenizer, prompts.read_prompt(model, prompt).marks(params))
    plan = f"row 0\n{factory.row(params.without_beams()).explain()}"
    if params.num_beams == 1:
        return plan
    lines = plan.splitlines()[:-1]  # without the draw
    groups = f" in {params.num_beam_groups} groups" if params.num_beam_groups > 1 else ""
    search = f"beam search: {params.num_beams} beams{groups}"
    return "\n".join([*lines, f"{len(lines):>3}. {search}{'' if params.greedy else ', candidates drawn'}"])


class _Clock:
    """Times of events, in seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.loaded = self.started
        self.tokens: list[float] = []


def _facts(completion: Completion, model: Model) -> dict[str, Any]:
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "prompt_token_ids": completion.prompt_token_ids,
        "finish_reason": completion.finish_reason,
        "logprobs": _logprobs(completion, model),
        "seed": completion.seed,
        "reasoning": completion.reasoning,
        "content": completion.content,
    }


def _logprobs(completion: Completion, model: Model) -> list[dict[str, Any]] | None:
    """Each token's log-probability before and after the processors, and the most likely tokens of both."""
    if completion.logprobs is None:
        return None

    def entries(pairs: tuple[tuple[int, float], ...]) -> list[dict[str, Any]]:
        return [{"token_id": i, "token": model.tokenizer.token(i), "logprob": value} for i, value in pairs]

    return [
        {
            "token_id": token,
            "raw": step.raw,
            "processed": step.processed,
            "top_raw": entries(step.top_raw),
            "top_processed": entries(step.top_processed),
        }
        for token, step in zip(completion.token_ids, completion.logprobs, strict=True)
    ]


def _print_alternatives(completion: Completion, model: Model, count: int) -> None:
    from rich.console import Console

    from decodestep.explain.terminal import DrawnToken, print_alternatives
    from decodestep.explain.tokens import token_to_text

    def others(token: int, pairs: tuple[tuple[int, float], ...]) -> list[tuple[str, float]]:
        return [(token_to_text(model.tokenizer, i), math.exp(value)) for i, value in pairs if i != token][:count]

    drawn = [
        DrawnToken(
            token_to_text(model.tokenizer, i), math.exp(step.raw), math.exp(step.processed), others(i, step.top_processed)
        )
        for i, step in zip(completion.token_ids, completion.logprobs or (), strict=False)
    ]
    print(flush=True)
    print_alternatives(Console(), drawn)


def _stats(model: Model, profile: Profile, completion: Completion, clock: _Clock) -> dict[str, Any]:
    decoding_seconds = clock.tokens[-1] - clock.tokens[0] if len(clock.tokens) > 1 else 0.0
    layout = model.decoder.page_layout
    with use_threads(model.threads):
        count = threads()
    return {
        "model": model.config.name,
        "isa": isa(),
        "threads": count,
        "cache_dtype": model.decoder.cache_dtype,
        "index_cache_dtype": str(layout.index_dtype) if layout.index else None,
        "state_bytes": 0 if model.cache.rows is None else model.cache.rows.row_bytes,
        "draft_bytes": 4 * model.decoder.replay_width,
        "prompt_tokens": len(completion.prompt_token_ids),
        "new_tokens": len(completion.token_ids),
        "drafted": completion.drafted,
        "accepted": completion.accepted,
        "load_s": clock.loaded - clock.started,
        "time_to_first_token_s": clock.tokens[0] - clock.started if clock.tokens else None,
        "tokens_per_s": (len(clock.tokens) - 1) / decoding_seconds if decoding_seconds else None,
        "operators": list(_operators(profile)),
    }


def _operators(profile: Profile) -> Iterator[dict[str, Any]]:
    """The operators that ran, slowest first, each followed by its parts."""
    total = sum(cost.seconds for cost in profile.costs.values()) or 1.0

    def row(operator: str, backend: str, cost: Cost) -> dict[str, Any]:
        seconds = cost.seconds
        return {"operator": operator, "backend": backend, "calls": cost.calls, "ms": seconds * 1e3, "share": seconds / total}

    def longest_first(item: tuple[Any, Cost]) -> float:
        return -item[1].seconds

    parts = sorted(profile.parts.items(), key=longest_first)
    for (op, backend), cost in sorted(profile.costs.items(), key=longest_first):
        yield row(op, backend, cost)
        for (whole, its_backend, part), inside in parts:
            if (whole, its_backend) == (op, backend):
                yield row(part, backend, inside) | {"part_of": op}


def _print_stats(stats: dict[str, Any], completion: Completion) -> None:
    from rich.console import Console
    from rich.table import Table

    from decodestep.explain.terminal import print_whole

    console = Console(stderr=True)
    table = Table("operator", "backend", box=None, header_style="bold", pad_edge=False)
    for name in ("calls", "ms", "share"):
        table.add_column(name, justify="right")
    for row in stats["operators"]:
        # The prolog's last stage writes its latents and keys into the cache.
        name = "mla_prolog, cache write" if row["operator"] == "mla_prolog" else row["operator"]
        indented = f"  {name}" if "part_of" in row else name
        table.add_row(indented, row["backend"], str(row["calls"]), f"{row['ms']:.1f}", f"{row['share']:.1%}")
    console.print()
    print_whole(console, table)
    rate = f"{stats['tokens_per_s']:.1f} tokens/s" if stats["tokens_per_s"] else "no rate"
    first = stats["time_to_first_token_s"]
    drafts = f"{stats['accepted']} of {stats['drafted']} drafted accepted" if stats["drafted"] else "none drafted"
    index_keys = f", index keys in {stats['index_cache_dtype']}" if stats["index_cache_dtype"] else ""
    states = f" with a state of {stats['state_bytes'] / 2**20:.2f} MiB" if stats["state_bytes"] else ""
    if stats["drafted"] and stats["draft_bytes"]:
        states += f", {stats['draft_bytes'] / 2**10:.1f} KiB kept of a drafted token"
    console.print(
        f"{stats['new_tokens']} tokens after {stats['prompt_tokens']} of prompt, {drafts}, {rate}, "
        f"first token after {f'{first:.2f} s' if first is not None else 'none'} (loading {stats['load_s']:.2f} s), "
        f"{stats['threads']} threads, {stats['isa']}, cache in {stats['cache_dtype']}{index_keys}{states}, "
        f"{'greedy' if completion.seed is None else f'seed {completion.seed}'}, ended by {completion.finish_reason}",
        highlight=False,
    )
