"""MlaProlog's schedule in virtual time: costs by hand, where the time goes, pictures, the search and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

import decodestep as ds
from decodestep import cli
from decodestep.npu_schedule import (
    Compute,
    Core,
    CostModel,
    Design,
    Flag,
    Job,
    Load,
    SetFlag,
    Store,
    Tile,
    WaitFlag,
    chart,
    check,
    critical_path,
    mla_prolog_schedule,
    page,
    search,
    simulate,
    timeline,
    trace,
    utilisation,
)
from support.schedule_cases import SMALL, agrees, call_of, reference, schedule_of

CUBES = Core("cube", 0), Core("cube", 1)
VECTORS = Core("vector", 0), Core("vector", 1)
JOB = Job("MatmulCq", 0, (0, 2), (0, 16))
NORM = Job("RmsNormCq", 0, (0, 2), (0, 16))
PASSES = {kernel: 2.0 for kernel in CostModel().vector_passes}
SLOW = CostModel(
    cube_hz=2.0, vector_hz=1.0, hbm_bytes=100.0, core_bytes=80.0, l2_bytes=1000.0, flag_seconds=0.5, vector_passes=PASSES
)


def by_hand(programs, flags=None):
    """Programs of our own on two cube cores with a vector core each."""
    base = schedule_of("NO_QUANT", 2, 1, 2, 1)
    return replace(base, flags=flags or {}, programs={core: () for core in base.programs} | programs)


def load(size, local="w", buffer="weight_dq"):
    return Load(JOB, Tile(buffer, (0, 16), (0, 16)), local, size)


def multiply(rows, inner, columns):
    return Compute(JOB, ("w",), ("y",), (0, inner), (rows, inner, columns))


def test_a_move_a_product_and_a_move():
    """160 bytes at 80 a second; 17 x 33 x 16 is 2 x 1 x 3 pairs of fractals at two a second; 40 bytes; 2 + 3 + 0.5."""
    schedule = by_hand({CUBES[0]: (load(160), multiply(17, 33, 16), Store(JOB, "y", Tile("query", (0, 2), (0, 16)), 40))})
    t = timeline(schedule, SLOW)
    assert t.end[:3] == pytest.approx([2.0, 5.0, 5.5]) and t.makespan == pytest.approx(5.5)
    assert utilisation(t)[CUBES[0]] == pytest.approx((3 / 5.5, 2.5 / 5.5, 0, 0))
    assert utilisation(t)[CUBES[1]] == (0, 0, 0, 1)
    int8 = timeline(replace(schedule, sizes=schedule_of("FULL", 2, 1, 2, 1).sizes), SLOW)
    assert int8.end[1] == pytest.approx(4.0)  # 33 values of 32 a fractal: 2 x 1 x 2


def test_moves_share_the_memory():
    """400 and 200 bytes, 50 a second each until the second ends after 4 s; the rest of the first at its most, 80 a second."""
    t = timeline(by_hand({CUBES[0]: (load(400),), CUBES[1]: (load(200),)}), SLOW)
    assert t.end == pytest.approx([4 + 200 / 80, 4.0])
    apart = timeline(by_hand({CUBES[0]: (load(400),), CUBES[1]: (load(200, buffer="token_x"),)}), SLOW)
    assert apart.end == pytest.approx([5.0, 2.5])  # one from memory, one from the cache
    late = timeline(by_hand({CUBES[0]: (load(400),)}), replace(SLOW, move_seconds=0.25))
    assert late.makespan == pytest.approx(5.25)


def test_flags_wait_for_the_slowest():
    """Products of 1 and 3 s, a flag half a second later, a join of the vector cores, and 64 values twice over, 2 s."""
    flags = {"MM_CQ": Flag(6, 2), "VEC_ALL_CQ": Flag(7, 0)}
    read = Load(NORM, Tile("cq", (0, 1), (0, 1)), "cq", 0)
    vector = (
        *(WaitFlag("MM_CQ"), SetFlag("VEC_ALL_CQ", "MTE3"), WaitFlag("VEC_ALL_CQ")),
        *(read, Compute(NORM, ("cq",), ("n",), values=64)),
    )
    cubes = {c: (load(0), multiply(16, 16 * n, 16), SetFlag("MM_CQ", "M")) for c, n in zip(CUBES, (2, 6), strict=True)}
    t = timeline(by_hand(cubes | {v: vector for v in VECTORS}, flags), SLOW)
    assert t.makespan == pytest.approx(3 + 0.5 + 0.5 + 2)
    for core, share in utilisation(t).items():
        assert sum(share) == pytest.approx(1, abs=1e-12), core
    assert utilisation(t)[VECTORS[0]] == pytest.approx((2 / 6, 0, 4 / 6, 0))
    path = critical_path(t)
    assert path[0].core == CUBES[1] and path[-1].core in VECTORS
    assert sum(segment.seconds for segment in path) == pytest.approx(t.makespan)
    words = " | ".join(segment.words for segment in path)
    assert "waits 3500000.00 us for MM_CQ, set last by cube 1 after MatmulCq of tokens 0-1, columns 0-15" in words
    assert "for VEC_ALL_CQ, set last by vector 1" in words


@pytest.mark.parametrize(("buffers", "seconds"), [(1, 15.0), (2, 11.0), (3, 11.0)])
def test_buffers_let_moves_run_ahead(buffers, seconds):
    """Three times 160 bytes, 2 s, and a product of 3 s: one buffer, they alternate; two, the products follow each other."""
    t = timeline(by_hand({CUBES[0]: (load(160), multiply(16, 96, 16)) * 3}), replace(SLOW, buffers=buffers))
    assert t.makespan == pytest.approx(seconds)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hbm_bytes": -1.0},
        {"flag_seconds": -1e-9},
        {"cube_hz": 0},
        {"buffers": 0},
        {"int8_cycles": float("nan")},
        {"vector_passes": {}},
    ],
    ids=str,
)
def test_costs_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=f"^CostModel: {next(iter(wrong))}.* must be"):
        CostModel(**wrong)


def test_a_large_call_in_words():
    t = timeline(mla_prolog_schedule(ds.mla_prolog_plan(128, 128)))
    assert len(t.graph.schedule.cores) == 72 and 50e-6 < t.makespan < 500e-6
    assert all(abs(sum(share) - 1) < 1e-9 for share in utilisation(t).values())
    assert sum(segment.seconds for segment in critical_path(t)) == pytest.approx(t.makespan)
    loads = [e.instruction for e in t.graph.events if isinstance(e.instruction, Load)]
    weights = sum(i.size for i in loads if i.source.buffer.startswith("weight"))
    assert weights == 2 * (7168 * (1536 + 576) + 1536 * 128 * 192 + 128 * 128 * 512)  # each is moved once


# Pictures


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.loaded, self.bars = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.loaded += [given[name] for name in ("src", "href", "data") if name in given]
        if "bar" in (given.get("class") or "").split():
            self.bars.append(given)


@pytest.fixture(scope="module")
def shown():
    return timeline(schedule_of("FULL_KV", 130, 8, 3))


def test_the_page_needs_nothing_else(shown):
    text = page(shown)
    found = Page(text)
    assert not found.loaded and not {"link", "img", "iframe"} & set(found.tags)
    assert "http:" not in text and "https:" not in text and "@import" not in text and "url(" not in text
    assert {bar["data-core"] for bar in found.bars} == {str(core) for core in shown.graph.schedule.cores}
    words = "\n".join(bar["data-words"] for bar in found.bars)
    for part in ("MatmulQcQr of tokens 0-127, columns", "step 1", "waits", "set last by"):
        assert part in words
    assert any("lit" in bar["class"] for bar in found.bars) and "prefers-color-scheme:dark" in text
    assert "<h2>The critical path</h2>" in text


def test_the_drawing_is_xml_within_its_frame(shown):
    root = ElementTree.fromstring(chart(shown))
    width, height = float(root.get("width")), float(root.get("height"))
    space = "{http://www.w3.org/2000/svg}"
    rects = [r for r in root.iter(f"{space}rect") if r.find(f"{space}title") is not None]
    assert len(rects) > 100
    for r in rects:
        x, y, wide, high = (float(r.get(name)) for name in ("x", "y", "width", "height"))
        assert min(x, y) >= 0 and x + wide <= width - 132 and y + high <= height


def test_the_trace_has_the_events_of_the_format(shown):
    events = json.loads(trace(shown))["traceEvents"]
    names = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == len(shown.graph.events)
    last: dict[tuple[int, int], float] = {}
    for e in sorted(spans, key=lambda e: e["ts"]):
        thread = e["pid"], e["tid"]
        assert thread in names and e["dur"] >= 0 and e["ts"] >= last.get(thread, 0.0) - 1e-6  # a pipe does one thing at a time
        last[thread] = e["ts"] + e["dur"]
    starts = {e["id"]: e["ts"] for e in events if e["ph"] == "s"}
    ends = {e["id"]: e["ts"] for e in events if e["ph"] == "f"}
    assert starts and starts.keys() == ends.keys() and all(starts[i] < ends[i] for i in starts)


# Search and command


@pytest.mark.slow
def test_what_the_search_finds_is_right_and_not_slower():
    plan = ds.mla_prolog_plan(150, 8, aic=3, aiv=6, **SMALL)
    found = search(plan)
    assert found.report.ok and check(found.best.graph.schedule).ok
    assert found.best.makespan < found.design.makespan and 0 < found.saved < 1
    assert found.best.makespan == min(seconds for _, seconds in found.tried)
    assert dict(found.tried)[Design()] == found.design.makespan
    call = call_of("NO_QUANT", "PA_BSND", 150, 8)
    agrees(simulate(found.best.graph.schedule, call), reference(call))


def run(capsys, *arguments):
    code = cli.main(["schedule", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_command_writes_drawings_and_prints_the_facts(capsys, tmp_path):
    files = [tmp_path / f"schedule{end}" for end in (".html", ".svg", ".json")]
    small = ["--tokens", 3, "--heads", 8, "--scenario", "FULL", "--cubes", 2, "--hidden", 256]
    outs = [word for file in files for word in ("--out", file)]
    code, out, _ = run(capsys, *small, *outs, "--audit")
    assert code == 0 and out.startswith("MlaProlog, FULL, 3 tokens, 8 heads, 2 cube and 4 vector cores: ")
    assert "check: no race, no deadlock" in out and "critical path:" in out and "MM_CQ: needed: race" in out
    assert [file.read_text()[:9] for file in files] == ["<!doctype", "<svg xmln", '{"traceEv']
    code, out, _ = run(capsys, *small, "--json", "--cost", "hbm_bytes=1e15")
    facts = json.loads(out)
    assert code == 0 and set(facts) == {"title", "design", "makespan_us", "check", "critical_path", "utilisation"}
    assert sum(part["us"] for part in facts["critical_path"]) == pytest.approx(facts["makespan_us"])
    code, out, _ = run(capsys, "--tokens", 129, "--heads", 1, "--cubes", 2, "--hidden", 64, "--published")
    assert code == 0 and "check: race: ckvkr[" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tokens", 0], "schedule: tokens must be an integer >= 1; got 0"),
        (["--scenario", "TILE"], "mla_prolog_plan: scenario must be"),
        (["--cost", "hbm_bytes=-1"], "CostModel: hbm_bytes must be"),
        (["--cost", "speed=1"], "schedule: cost must be NAME=VALUE"),
        (["--cost", "hbm_bytes=fast"], "schedule: cost hbm_bytes must be a number"),
        (["--cost", "buffers=1.5"], "schedule: cost buffers must be an integer"),
        (["--out", "page.txt"], "schedule: out must be a file name in .html, .svg, .json"),
        (["--cubes", 0], "schedule: cubes and group must be > 0"),
        (["--published", "--search"], "schedule: published must be left out of a search"),
    ],
)
def test_requests_that_are_wrong(capsys, arguments, words):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "") and err.startswith(f"decodestep: {words}")
