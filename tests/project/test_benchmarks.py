"""The benchmarks at tiny sizes: that they verify, time and report, and do not pass what is wrong."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import sys
import time
from importlib import import_module, util

import numpy as np
import pytest

import decodestep as ds
from decodestep import cli
from decodestep.cli import bench
from decodestep.ops.linear import Format
from measuring import harness, random_models, sampling
from measuring.sampling_check import verify
from peers import ours
from support import family_models, processes
from support.project import BENCHMARKS, TESTS

CLI = [sys.executable, "-m", "decodestep", "bench"]
TINY = ["--vocab", "2000", "--batch", "4", "--caches", "warm", "--rounds", "3", "--budget", "0"]


def run(command, *arguments):
    return processes.run([*command, *map(str, arguments)], timeout=300)


def names(rows, case):
    return {row["name"] for row in rows if row["case"].startswith(case)}


@pytest.fixture
def measured(monkeypatch):
    """measured(stem, *arguments): a benchmark as it ran in this process; another would import torch first."""
    monkeypatch.setattr(harness, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(harness, "_output", argparse.Namespace(csv="", json=False, plot=""))
    threads = harness.torch.get_num_threads()

    def of(stem, *arguments):
        words, out, err = [f"bench_{stem}.py", *map(str, arguments)], io.StringIO(), io.StringIO()
        with monkeypatch.context() as patch:
            for name, value in {"argv": words, "stdout": out, "__stdout__": out, "stderr": err}.items():
                patch.setattr(sys, name, value)
            try:
                code = harness.run_main(import_module(f"bench_{stem}").main) or 0
            except SystemExit as end:
                code = end.code
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    yield of
    harness.torch.set_num_threads(threads)


@pytest.fixture
def refused(measured):
    """refused(stem, arguments): the line with which a benchmark refuses its options."""

    def of(stem, arguments):
        ran = measured(stem, *arguments)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
        return ran.stderr

    return of


def test_the_sampler_verifies_every_case_and_reports(measured):
    cases = ["greedy", "temperature", "top-k", "top-p", "min-p", "full", "penalties", "mixed"]
    ran = measured("decode_step", *TINY, "--dtypes", "float32", "bfloat16", "--json", "--cases", *cases)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert len({row["case"] for row in rows}) == 2 * len(cases)
    assert all(row["seconds"] > 0 and row["ratio"] > 0 for row in rows)
    floors = [row["floor_seconds"] for row in rows if row["floor_seconds"] is not None]  # None: too short for the clock
    assert floors and min(floors) > 0
    assert {"ours, decode_step", "ours, Sampler", "topk-first", "sort"} <= names(rows, "full B=4")
    assert {"ours, all greedy", "ours, all top-p", "ours, all penalties"} <= names(rows, "mixed")
    assert "argmax" in names(rows, "greedy")
    for peer, package in {"llama.cpp": "llama_cpp", "genai": "onnxruntime_genai", "transformers": "transformers"}.items():
        if util.find_spec(package) is None:
            assert f"{peer}: {package} is not installed" in ran.stderr
        else:
            assert peer in names(rows, "full")
    for line in ("mixed takes", "topk-first: needs a top-k", "peers not selected: compiled"):
        assert line in ran.stderr


def test_drafts_verify_their_texts_and_count_what_is_accepted(measured):
    cases = ["--cases", "text", "rows", "acceptance", "--positions", 60, "--rows", 2, "--temperatures", 0.7]
    ran = measured("drafts", *cases, "--tokens", 6, "--rounds", 2, "--json")
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert len({row["case"] for row in rows}) == 5 and {row["name"] for row in rows} == {"drafts", "none"}
    assert "60 positions: accepted" in ran.stderr and ran.stderr.count("drafted tokens accepted") == 5


@pytest.mark.slow
def test_constraints_verify_their_masks_and_take_those_of_peers_that_are_installed(measured):
    ran = measured("constraint", "--cases", "bits", "masks", "--vocab", 2000, "--batch", 2, "--rounds", 2, "--json")
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert {"free", "0.99 of the tokens stay", "0.0001 of the tokens stay"} <= names(rows, "bits B=2 V=2000")
    assert {"ours", "llguidance"} <= names(rows, "compile V=2000, 10 schemas") & names(rows, "a mask V=2000")
    assert "ours: 99th percentile" in ran.stderr
    assert ("xgrammar: xgrammar is not installed" in ran.stderr) == (util.find_spec("xgrammar") is None)


def test_one_round_has_no_quartiles(refused):
    assert "argument --rounds: at least 2" in refused("rms_norm", ["--rounds", 1])


def test_quartiles_of_two_rounds_lie_between_them(capsys):
    from measuring import harness

    report = harness.Report("rms_norm", 1)
    report.show("case", {"ours": [1.0, 1.0], "peer": [1.0, 3.0]}, None, "")
    assert "[1.50, 2.50]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cases", "decode", "prefil"], "argument --cases: invalid choice: 'prefil'"),
        (["--kind", "Q4_K_M"], "options: --kind must be left out without --model; got ['Q4_K_M']"),
        (["--layers", "2"], "options: --layers must be left out without --model; got 2"),
        (["--model", "135m", "--cases", "accuracy"], "options: --cases must be without accuracy, which needs trained weights"),
        (["--model", "135m", "--file", "a.gguf"], "options: --file must be left out with --model"),
        (["--threads", "2", "0"], "argument --threads: at least 1; got 0"),
        (["--contexts", "0"], "argument --contexts: at least 1; got 0"),
        (["--contexts", "abc"], "argument --contexts: invalid integer value: 'abc'"),
        (["--prompts", "40", "abc"], "argument --prompts: invalid integer value: 'abc'"),
        (["--batch", "0"], "argument --batch: at least 1; got 0"),
        (["--layers", "-1", "--model", "135m"], "argument --layers: at least 0; got -1"),
        (["--positions", "0"], "argument --positions: at least 1; got 0"),
        (["--transformers", "float"], "argument --transformers: invalid choice: 'float'"),
        (["--dtype", "int3"], "argument --dtype: invalid choice: 'int3'"),
        (["--model", "youtu", "--layers", "33"], "options: --layers must be in [1, 32] for youtu, or 0 for all; got 33"),
        (["--model", "v2-lite", "--experts", "5"], "options: --experts must be in [6, 64] for v2-lite, or 0 for all; got 5"),
    ],
)
def test_options_of_generate_that_would_not_count(refused, arguments, message):
    assert message in refused("generate", arguments)


@pytest.mark.parametrize(
    ("benchmark", "arguments", "code", "message"),
    [
        ("generate", ["--file", "no.gguf"], 1, "bench_generate: no.gguf: cannot be opened"),
        ("rms_norm", ["--threads", "1000"], 2, "bench_rms_norm: use_threads: count must be an integer in [1, "),
        ("rms_norm", ["--csv", "no/rows.csv"], 1, "bench_rms_norm: no/rows.csv: No such file or directory"),
    ],
)
def test_what_a_benchmark_cannot_do_is_one_line(measured, benchmark, arguments, code, message):
    ran = measured(benchmark, *arguments)
    (line,) = [line for line in ran.stderr.splitlines() if not line.startswith("left out: llama.cpp")]
    assert ran.returncode == code and message in line


@pytest.mark.parametrize("kind", random_models.KINDS)
def test_files_of_random_weights_are_what_llama_cpp_reads(tmp_path, monkeypatch, kind):
    pytest.importorskip("llama_cpp")
    monkeypatch.setitem(random_models.SHAPES, "tiny", random_models.GroupedShape(2, 256, 4, 2, 64, 512, 300, 1e4))
    assert random_models.write(tmp_path / "a.gguf", "tiny", kind) == f"tiny, {kind}, random weights, 2 of 2 layers"
    ids = np.random.default_rng(0).integers(0, 299, 20)
    mine, theirs = ds.load(tmp_path / "a.gguf").logits(ids), family_models.llama_cpp_logits(tmp_path / "a.gguf", ids)
    assert 0.01 < mine.std() < 100 and family_models.relative(mine, theirs) < 0.1


def test_every_format_is_in_a_file_of_random_weights():
    written = {name for names in random_models.KINDS.values() for name in names}
    assert {format_.name for format_ in Format} - written == {"F32"}


EACH_ON_A_DEVICE = """
import os, runpy, sys
os.environ["TRITON_INTERPRET"] = "1"
sys.path[:0] = {folder!r}, {tests!r}
from support import triton_interpreter  # quicker than Triton's own, and checks every access
for stem, *arguments in {runs!r}:
    sys.argv = ["bench_" + stem, "--device", *arguments]
    runpy.run_path({folder!r} + "/bench_" + stem + ".py", run_name="__main__")
