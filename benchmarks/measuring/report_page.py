"""The page of a report: a summary, accuracy, tables of every case, and what was not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from measuring.harness import duration

Rows = Sequence[Mapping[str, Any]]

_HOW = """The models run on {} threads, the sampler on one, the operators on the number in their tables. Every round times each
call once; times are medians over the rounds. A ratio is a call's time divided by ours in the same round, as median and
quartiles. The floor is the time that reading the data from memory takes."""
_ACCURACY = """Compared with transformers in float32 on the same file, over 1000 positions of source code: the Kullback-Leibler
divergence, and how often the most likely token is the same."""
_UNSTEADY = 1.6
_STEPS = 8  # tokens in one timed call of decoding, as in bench_generate


def is_ours(row: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    return row is first or row["name"].startswith("ours")


def by_case(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["case"], []).append(row)
    return found


def best_peer(rows: Rows) -> Mapping[str, Any] | None:
    """The fastest row that is not ours; rows of a part of the work ("apply only", "products only") do not count."""
    peers = [row for row in rows if not is_ours(row, rows[0]) and "only" not in row["name"]]
    return min(peers, key=lambda row: row["seconds"], default=None)


def report(
    facts: Mapping[str, str],
    threads: int,
    results: Mapping[str, Rows],
    accuracy: Sequence[tuple[str, str]],
    left_out: Sequence[str],
    stem: str,
) -> str:
    lines = [f"# {facts['processor']}", "", "Written by `make bench-report`; [how it is measured](../benchmarks.md).", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in facts.items())]
    lines += ["", _HOW.format(threads), "", "## Summary", ""]
    lines += _summary(results)
    if accuracy:
        lines += ["", "## Accuracy", "", _ACCURACY, "", "| weights | who | |", "|---|---|---|"]
        for kind, line in accuracy:
            name, _, rest = line.partition(" KL ")
            lines.append(f"| {kind} | {name.strip()} | KL {rest.strip()} |")
    for name, rows in results.items():
        picture = f"{stem}-{name.replace(' ', '-').replace('=', '')}.svg"
        lines += ["", f"## {name}", "", f"![{name}]({picture})"]
        for case, entries in by_case(rows).items():
            lines += ["", f"**{case}**, {entries[0]['threads']} thread(s)", "", "| | median | ratio | quartiles | × floor |",
                      "|---|---|---|---|---|"]  # fmt: skip
            for row in entries:
                above = "" if row["over_floor"] is None else f"{row['over_floor']:.1f}"
                spread = f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}"
                lines.append(f"| {row['name']} | {duration(row['seconds'])} | {row['ratio']:.2f} | {spread} | {above} |")
    lines += ["", "## Not measured", "", *(f"- {line}" for line in left_out)] if left_out else []
    return "\n".join(lines) + "\n"


def _summary(results: Mapping[str, Rows]) -> list[str]:
    lines = ["| | case | ours | fastest peer | speedup |", "|---|---|---|---|---|"]
    for name, rows in results.items():
        for case, entries in by_case(rows).items():
            peer = best_peer(entries)
            if peer is not None:
                theirs = f"{duration(peer['seconds'])}, {peer['name']}"
                lines.append(f"| {name} | {case} | {duration(entries[0]['seconds'])} | {theirs} | {_faster(peer)} |")
    return lines


def _faster(peer: Mapping[str, Any]) -> str:
    """The speedup of ours over a peer; "unsteady" if the quartiles are far apart, because another process interfered."""
    words = f"**{peer['ratio']:.2f}×, slower**" if _is_slower(peer["ratio"]) else f"{peer['ratio']:.2f}×"
    return f"{words} (unsteady)" if peer["ratio_high"] > _UNSTEADY * peer["ratio_low"] else words


def _is_slower(ratio: float) -> bool:
    """Whether ours is slower in the digits that are printed."""
    return round(ratio, 2) < 1


def readme_table(facts: Mapping[str, str], threads: int, results: Mapping[str, Rows], link: str) -> str:
    """One table: decode and prefill of the default model by weight type, the sampler, and each operator's worst case."""
    where = f"{facts['processor']}, {facts['instruction set']}"
    sampler = "; the sampler on one thread" if "decode_step B=1" in results else ""
    lines = [
        f"SmolLM2-135M-Instruct (Q4_1 by default) on {threads} threads{sampler}: {where}.",
        "The speedup is over the fastest peer that ran: the median over interleaved rounds. Below 1×, the peer is faster.",
        f"[All results]({link}): operators, accuracy, what was not measured.",
        "",
    ]
    lines += ["| | ours | fastest peer | speedup |", "|---|---|---|---|"]
    for name, rows in results.items():
        for case, entries in by_case(rows).items():
            lines += _readme_row(name, case, entries[0], best_peer(entries))
    return "\n".join([*lines, *_slower(results)]) + "\n"


def _readme_row(name: str, case: str, first: Mapping[str, Any], peer: Mapping[str, Any] | None) -> list[str]:
    """The line of a case, if the README has it. first: ours."""
    if peer is None:
        return []
    if name.startswith("generate"):
        kind = name.split()[-1]
        words = f"{kind + ', ' if kind != 'batch' else ''}{case.removesuffix(f', {_STEPS} steps')}"
        ours, theirs = (f"{_tokens(case) / row['seconds']:.0f} tokens/s" for row in (first, peer))
    elif name == "decode_step B=1" and case.split()[0] in ("greedy", "top-p", "full", "penalties"):
        words = f"sampler, {case.split()[0]}, vocabulary of 128256"
        ours, theirs = (duration(row["seconds"]) for row in (first, peer))
    else:
        return []
    return [f"| {words} | {ours} | {theirs}, {peer['name']} | {_faster(peer)} |"]


def _slower(results: Mapping[str, Rows]) -> list[str]:
    """For each operator, the case in which a peer is furthest ahead of our best variant."""
    lines = []
    for name, rows in results.items():
        slower = []
        for case, entries in by_case(rows).items():
            ours = [row for row in entries if is_ours(row, entries[0])]
            peer, best = best_peer(entries), min(ours, key=lambda row: row["ratio"])
            if peer is None or name.startswith(("generate", "decode_step")):
                continue
            scaled = {key: peer[key] / best["ratio"] for key in ("ratio", "ratio_low", "ratio_high")}
            if _is_slower(scaled["ratio"]):
                line = f"{duration(best['seconds'])} | {duration(peer['seconds'])}, {peer['name']} | {_faster(scaled)} |"
                slower.append((scaled["ratio"], f"| {name}, {case} | {line}"))
        lines += [line for _, line in sorted(slower)[:1]]
    return lines


def _tokens(case: str) -> int:
    """The number of tokens that a timed call of bench_generate generates or prefills."""
    words = case.replace(",", "").split()
    if words[0] == "prefill":
        return int(words[1])
    return _STEPS * (int(words[words.index("batch") + 1]) if "batch" in words else 1)
