"""``decodestep explain``: prints the sampling plan and what its steps do to the distribution of the next tokens."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from decodestep._base.checks import Phrase, refuse, require
from decodestep._base.progress import progress_line
from decodestep.cli.options import (
    add_ban,
    add_draft,
    add_model,
    add_params,
    add_prompt,
    build_params,
    load,
    load_draft,
    read_prompt,
    require_writable,
    with_bans,
    with_model_defaults,
    write_text,
)
from decodestep.explain.data import record_document
from decodestep.explain.page import page
from decodestep.explain.record import record
from decodestep.explain.tokens import tabulate_stages
from decodestep.generation.drafts import Draft
from decodestep.generation.prompts import prompt_ids
from decodestep.models import Model
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row_factory import RowFactory

_ROWS = 15
_PAGE_STEPS = 40
_PAGE_TOP = 40
_DEFAULTS: dict[str, Any] = {"max_new_tokens": None}  # the number of tokens is --steps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "prompt",
        nargs="?",
        help="the prompt whose next tokens are shown; - reads it from standard input; without it, the plan alone",
    )
    add_prompt(parser)
    add_params(parser, **_DEFAULTS)
    add_ban(parser)
    add_draft(parser)
    add_model(parser)
    add("--rows", type=int, metavar="N", help=f"print the N most likely tokens before and after [{_ROWS}]")
    add("--steps", type=int, metavar="N", help=f"show N generated tokens [1; with --html {_PAGE_STEPS}]")
    add("--html", metavar="FILE", help="write a page that shows what each step does to every token")
    add("--top", type=int, metavar="N", help=f"most likely tokens on the page, for each step [{_PAGE_TOP}]")
    add(
        "--compare",
        metavar="OPTIONS",
        help="the page shows a second run beside the first, with these in place: --compare '--temperature 1.5 --seed 2'",
    )
    add("--docs", metavar="URL", help="URL of the documentation, to which the page links")
    add("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    params = build_params(options, **_DEFAULTS)
    for name in ("rows", "steps", "top"):
        value = getattr(options, name)
        require(value is None or value >= 1, "explain", name, "an integer >= 1", value)
    other = None if options.compare is None else _second_options(options)
    _require_in_use(options)
    prompt = None if options.prompt is None else read_prompt(options)
    if options.html is not None:
        require_writable(options.html)
    draft = load_draft(options)
    model = load(options)
    params = with_bans(with_model_defaults(params, options, model), options, model)
    ids = [] if prompt is None else prompt_ids(model, prompt)
    if prompt is None or options.html is None:
        return _show(model, params, ids, draft, options)
    text = prompt["messages"][-1]["content"] if isinstance(prompt, Mapping) else prompt
    steps, top, each = options.steps or _PAGE_STEPS, options.top or _PAGE_TOP, _params_of_runs(model, params, other)
    with _token_line(steps) as progress:
        document = record_document(model, str(text), ids, each, steps=steps, top=top, draft=draft, progress=progress)
    return _write_page(document, options)


@contextmanager
def _token_line(steps: int) -> Iterator[Callable[[int], None]]:
    """Yields the `progress` of a recording of at most `steps` tokens."""
    with progress_line(after=1.0) as show:
        yield lambda done: show(f"token {done + 1} of at most {steps}")


def _require_in_use(options: argparse.Namespace) -> None:
    """Refuses what would be ignored: the page's options without one, the tables' beside a page, the prompt's without one."""
    for name in ("top", "compare", "docs"):
        value = getattr(options, name)
        require(value is None or options.html is not None, "explain", name, "given with --html", value)
    require(options.rows is None or options.html is None, "explain", "rows", "left out with --html", options.rows)
    for name in ("html", "rows", "steps", "system", "raw", "enable_thinking", "chat_template_kwargs"):
        value = getattr(options, name)
        require(options.prompt is not None or value in (None, False), "explain", name, "given with a prompt", value)


def _params_of_runs(model: Model, params: SamplingParams, other: argparse.Namespace | None) -> list[SamplingParams]:
    """The params of the page's runs. other: the options of the second one, which takes the seed of the first if it has none."""
    (params,) = params.samples()
    if other is None:
        return [params]
    beside = with_bans(with_model_defaults(build_params(other, **_DEFAULTS), other, model), other, model)
    return [params, beside if beside.seed is not None else beside.replace(seed=params.seed)]


def _write_page(document: dict[str, Any], options: argparse.Namespace) -> int:
    write_text(options.html, page(document, options.docs or ""))
    facts = {"page": options.html, "tokens": [len(run["tokens"]) for run in document["runs"]]}
    facts["text"] = [run["text"] for run in document["runs"]]
    print(json.dumps(facts) if options.json else f"{options.html}: {' and '.join(map(str, facts['tokens']))} tokens")
    return 0


def _second_options(options: argparse.Namespace) -> argparse.Namespace:
    """The options of the second run: those given, overridden by those of --compare."""
    parser = argparse.ArgumentParser(prog="--compare", add_help=False, exit_on_error=False)
    add_params(parser)
    add_ban(parser)
    try:
        words = shlex.split(options.compare)
        found, unknown = parser.parse_known_args(words, argparse.Namespace(**vars(options)))
    except (argparse.ArgumentError, ValueError) as error:  # ValueError: a quotation that does not end
        refuse("explain", "compare", "options of sampling", Phrase(str(error)))
    require(not unknown and bool(words), "explain", "compare", "options of sampling", options.compare)
    return found


def _show(model: Model, params: SamplingParams, ids: list[int], draft: Draft, options: argparse.Namespace) -> int:
    row = RowFactory.from_model(model).row(params, ids)
    found: list[dict[str, Any]] = []
    if ids:
        tabulate = partial(tabulate_stages, model, count=options.rows or _ROWS)
        steps = options.steps or 1
        with _token_line(steps) as progress:
            recorded = record(model, ids, params, steps, tabulate, draft, progress)
        accepted = set(recorded.accepted)
        row, found = recorded.row, [{**one, "accepted": i in accepted} for i, one in enumerate(recorded.tokens)]
    # The plan as it was before the first token: what a row shows of itself does not change.
    plan = row.explain().splitlines()
    if options.json:
        first = found[0] if found else {}
        then = {"then": found[1:]} if len(found) > 1 else {}
        print(json.dumps({"plan": plan, "prompt_token_ids": ids, "seed": row.seed, **first, **then}))
        return 0
    print("\n".join(plan))
    if found:
        from rich.console import Console

        from decodestep.explain.terminal import print_drafts, print_stages

        end = "the argmax" if params.greedy else f"seed {row.seed} draws"
        names = [_short(processor) for processor in row.plan.processors]
        for one in found:
            print_stages(Console(), one, names, end)
        print_drafts(Console(), found)
    return 0


def _short(processor: object) -> str:
    return type(processor).__name__.removesuffix("LogitsProcessor").removesuffix("LogitsWarper")
