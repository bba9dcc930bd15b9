"""Plots a benchmark's rows: for every case its calls as bars of time, on a logarithmic axis, and the floor as a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def draw(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Writes the picture; the ending of the path says its kind (png, svg, pdf)."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    cases: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    across = min(len(cases), 3)
    down = -(-len(cases) // across)
    tallest = max(map(len, cases.values()))
    figure, axes = pyplot.subplots(down, across, figsize=(6 * across, (0.34 * tallest + 1.1) * down), squeeze=False)
    for axis in axes.flat[len(cases) :]:
        axis.remove()
    for axis, (case, entries) in zip(axes.flat, cases.items(), strict=False):
        _bars(axis, case, entries)
    figure.tight_layout()
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text, where letters as curves are most of a file
        figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _bars(axis: Any, case: str, entries: Sequence[Mapping[str, Any]]) -> None:
    places = range(len(entries))
    micro = [entry["seconds"] * 1e6 for entry in entries]
    # The first call is ours; so are the others that say so.
    ours = [i == 0 or entry["name"].startswith("ours") for i, entry in enumerate(entries)]
    axis.barh(places, micro, color=["tab:blue" if mine else "tab:gray" for mine in ours], height=0.7)
    for place, time in zip(places, micro, strict=True):
        label = f"{time:.3g}" if time < 1000 else f"{time:,.0f}"
        axis.annotate(label, (time, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8)
    floor = entries[0]["floor_seconds"]
    if floor:
        axis.axvline(floor * 1e6, color="tab:red", linestyle="--", linewidth=1)
    axis.set_xscale("log")
    axis.set_xlim(0.7 * min(micro + ([floor * 1e6] if floor else [])), 5 * max(micro))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("")
    axis.set_yticks(places, [entry["name"] for entry in entries], fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.invert_yaxis()
    axis.set_title(case, fontsize=9)
    axis.set_xlabel("microseconds" + (f"; dashed: the floor, {floor * 1e6:.3g}" if floor else ""), fontsize=8)
