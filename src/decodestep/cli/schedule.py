"""``decodestep schedule``: checks MlaProlog's schedule and shows it in virtual time as text, page, drawing or trace."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from decodestep._base.checks import Words, refuse, require
from decodestep.cli.options import require_writable, write_text
from decodestep.npu_schedule import (
    CostModel,
    Design,
    Found,
    Timeline,
    audit,
    check,
    mla_prolog_schedule,
    search,
    timeline,
)
from decodestep.npu_schedule.cost import NUMBERS
from decodestep.npu_schedule.critical import critical_path, utilisation
from decodestep.npu_schedule.gantt import chart, title
from decodestep.npu_schedule.page import page
from decodestep.npu_schedule.trace import trace
from decodestep.ops.mla_prolog import mla_prolog_plan

_DRAWN: dict[str, Callable[[Timeline], str]] = {".html": page, ".svg": chart, ".json": trace}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tokens", type=int, default=32, metavar="T", help="[%(default)s]")
    add("--heads", type=int, default=128, metavar="N", help="[%(default)s]")
    add("--scenario", default="NO_QUANT", metavar="NAME", help="NO_QUANT, PARTIAL, PARTIAL_KV, FULL or FULL_KV [%(default)s]")
    add("--cache-mode", default="PA_BSND", metavar="MODE", help="PA_BSND or PA_NZ [%(default)s]")
    add("--empty-cache", action="store_true", help="the caches have no blocks")
    add("--hidden", type=int, default=7168, metavar="HE", help="width of a token [%(default)s]")
    add("--cubes", type=int, default=24, metavar="N", help="cube cores [%(default)s]")
    add("--group", type=int, default=2, metavar="N", help="vector cores of each cube core [%(default)s]")
    add("--cost", action="append", default=[], metavar="NAME=VALUE", help=f"a number of the cost model: {', '.join(NUMBERS)}")
    add("--published", action="store_true", help="the design as published, without the flag between steps")
    add("--search", action="store_true", help="search for a better schedule, and show it")
    add("--audit", action="store_true", help="remove each flag in turn and report what breaks")
    add("--out", action="append", default=[], metavar="FILE", help="write a page (.html), a drawing (.svg) or a trace (.json)")
    add("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    for name in options.out:
        require(Path(name).suffix in _DRAWN, "schedule", "out", f"a file name in {', '.join(_DRAWN)}", name)
        require_writable(name)
    cost = _cost(options.cost)
    cores = Words(f"{options.cubes} and {options.group}")
    require(options.cubes > 0 and options.group > 0, "schedule", "cubes and group", "> 0", cores)
    plan = mla_prolog_plan(
        options.tokens,
        options.heads,
        hidden=options.hidden,
        scenario=options.scenario,
        cache_mode=options.cache_mode,
        empty_cache=options.empty_cache,
        aic=options.cubes,
        aiv=options.cubes * options.group,
    )
    require(bool(plan.steps), "schedule", "tokens", "an integer >= 1", options.tokens)
    found: Found | None = None
    if options.search:
        require(not options.published, "schedule", "published", "left out of a search", Words("--published"))
        found = search(plan, cost, group=options.group)
        shown = found.best
    else:
        design = Design(join="none") if options.published else Design()
        shown = timeline(mla_prolog_schedule(plan, design, group=options.group), cost)
    require(math.isfinite(shown.makespan * 1e6), "schedule", "cost", "such that the schedule takes a finite time", options.cost)
    facts = _facts(shown, found, options.audit)
    for name in options.out:
        write_text(name, _DRAWN[Path(name).suffix](shown))
    print(json.dumps(facts) if options.json else "\n".join(_lines(facts)))
    return 0


def _cost(given: list[str]) -> CostModel:
    values: dict[str, Any] = {}
    for item in given:
        name, _, text = item.partition("=")
        require(name in NUMBERS, "schedule", "cost", f"NAME=VALUE of {', '.join(NUMBERS)}", item)
        whole = NUMBERS[name] == "int"
        try:
            values[name] = int(text) if whole else float(text)
        except ValueError:
            refuse("schedule", f"cost {name}", "an integer" if whole else "a number", text)
    return CostModel(**values)


def _facts(shown: Timeline, found: Found | None, audited: bool) -> dict[str, Any]:
    schedule = shown.graph.schedule
    busy = utilisation(shown)
    facts: dict[str, Any] = {
        "title": title(shown),
        "design": str(schedule.design),
        "makespan_us": shown.makespan * 1e6,
        "check": str(check(schedule)).splitlines(),
        "critical_path": [{"us": s.seconds * 1e6, "words": s.words} for s in critical_path(shown)],
        "utilisation": {str(core): u._asdict() for core, u in busy.items()},
    }
    if found is not None:
        facts["search"] = {
            "design_us": found.design.makespan * 1e6,
            "saved": found.saved,
            "tried": [{"design": str(design), "us": seconds * 1e6} for design, seconds in found.tried],
        }
    if audited:
        facts["audit"] = [str(verdict) for verdict in audit(schedule)]
    return facts


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [facts["title"], f"schedule: {facts['design']}"]
    if "search" in facts:
        s = facts["search"]
        lines.append(
            f"search: {len(s['tried'])} schedules; the design takes {s['design_us']:.1f} us, this one {s['saved']:.1%} less"
        )
    lines += [f"check: {line}" for line in facts["check"]]
    lines += ["critical path:", *(f"  {s['us']:8.2f} us  {s['words']}" for s in facts["critical_path"])]
    for kind in ("cube", "vector"):
        every = [u for core, u in facts["utilisation"].items() if core.startswith(kind)]
        means = ", ".join(f"{name} {sum(u[name] for u in every) / len(every):.1%}" for name in every[0])
        lines.append(f"{len(every)} {kind} cores: {means}")
    return lines + facts.get("audit", [])