"""
RUNS = [
    ("decode_step", "interpreted", "--vocab", "300", "--batch", "2", "--cases", "full"),
    ("top_k_top_p_sample", "interpreted", "--vocabulary", "60", "--batch", "1"),
    ("tensor_scatter", "interpreted"),
    ("mixture_of_experts", "interpreted", "--hidden", "32", "--width", "16", "--experts", "4"),
    ("mla_prolog", "interpreted", "--heads", "1", "--tokens", "1"),
    ("mla_attention", "interpreted", "--contexts", "70"),
    ("tensor_scatter", "cuda"),
]


def test_what_runs_on_a_device_is_verified_without_one():
    """And is refused in a line where it was to be timed."""
    ran = run([sys.executable, "-c", EACH_ON_A_DEVICE.format(folder=str(BENCHMARKS), tests=str(TESTS), runs=RUNS)])
    for line in (
        "full B=2 V=300 float32: verified ours",
        "k=50 p=0.9 B=1 V=60: verified ours, given q, ours, seeded",
        "in place: verified ours",
        "bfloat16 T=64: verified ours",
        "int8 N=1 T=1: verified ours",
        "16 heads, context 70: verified ours",
    ):
        assert line in ran.stdout, ran.stderr
    if ran.returncode:
        assert ran.stderr.strip().endswith("bench_tensor_scatter: --device cuda needs a GPU, and torch finds none here")


def test_csv_and_plot(tmp_path):
    arguments = [*TINY, "--cases", "full", "--peers", "none", "--csv", tmp_path / "rows.csv"]
    if util.find_spec("matplotlib"):
        arguments += ["--plot", tmp_path / "rows.png"]
    ran = run([*CLI, "sampler"], *arguments)
    assert ran.returncode == 0, ran.stderr
    assert "full B=4 V=2000 float32 warm" in ran.stdout
    with (tmp_path / "rows.csv").open() as file:
        names = [row["name"] for row in csv.DictReader(file)]
        assert names == ["ours, decode_step", "ours, Sampler", "ours, log-probabilities"]
    if util.find_spec("matplotlib"):
        assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


def test_top_k_top_p_sample_verifies(measured):
    ran = measured("top_k_top_p_sample", "--batch", 3, "--vocabulary", 3000, "--rounds", 3)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("verified") == 6


def test_decoder_forward_verifies(measured):
    sizes = ["--layers", 1, "--contexts", 20, "--prompt", 5, "--batch", 2]
    ran = measured("decoder_forward", *sizes, "--rounds", 3, "--json")
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert len({row["case"] for row in rows}) == 3
    assert {"ours, Q8_0", "ours, BF16", "ours, F32"} <= names(rows, "prompt 5")


def test_the_prolog_verifies_every_form_and_type(measured):
    forms = ["--forms", "panels", "plain", "NZ"]
    ran = measured("mla_prolog", "--heads", 1, "--tokens", 2, "--rounds", 3, "--compile", 0, *forms, "--json")
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert {"panels", "plain", "NZ"} <= names(rows, "bfloat16 N=1 T=2") & names(rows, "int8 N=1 T=2")


def test_the_prolog_ends_where_torch_has_no_quick_product(measured, monkeypatch):
    """torch as it is on a CPU for whose instructions it has no product of int8: a loop of some billion operations a second."""
    quick = harness.torch._int_mm

    def slow(a, b):
        time.sleep(2e-9 * a.shape[0] * a.shape[1] * b.shape[1])
        return quick(a, b)

    monkeypatch.setattr(harness.torch, "_int_mm", slow)
    ran = measured("mla_prolog", "--heads", 1, "--tokens", 2, "--rounds", 3, "--compile", 0, "--types", "int8")
    assert ran.returncode == 0, ran.stderr
    assert "left out: square products of int8" in ran.stdout
    assert "torch eager" in ran.stdout


def test_the_command_lists_them_all_and_knows_no_others():
    listed = json.loads(run(CLI, "--json").stdout)
    stems = {path.stem.removeprefix("bench_") for path in BENCHMARKS.glob("bench_*.py")}
    assert set(listed) == stems
    assert all(listed.values())
    shown = run(CLI, "--help").stdout
    assert all(name in shown for name in (*listed, "sampler", "prolog"))
    ascii_alone = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert json.loads(processes.run([*CLI, "--json"], env=ascii_alone).stdout) == listed
    wrong = run(CLI, "speed")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert f"one of {min(listed)!r}" in wrong.stderr and "'sampler'" in wrong.stderr
    assert run([*CLI, "decode_step"], "--cases", "everything").returncode == 2


def test_the_command_without_a_clone_says_where_the_benchmarks_are(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "_FOLDER", tmp_path / "benchmarks")
    for arguments in ([], ["decode_step"], ["--help"]):
        assert cli.main(["bench", *arguments]) == 1
        out, err = capsys.readouterr()
        assert (
            not out
            and err.startswith("decodestep: bench: the benchmarks are not in the installed package; ")
            and err.count("\n") == 1
        )


def test_a_peer_that_takes_too_long_is_left_out_and_named(capsys):
    calls = {"ours": lambda: time.sleep(0.02), "quick": lambda: None, "slow": lambda: time.sleep(0.02)}
    times = harness.rounds_of(calls, 3, slowest=0.01)
    assert {name: len(seconds) for name, seconds in times.items()} == {"ours": 3, "quick": 3}
    assert "left out: slow takes 2" in capsys.readouterr().out


def test_no_round_begins_after_a_case_has_had_its_time():
    assert len(harness.rounds_of({"ours": lambda: time.sleep(0.01)}, 100, budget=0.0)["ours"]) == harness.LEAST_ROUNDS


class Wrong:
    """The truth, but for what `change` does to it."""

    ties = "kept"

    def __init__(self, truth, change):
        self.truth, self.change = truth, change

    def sample(self, logits):
        return self.change.get("sample", lambda tokens: tokens)(self.truth.sample(logits))

    def kept(self, logits, row):
        return self.change.get("kept", lambda *pair: pair)(*self.truth.kept(logits, row))


@pytest.mark.parametrize(
    "change",
    [
        {"kept": lambda ids, p: (ids[1:], p[1:] / p[1:].sum())},
        {"kept": lambda ids, p: (np.append(ids, np.setdiff1d(np.arange(99), ids)[0]), np.append(p, 0.0))},
        {"kept": lambda ids, p: (ids, np.full(len(p), 1 / len(p)))},
        {"sample": lambda tokens: tokens[:1]},
        {"sample": lambda tokens: np.full(len(tokens), -1)},
    ],
    ids=["one fewer", "one more", "other probabilities", "fewer tokens", "no token"],
)
def test_what_is_wrong_does_not_pass(change):
    case = sampling.case("full", 2, 500)
    logits = sampling.Logits(sampling.random_logits(np.random.default_rng(0), 2, 500, "float32"), None)
    verify(case, Wrong(ours.DecodeStep(case), {}), logits)
    with pytest.raises(AssertionError):
        verify(case, Wrong(ours.DecodeStep(case), change), logits)


def test_transformers_verifies_and_accelerates(measured):
    pytest.importorskip("transformers")
    arguments = ["--contexts", 24, "--layers", 1, "--prompt", 8, "--batches", 2, "--rounds", 3, "--json"]
    ran = measured("transformers", *arguments)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert {"decodestep", "sdpa", "eager"} == names(rows, "decode dense float32 B=2 context 24")
    assert {"decodestep", "sdpa"} == names(rows, "prefill")
    assert {"ours, Sampler", "transformers"} == names(rows, "sampling greedy")
    assert ran.stderr.count("verified") == 4


def test_files_of_random_weights_load_in_every_kind(tmp_path, monkeypatch):
    fills, does_not_fill = 256, 288  # the rows of 256 values a block
    for hidden, kinds in ((fills, random_models.KINDS), (does_not_fill, ("Q2_K", "Q4_K_M", "IQ4_XS"))):
        monkeypatch.setitem(random_models.SHAPES, "tiny", random_models.GroupedShape(2, hidden, 4, 2, 16, 256, 300, 1e4))
        for kind in kinds:
            path = tmp_path / f"{kind}-{hidden}.gguf"
            random_models.write(path, "tiny", kind)
            model = ds.load(path, threads=1)
            logits = model.logits([1, 2, 3])
            assert np.isfinite(logits).all() and logits.std() > 0.01, kind
            assert model.decoder.description == "one native call a step"


def test_a_file_without_gates_loads(tmp_path, monkeypatch):
    tiny = random_models.SHAPES["plm"]._replace(layers=1, hidden=64, heads=2, latent=64, nope=32, value=32, feed_forward=64)
    monkeypatch.setitem(random_models.SHAPES, "tiny", tiny._replace(vocabulary=300))
    random_models.write(tmp_path / "tiny.gguf", "tiny", "Q4_K_M")
    model = ds.load(tmp_path / "tiny.gguf", threads=1)
    assert np.isfinite(model.logits([1, 2, 3])).all() and model.decoder.description == "one native call a step"
