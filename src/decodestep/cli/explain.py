"""``decodestep explain``: the sampling plan in words, and what each of its steps does to the next token's distribution."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from decodestep._base.checks import require
from decodestep.cli.options import add_model, add_params, add_prompt, load, params_of, prompt_of
from decodestep.generation.beam_logits import BeamLogits
from decodestep.generation.prompts import prompt_ids
from decodestep.models import Model
from decodestep.ops.decode_step import decode_step, reference
from decodestep.sampling.plan import plan
from decodestep.sampling.row import Row
from decodestep.sampling.sampler import Sampler


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "prompt",
        nargs="?",
        help="the prompt whose next token is shown; - reads it from standard input; without it, the plan alone",
    )
    add_prompt(parser)
    add_params(parser)
    add_model(parser)
    add("--rows", type=int, default=15, metavar="N", help="show the N most likely tokens before and after [%(default)s]")
    add("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    params = params_of(options)
    require(options.rows >= 1, "explain", "rows", "an integer >= 1", options.rows)
    prompt = None if options.prompt is None else prompt_of(options)
    model = load(options)
    ids = [] if prompt is None else prompt_ids(model, prompt)
    tokenizer = model.tokenizer
    sampler = Sampler(
        params,
        vocab_size=model.config.vocab_size,
        eos_token_id=tokenizer.end_token_ids,
        prompt_ids=[ids],
        token_bytes=tokenizer.token_bytes,
    )
    shown = None if prompt is None else _shown(model, sampler.rows[0], options.rows)
    if options.json:
        seed = sampler.rows[0].seed
        print(json.dumps({"plan": sampler.explain().splitlines()[1:], "prompt_token_ids": ids, "seed": seed, **(shown or {})}))
        return 0
    print("\n".join(sampler.explain().splitlines()[1:]))
    if shown is not None:
        _print(shown, sampler.rows[0])
    return 0


def _shown(model: Model, row: Row, count: int) -> dict[str, Any]:
    """What `explain` shows of a row: probabilities before the plan and after each of its steps, and the token drawn.

    tokens: the `count` most likely tokens of the first and of the last stage, the most likely first; a probability is None
    once a step has dropped the token. others: the total probability of all other tokens, at each stage. left: how many tokens
    are not dropped, at each stage.
    """
    vocab, ids = model.config.vocab_size, row.history.tokens
    scores = BeamLogits(model, 1, len(ids))([ids], [0])[0]
    stages = [_probabilities(scores)]
    for processor in row.plan.processors:
        changed, steps = plan([processor], vocab).steps(scores, row.history)
        step = decode_step(changed[None], [steps], position=len(ids), need_processed=True)
        scores = step.processed[0]
        stages.append(_probabilities(scores))
    drawn = decode_step(scores[None], [()], greedy=row.params.greedy, seed=row.seed or 0, position=len(ids)).tokens[0]
    table = np.stack(stages)
    likely = {int(i) for stage in (table[0], table[-1]) for i in np.argsort(-stage, kind="stable")[:count] if stage[i] >= 0}
    shown = sorted(likely, key=lambda i: (-np.nan_to_num(table[0, i], nan=-1), i))
    others = np.delete(table, shown, axis=1)
    return {
        "tokens": [
            {"token_id": i, "token": _spelled(model, i), "probabilities": [None if p != p else float(p) for p in table[:, i]]}
            for i in shown
        ],
        "others": np.nansum(others, axis=1).tolist(),
        "left": np.count_nonzero(table == table, axis=1).tolist(),
        "next_token": None
        if drawn < 0 or row.params.num_beams > 1
        else {"token_id": int(drawn), "token": _spelled(model, drawn)},
    }


def _probabilities(scores: np.ndarray) -> np.ndarray:
    """softmax of the scores, float64; NaN for the tokens at -inf."""
    row = reference.candidates(scores, (), 0)
    found = np.full(len(scores), np.nan)
    found[row.ids] = reference.probabilities(row)
    return found


def _spelled(model: Model, token: int) -> str:
    return model.tokenizer.token_bytes(token).decode("utf-8", "replace") or model.tokenizer.token(token)


def _print(shown: dict[str, Any], row: Row) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("token", no_wrap=True, min_width=11)
    heads = [f"{n} {_short(processor)}" for n, processor in enumerate(row.plan.processors, 1)]
    if sum(len(head) + 2 for head in heads) > console.width - 40:  # only the numbers, which the plan above explains
        heads = [head.split()[0] for head in heads]
    console.width = max(console.width, 32 + 8 * len(heads))  # on a narrow terminal, wrap lines rather than cut numbers
    for head in ("model", *heads):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for token in shown["tokens"]:
        after = token["probabilities"]
        kept = after[-1] is not None
        cells = (Text(repr(token["token"])), *map(_percent, after), "kept" if kept else "dropped")
        table.add_row(*cells, style="" if kept else "dim")
    table.add_row("all others", *map(_percent, shown["others"]))
    table.add_row("tokens left", *map(str, shown["left"]))
    console.print()
    console.print(table)
    if shown["next_token"] is not None:
        how = "the argmax" if row.params.greedy else f"seed {row.seed} draws"
        console.print(Text(f"{how}: {shown['next_token']['token']!r}"))


def _short(processor: Any) -> str:
    return type(processor).__name__.removesuffix("LogitsProcessor").removesuffix("LogitsWarper")


def _percent(p: float | None) -> str:
    return "-" if p is None else f"{p:.2%}"
