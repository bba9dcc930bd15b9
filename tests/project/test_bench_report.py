"""The report of the benchmarks: what it says of rows, wins and losses alike, and where it puts its table."""

from __future__ import annotations

import importlib
import sys

import pytest

from support.project import BENCHMARKS

FACTS = {"processor": "A CPU, 2 cores", "instruction set": "avx2"}


@pytest.fixture
def report_page(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from measuring import report_page as module

    yield module
    for name in ("report", "measuring.report_page"):
        sys.modules.pop(name, None)


def row(case, name, seconds, ratio, floor=None):
    spread = {"ratio_low": ratio * 0.9, "ratio_high": ratio * 1.1, "over_floor": floor}
    return {"case": case, "name": name, "seconds": seconds, "ratio": ratio, **spread, "threads": "2"}


RESULTS = {
    "generate Q4_0": [
        row("decode, context 100, 8 steps", "ours", 0.04, 1.0, 1.5),
        row("decode, context 100, 8 steps", "ours, otherwise", 0.01, 0.2),
        row("decode, context 100, 8 steps", "llama.cpp, flash attention", 0.08, 2.0),
        row("decode, context 100, 8 steps", "llama.cpp, no flash attention", 0.06, 1.5),
        row("prefill, 400 tokens", "ours", 0.8, 1.0),
        row("prefill, 400 tokens", "llama.cpp, flash attention", 0.4, 0.5),
    ],
    "generate batch": [
        row("decode, context 100, batch 8, 8 steps", "ours", 0.1, 1.0),
        row("decode, context 100, batch 8, 8 steps", "llama.cpp, flash attention", 0.2, 2.0),
    ],
    "decode_step B=1": [
        row("full B=1 V=128256 float32 warm, backend cpu", "ours, decode_step", 2e-5, 1.0),
        row("full B=1 V=128256 float32 warm, backend cpu", "llama.cpp, apply only", 1e-5, 0.5),
        row("full B=1 V=128256 float32 warm, backend cpu", "llama.cpp", 1e-4, 5.0),
    ],
    "tensor_scatter": [row("new", "ours", 1.0, 1.0), {**row("new", "torch", 2.0, 2.0), "ratio_high": 9.0}],
    "alone": [row("nobody else", "ours", 1.0, 1.0)],
}


def test_the_best_peer_is_the_fastest_that_does_all_of_the_work(report_page):
    text = report_page.report(FACTS, 2, RESULTS, [("Q4_0", "ours KL 1.0e-3   likeliest 97 %")], ["genai: not here"], "a-cpu")
    short = text.partition("## Summary")[2].partition("\n## ")[0]
    assert "| 60 ms, llama.cpp, no flash attention | 1.50× |" in short
    assert "| 400 ms, llama.cpp, flash attention | **0.50×, slower** |" in short
    assert "| 100 µs, llama.cpp | 5.00× |" in short and "nobody" not in short
    assert "| 2 s, torch | 2.00× (unsteady) |" in short
    assert "| Q4_0 | ours | KL 1.0e-3   likeliest 97 % |" in text and "- genai: not here" in text
    assert "| ours, otherwise | 10 ms | 0.20 | 0.18 to 0.22 |  |" in text
    assert "| ours | 40 ms | 1.00 | 0.90 to 1.10 | 1.5 |" in text
    assert "![generate Q4_0](a-cpu-generate-Q4_0.svg)" in text


def test_the_readme_shows_wins_and_losses_in_tokens_a_second(report_page):
    table = report_page.readme_table(FACTS, 2, RESULTS, "docs/results/a-cpu.md")
    assert "| Q4_0, decode, context 100 | 200 tokens/s | 133 tokens/s, llama.cpp, no flash attention | 1.50" in table
    assert "| Q4_0, prefill, 400 tokens | 500 tokens/s | 1000 tokens/s, llama.cpp, flash attention | **0.50×, slow" in table
    assert "| decode, context 100, batch 8 | 640 tokens/s | 320 tokens/s" in table
    assert "| sampler, full, vocabulary of 128256 | 20 µs | 100 µs, llama.cpp | 5.00× |" in table


def test_a_difference_below_the_printed_digits_is_no_loss(report_page):
    results = {"linear": [row("even", "ours", 1.0, 1.0), row("even", "torch", 0.996, 0.996)]}
    assert "| 996 ms, torch | 1.00× |" in report_page.report(FACTS, 2, results, [], [], "a-cpu")
    assert "torch" not in report_page.readme_table(FACTS, 2, results, "docs/results/a-cpu.md")


def test_the_list_of_reports_has_the_date_of_the_last_one(report_page, tmp_path):
    report = importlib.import_module("report")
    index = tmp_path / "index.md"
    for stem, date in (("a-cpu", "2026-01-01"), ("b-cpu", "2026-01-02"), ("a-cpu", "2026-01-03")):
        report.list_report(index, stem, {"processor": stem.upper(), "date": date})
    listed = [line for line in index.read_text().splitlines() if line.startswith("- ")]
    assert listed == ["- [A-CPU](a-cpu.md), 2026-01-03", "- [B-CPU](b-cpu.md), 2026-01-02"]


def test_the_list_has_the_dates_of_the_reports():
    folder = BENCHMARKS.parent / "docs/results"
    for line in (folder / "index.md").read_text().splitlines():
        if line.startswith("- "):
            name, date = line.partition("](")[2].split("), ")
            assert f"| date | {date} |" in (folder / name).read_text(), name


def test_both_pages_have_a_place_for_the_table():
    for page in ("README.md", "docs/index.md"):
        text = (BENCHMARKS.parent / page).read_text()
        assert text.count("<!-- bench-report -->\n") == text.count("<!-- /bench-report -->") == 1, page
