"""A Gantt chart of a timeline as SVG: a row for each core, computing above, moving below, waiting as an outline."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from decodestep.npu_schedule.bars import COMPUTE, MOVE, WAIT, Bar, bars
from decodestep.npu_schedule.critical import utilisation
from decodestep.npu_schedule.instructions import CUBE, Core
from decodestep.npu_schedule.timeline import Timeline

# Kernels in the order of the legend. Those of cube cores are blue to violet, those of vector cores green to red.
KERNELS = {
    "MatmulCq": "#4c8dd6",
    "MatmulCkvKr": "#2fa6b8",
    "MatmulQcQr": "#7a6fd0",
    "MatmulQn": "#b566c2",
    "LoadSinCos": "#8c9299",
    "RmsNormCq": "#4ca45e",
    "NormRopeCkvKr": "#96a52f",
    "DequantQc": "#d1962b",
    "RopeQr": "#d9743a",
    "DequantRopeQr": "#d9743a",
    "QuantQnMulQr": "#cf5468",
}
LABELS, RIGHT, TOP, ROW, GAP = 132, 14, 34, 13, 10  # of the drawing
STYLE = """
.chart{--paper:#ffffff;--ink:#1c2128;--faint:#69727d;--line:#d9dee4;--lit:#d0021b;background:var(--paper);
font:11px system-ui,-apple-system,"Segoe UI",sans-serif}
@media (prefers-color-scheme:dark){.chart{--paper:#14181d;--ink:#e4e8ed;--faint:#98a2ae;--line:#333b45;--lit:#ff6b6b}}
.chart text{fill:var(--faint)}.chart .kind{fill:var(--ink);font-weight:600}
.chart .grid{stroke:var(--line);stroke-width:1}
.chart .wait{fill:none;stroke:var(--faint);stroke-width:.8;stroke-dasharray:2 2}
.chart .lit{stroke:var(--lit);stroke-width:1.6;stroke-dasharray:none}
"""


def chart(timeline: Timeline, width: int = 1240) -> str:
    """A whole SVG file: labels, bars with titles for hovering, legend."""
    cores = timeline.graph.schedule.cores
    inner, height = width - LABELS - RIGHT, height_of(cores)
    legend = _legend(timeline)
    parts = (labels(timeline), f'<g transform="translate({LABELS},0)">', drawing(timeline, inner, titles=True), "</g>")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height + 40}" width="{width}" '
        f'height="{height + 40}" role="img" aria-label="{escape(title(timeline))}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" style="fill:var(--paper)"/>{"".join(parts)}'
        f'<g transform="translate(0,{height + 8})">{legend}</g></svg>\n'
    )


def title(timeline: Timeline) -> str:
    s = timeline.graph.schedule.sizes
    return (
        f"MlaProlog, {s.scenario.name}, {s.tokens} tokens, {s.heads} heads, {s.cubes} cube and {s.vectors} vector cores: "
        f"{timeline.makespan * 1e6:.1f} us"
    )


def height_of(cores: Iterable[Core]) -> int:
    return int(max((_top(core, list(cores)) for core in cores), default=TOP)) + ROW + 6


def labels(timeline: Timeline) -> str:
    """The names of the rows, with how busy each core is."""
    cores, busy = timeline.graph.schedule.cores, utilisation(timeline)
    right = f'class="share" x="{LABELS - 8}" text-anchor="end"'
    made = [f'<text class="kind" x="8" y="{TOP - 8}">core</text><text {right} y="{TOP - 8}">busy</text>']
    for core in cores:
        y, u = _top(core, cores) + ROW - 3.5, busy[core]
        made.append(f'<text x="8" y="{y}">{core}</text>')
        made.append(f'<text {right} y="{y}">{(u.computing + u.moving):.0%}</text>')
    return "".join(made)


def drawing(timeline: Timeline, width: float, *, titles: bool) -> str:
    """The time axis and the bars. With titles, hovering shows a bar's words; else they are in data-words."""
    cores = timeline.graph.schedule.cores
    scale, height = width / max(timeline.makespan, 1e-12), height_of(cores)
    made = [_axis(timeline.makespan, scale, height)]
    shown = bars(timeline)
    for bar in sorted(shown, key=lambda b: b.critical):  # critical bars are drawn on top
        made.append(_bar(bar, cores, scale, titles))
    return "".join(made)


def _bar(bar: Bar, cores: list[Core], scale: float, titles: bool) -> str:
    y = _top(bar.core, cores)
    top, height = {COMPUTE: (y, ROW * 0.55), MOVE: (y + ROW * 0.6, ROW * 0.3), WAIT: (y + ROW * 0.25, ROW * 0.4)}[bar.lane]
    fill = "" if bar.lane == WAIT else f' fill="{KERNELS.get(bar.kernel, "#8c9299")}"'
    name = " ".join(["bar", bar.lane, *(["lit"] if bar.critical else [])])
    place = (
        f'x="{bar.start * scale:.2f}" y="{top:.1f}" width="{max((bar.end - bar.start) * scale, 0.4):.2f}" height="{height:.1f}"'
    )
    words = escape(bar.words, quote=True)
    if titles:
        return f'<rect class="{name}" {place}{fill}><title>{words}</title></rect>'
    return f'<rect class="{name}" {place}{fill} data-core="{bar.core}" data-words="{words}"/>'


def _axis(makespan: float, scale: float, height: int) -> str:
    made = []
    step = _tick(makespan * 1e6)
    for n in range(int(makespan * 1e6 / step) + 1):
        x = n * step * 1e-6 * scale
        made.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{height}"/>')
        made.append(f'<text x="{x:.1f}" y="{TOP - 8}">{n * step:g}{" us" if n == 0 else ""}</text>')
    return "".join(made)


def _tick(micros: float) -> float:
    """A round step for about ten ticks."""
    if micros <= 0:
        return 1.0
    unit = 10 ** math.floor(math.log10(micros / 10))
    return float(next(n * unit for n in (1, 2, 5, 10) if n * unit >= micros / 10))


def _top(core: Core, cores: list[Core]) -> float:
    """The top of a core's row; there is a gap before the vector cores."""
    return TOP + cores.index(core) * ROW + (0 if core.kind == CUBE else GAP)


def used_kernels(timeline: Timeline) -> list[str]:
    found = {bar.kernel for bar in bars(timeline) if bar.lane != WAIT}
    return [kernel for kernel in KERNELS if kernel in found]


def _legend(timeline: Timeline) -> str:
    made, x = [], 8
    for kernel in used_kernels(timeline):
        made.append(
            f'<rect x="{x}" y="6" width="10" height="10" fill="{KERNELS[kernel]}"/><text x="{x + 14}" y="15">{kernel}</text>'
        )
        x += 28 + 7 * len(kernel)
    made.append(f'<rect class="wait" x="{x}" y="7" width="14" height="8"/><text x="{x + 18}" y="15">waits</text>')
    made.append(
        f'<rect class="wait lit" x="{x + 60}" y="7" width="14" height="8"/><text x="{x + 78}" y="15">critical path</text>'
    )
    return "".join(made)
