"""What `explain` records and shows: the page's data, its sliders against traces with those settings, the terminal's tables."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import decodestep as ds
from decodestep import cli, explain
from decodestep.explain import data, terminal
from decodestep.explain.page import page
from decodestep.explain.record import record
from decodestep.explain.terminal import DrawnToken
from decodestep.explain.tokens import pieces, spell
from decodestep.explain.words import WORDS, words_of
from decodestep.sampling.param_steps import processors_of
from decodestep.sampling.plan import plan
from support import core_builds, processes
from support.project import ROOT

HERE = Path(explain.__file__).parent
NODE = shutil.which("node")
BUSY = {"repetition_penalty": 1.2, "dry_multiplier": 0.8, "no_repeat_ngram_size": 2, "frequency_penalty": 0.1}


def document_in(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


@pytest.fixture(scope="module")
def document(model):
    ids = model.tokenizer.encode("Round and round and round")
    each = [ds.SamplingParams(seed=2, temperature=0.9, top_k=30, top_p=0.9, **BUSY), ds.SamplingParams(do_sample=False)]
    return data.record_document(model, "Round</script><b>", ids, each, steps=6, top=40)


@pytest.mark.slow
def test_a_recording_is_what_generate_does(model, document):
    ids = model.tokenizer.encode("Round and round and round")
    params = ds.SamplingParams(seed=2, temperature=0.9, top_k=30, top_p=0.9, max_new_tokens=6, logprobs=0, **BUSY)
    (whole,) = ds.generate(model, [ids], params)
    run = document["runs"][0]
    assert [token["token"] for token in run["tokens"]] == whole.token_ids and run["text"] == whole.text
    for token, step in zip(run["tokens"], whole.logprobs, strict=True):
        assert (token["raw"], token["processed"]) == pytest.approx((step.raw, step.processed), abs=1e-9)


def test_a_recording_ends_with_the_context_as_generate_does(tiny_file):
    small = ds.load(tiny_file(context=24))
    params = ds.SamplingParams(seed=1, ignore_eos=True, stop_strings="never", forced_eos_token_id=65)
    (whole,) = ds.generate(small, [[70] * 20], params)
    made = record(small, [70] * 20, params, 9, lambda trace: trace.token)
    assert (list(made.tokens), made.text, made.row.reason) == (whole.token_ids, whole.text, "length")
    assert len(made.tokens) == 4 and made.tokens[-1] == 65


def test_each_stage_adds_up(document):
    for run in document["runs"]:
        assert "".join(run["pieces"]).endswith(run["text"])
        for token in run["tokens"]:
            scores = None
            for stage in (token["start"], *token["steps"]):
                if "scores" in stage:
                    scores = list(stage["scores"])
                for i in stage.get("gone", ()):
                    scores[i] = None
                held = sum(np.exp(s - stage["norm"]) for s in scores if s is not None)
                assert held + stage["others"] == pytest.approx(1, abs=1e-6)
    first = document["runs"][0]["tokens"][0]
    assert any(step["causes"] for step in first["steps"][:4])


def test_the_page_needs_nothing_else_and_holds_any_text(document):
    html = page(document, "https://docs.example/")
    assert document_in(html)["prompt"] == "Round</script><b>" and "@@" not in html
    assert "Round</script>" not in html and html.count("<script") == html.count("</script>") == 2
    assert not re.search(r"""(?:src=|href=["']|url\(|import )["']?(?:https?:)?//""", html)
    links = {words["link"] for words in document_in(html)["described"].values()}
    assert "https://docs.example/processors/#filters" in links
    assert {words["link"] for words in document_in(page(document))["described"].values()} == {""}


def test_a_token_has_as_many_causes_as_it_occurs(model):
    ids = model.tokenizer.encode("a" + " a" * 19)
    (run,) = data.record_document(model, "a", ids, [ds.SamplingParams(repetition_penalty=1.3)], steps=1, top=5)["runs"]
    (token,) = run["tokens"]
    assert token["steps"][0]["causes"][str(ids[-1])] == {"count": 19, "latest": tuple((n, n + 1) for n in range(12, 20))}


@pytest.mark.parametrize("off", [{"do_sample": False}, {"temperature": 0.0}])
def test_the_sliders_of_a_greedy_run_start_with_no_filter(model, off):
    params = ds.SamplingParams(**{"temperature": 0.7, "top_k": 5, "top_p": 0.5, "min_p": 0.1, **off})
    (run,) = data.record_document(model, "Hi", [1], [params], steps=1, top=5)["runs"]
    assert run["tokens"][0]["start"]["left"] > 5 and not run["plan"]
    assert [run["what_if"][name] for name in ("temperature", "top_k", "top_p", "min_p")] == [1, 0, 1, 0]


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_a_race_has_the_tokens_whose_probability_is_too_small_for_a_number():
    traced = plan([ds.processors.TemperatureLogitsWarper(0.001)], 4).trace(np.array([7, 2, 6, -np.inf], np.float32), seed=1)
    token, race = data._token(traced, 4, data.TEMPERATURES), dict(zip(traced.draw.ids, traced.draw.race, strict=True))
    script = """
const [token, run] = JSON.parse(require('fs').readFileSync(0));
const panel = {run, race: Panel.prototype.race, word: id => `<${id}>`};
console.log(JSON.stringify([Panel.prototype.drawn.call(panel, token), panel.race(token).map(r => r.total)]));"""
    sources = "\n".join((HERE / name).read_text() for name in ("what_if.js", "panel.js"))
    ran = processes.run([NODE, "-e", sources + script], input=json.dumps([token, {"plan": [None], "seed": "1"}]))
    assert ran.stderr == ""
    (_, said), totals = json.loads(ran.stdout)
    assert totals == pytest.approx([race[0] - 7000, race[2] - 7000, race[1] - 7000], abs=1e-3)
    assert said == f"The next is <2>, {race[0] - race[2]:.2f} behind."


def test_a_token_that_the_model_had_at_nothing_is_a_number_too():
    logits = np.array([np.inf, 1, 2, 0], np.float32)
    trace = plan([ds.processors.AllowedTokenIdsLogitsProcessor([3])], 4).trace(logits)
    token = data._token(trace, 40, data.TEMPERATURES)
    assert trace.logprobs(3)[0] == -np.inf and token["raw"] < -3e38 and token["processed"] == 0
    json.dumps(token, allow_nan=False)  # JSON, and a browser, know no infinity


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("top", [np.inf, 3e38])
@pytest.mark.parametrize("step", [ds.processors.TopKLogitsWarper(1), ds.processors.TopNSigmaLogitsWarper(1.0)])
def test_thresholds_and_totals_of_scores_without_end_are_numbers(step, top):
    """A length penalty raises the scores of end tokens that far."""
    token = data._token(plan([step], 40).trace(np.array([top, *range(39)], np.float32)), 5, data.TEMPERATURES)
    json.dumps(token, allow_nan=False)
    assert token["steps"][0]["threshold"][1] > 1e38 and token["tail"]["masses"] == [0.0] * len(data.TEMPERATURES)


def test_two_runs_of_two_hundred_tokens_stay_small(document):
    fixed = len(page({**document, "runs": [{**run, "tokens": []} for run in document["runs"]]}))
    busiest = max(len(json.dumps(token, separators=(",", ":"))) for token in document["runs"][0]["tokens"])
    assert fixed + 2 * 200 * (busiest + 40 * 20) < 3e6  # 20 bytes for a token's text and number, were each a new one


def test_every_processor_that_a_request_can_build_is_explained():
    source = Path(plan.__code__.co_filename).with_name("param_steps.py").read_text()
    named = set(re.findall(r"\bp\.(\w+)", source))
    assert named <= set(WORDS)
    for name in named:
        assert getattr(ds.processors, name) and len(re.findall(r"[.!](?:\s|$)", WORDS[name].text)) == 2, name
    headings = re.findall(r"^## (.+)$", (ROOT / "docs/processors.md").read_text(), re.M)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {words.section for words in WORDS.values()} <= anchors
    assert words_of("ConstraintLogitsProcessor").name == "constraint" and words_of("Mine").name == "Mine"


def settings_and_traces(rng, logits, history, *, seed, ids):
    """Other settings of the four sliders, and what the plan makes of them."""
    for _ in range(40):
        chosen = {
            "temperature": float(rng.choice([1.0, 0.35, 0.9, 1.7])),
            "top_k": int(rng.choice([0, 1, 5, 25, 39, 60])),
            "top_p": float(rng.choice([1.0, 0.0, 0.3, 0.8, 0.97])),
            "min_p": float(rng.choice([0.0, 0.01, 0.2, 1.0])),
        }
        chain = processors_of(ds.SamplingParams(**chosen), prompt_length=len(history), vocab_size=len(logits), eos_token_ids=())
        traced = plan(chain, len(logits)).trace(logits, history, seed=seed)
        p = traced.steps[-1].probabilities if traced.steps else None
        yield (
            chosen,
            {
                "kept": (traced.scores[ids] > -np.inf).tolist(),
                "probabilities": None if p is None else p[ids].tolist(),
                "left": int(np.count_nonzero(traced.scores > -np.inf)),
                "token": traced.token,
            },
        )


@pytest.mark.slow
@pytest.mark.skipif(NODE is None, reason="needs node")
def test_the_sliders_make_what_the_plan_makes(model, tmp_path, rng):
    """On a model's scores after penalties, and on scores with ties, with and without tokens that the page does not hold, and
    where some are infinite."""
    prompt = model.tokenizer.encode("Round and round and")
    params = ds.SamplingParams(seed=2, temperature=0.9, repetition_penalty=1.2)
    (whole,) = record(model, prompt, params, 1, lambda trace: trace).tokens
    tied = np.round(rng.standard_normal(300) * 2).astype(np.float32)
    tied[40:90] = -np.inf
    infinite = tied.copy()
    infinite[[100, 150, 200]] = np.inf
    traces = [whole, plan([], 300).trace(tied, prompt, seed=2), plan([], 30).trace(tied[:30], prompt, seed=2)]
    traces.append(plan([], 300).trace(infinite, prompt, seed=2))
    traces.append(plan([], 300).trace(np.where(np.arange(300) % 20, tied, 2e38).astype(np.float32), prompt, seed=2))
    cases, expected = [], []
    for trace in traces:
        token = data._token(trace, 40, data.TEMPERATURES)
        entry = trace.stages[token["entry"]]
        for chosen, result in settings_and_traces(rng, entry, prompt, seed=2, ids=np.array(token["ids"])):
            cases.append([token, chosen])
            expected.append(result)
    (tmp_path / "cases.json").write_text(json.dumps([cases, data.TEMPERATURES]))
    script = """
const [cases, grid] = JSON.parse(require('fs').readFileSync(0)), order = ['temperature', 'top_k', 'top_p', 'min_p'];
console.log(JSON.stringify(cases.map(([token, settings]) => whatIf(token, settings, order, grid, false))));"""
    ran = processes.run([NODE, "-e", (HERE / "what_if.js").read_text() + script], input=(tmp_path / "cases.json").read_text())
    assert ran.stderr == ""
    results = json.loads(ran.stdout)
    for (token, chosen), result, true in zip(cases, results, expected, strict=True):
        # Not known are cuts among the tokens that the page does not hold, and these alone.
        cut_in_tail = token["tail"]["count"] > 0 and true["left"] > sum(true["kept"]) and true["left"] < token["start"]["left"]
        assert not (result["exact"] and cut_in_tail), chosen
        if result["exact"]:
            assert [result["kept"], result["left"], result["token"]] == [true["kept"], true["left"], true["token"]], chosen
            if true["probabilities"] is not None:
                assert result["probabilities"] == pytest.approx(true["probabilities"], rel=1e-9, abs=1e-15)
        elif [why.split()[0] for why in result["reasons"]] == ["top-p"] and chosen["top_k"] == 0 and true["probabilities"]:
            # What the cut leaves is top_p of all, to within one token.
            about, sure = (np.array(of["probabilities"])[true["kept"]] for of in (result, true))
            assert np.all(about > 0.9 * sure) and np.all(about < 1.1 * sure), chosen
    exact = [result["exact"] for result in results]
    assert all(exact[80:120]) and any(exact[120:]) and 0.4 < np.mean(exact[:40]) < 1 and not all(exact[40:80])


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_the_page_names_characters_that_cannot_be_seen_and_keeps_sentences_in_order():
    """Families and Persian words are written with joiners, which stay; the isolates around a token end what it has of them."""
    words = {" a\n": "␣a⏎", "\u202eevil\u2069": "‹U+202E›evil‹U+2069›", "\x1b[31m": "‹U+001B›[31m", " א": "␣א"}
    words |= {"\U000e0001": "‹U+E0001›", "👨\u200d👩": "👨\u200d👩", "می\u200cخواهم": "می\u200cخواهم"}
    script = "console.log(JSON.stringify(JSON.parse(require('fs').readFileSync(0)).map(visible)))"
    ran = processes.run([NODE, "-e", (HERE / "panel.js").read_text() + script], input=json.dumps(list(words)))
    assert ran.stderr == "" and json.loads(ran.stdout) == [f"\u2068{word}\u2069" for word in words.values()]


def test_characters_of_several_tokens(model):
    ids = model.tokenizer.encode("春天")
    found = pieces(model.tokenizer, ids)
    assert "".join(found) == "春天" and (len(ids) == 2 or "" in found)
    assert all("�" not in spell(model.tokenizer, i) for i in ids)
    end = next(iter(model.tokenizer.end_token_ids))
    assert spell(model.tokenizer, end) == model.tokenizer.token(end) == pieces(model.tokenizer, [end])[0]


def test_a_bar_is_its_share_in_eighths_and_never_vanishes():
    assert terminal.bar(0) == "" and terminal.bar(1, 4) == "████" and terminal.bar(1e-9, 4) == "▏"
    assert [len(terminal.bar(n / 64, 8)) for n in (1, 8, 9, 63, 64)] == [1, 1, 2, 8, 8]


SHOWN = {
    "tokens": [
        {"token_id": 1, "token": " a", "probabilities": [0.5, 1.0]},
        {"token_id": 2, "token": "b", "probabilities": [0.25, None]},
    ],
    "others": [0.25, 0.0],
    "left": [9, 1],
    "next_token": {"token_id": 1, "token": " a"},
}


@pytest.mark.parametrize(("color", "width"), [(True, 100), (False, 100), (True, 30)])
def test_colours_and_bars_where_the_terminal_has_them(color, width):
    file = io.TextIOWrapper(io.BytesIO(), "utf-8")
    console = Console(file=file, force_terminal=color, color_system="truecolor" if color else None, width=width)
    terminal.print_stages(console, SHOWN, ["TopK"], "seed 1 draws")
    terminal.print_alternatives(console, [DrawnToken(" a", 0.5, 1.0, []), DrawnToken("b", 0.01, 0.2, [("c", 0.8)])])
    file.seek(0)
    text = file.read()
    assert "50.00%" in text and "100.00%" in text and "tokens left" in text and "seed 1 draws: ' a'" in text
    assert ("\x1b[" in text) == color and ("█" in text) == color and "nothing" in text


@pytest.mark.parametrize("width", [30, 80, 200])
def test_a_long_token_is_cut_and_no_number(width):
    file = io.StringIO()
    console = Console(file=file, width=width)
    long = {"token_id": 1, "token": "=" * 80, "probabilities": [0.5, 0.25, 1.0]}
    shown = {**SHOWN, "tokens": [long], "others": [0.5, 0.75, 0.0], "left": [49152, 49151, 1]}
    terminal.print_stages(console, shown, ["Temperature", "TopK"], "seed 1 draws")
    terminal.print_alternatives(console, [DrawnToken("=" * 80, 0.5, 1.0, [("c", 0.25)])])
    text = file.getvalue()
    assert console.width == width
    for number in ("50.00%", "25.00%", "75.00%", "100.00%", "0.00%", "49152", "49151", "'c' 25.0%"):
        assert number in text
    assert "drawn with" in text and "…" in text


def test_the_step_that_dropped_a_token_last_is_named():
    ban, force = ds.processors.SuppressTokensLogitsProcessor([1]), ds.processors.ForcedBOSTokenLogitsProcessor(1)
    traced = plan([ban, force, ban], 2).trace(np.zeros(2, np.float32), [0])
    after = [step.probabilities[1] if 1 in step.kept else None for step in traced.steps]
    assert after == [None, 1, None]
    assert str(terminal.why_dropped([0.5, *after], ["1 Suppress", "2 Force", "3 Suppress"])) == "dropped by 3"
    assert str(terminal.why_dropped([None, None], ["1 Suppress"])) == "never a candidate"


def test_a_table_says_that_no_candidate_is_left():
    file = io.StringIO()
    terminal.print_stages(Console(file=file), {**SHOWN, "next_token": None}, ["TopK"], "seed 1 draws")
    assert file.getvalue().rstrip().endswith("no candidate is left")


def test_the_command_writes_a_page(tmp_path, capsys):
    target = str(tmp_path / "page.html")
    words = ["explain", "Once upon a", "--raw", "--ban", "time", "--steps", "2", "--html", target, "--json"]
    assert cli.main([*words, "--compare", "--temperature 1.5 --ban Sunday"]) == 0
    made, html = json.loads(capsys.readouterr().out), Path(target).read_text(encoding="utf-8")
    first, second = document_in(html)["runs"]
    assert first["settings"]["bad_words_ids"] == "“ time” “time”"
    assert made["tokens"] == [2, 2] and first["seed"] == second["seed"] is not None
    assert second["settings"]["temperature"] == "1.5" and "temperature" not in first["settings"]
    banned = first["tokens"][0]["steps"][0]
    assert banned["dropped"] == 2 and first["plan"][0]["name"] == "NoBadWordsLogitsProcessor"
    assert second["tokens"][0]["steps"][0]["dropped"] == 4


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_page_names_the_prompt_that_was_piped(mark, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{mark}Name a river."))
    assert cli.main(["explain", "-", "--system", "Be brief.", "--steps", "1", "--html", str(tmp_path / "page.html")]) == 0
    assert document_in((tmp_path / "page.html").read_text(encoding="utf-8"))["prompt"] == "Name a river."


@pytest.mark.parametrize(
    "words",
    [
        ["Hi", "--compare", "--seed 2"],
        ["--html", "x.html"],
        ["Hi", "--html", "x.html", "--compare", ""],
        ["Hi", "--html", "x.html", "--compare", "--model x"],
        ["Hi", "--html", "x.html", "--compare", "--seed x"],
        ["Hi", "--html", "x.html", "--compare", "--num-beams 2"],
        ["Hi", "--steps", "0"],
        ["Hi", "--top", "0"],
        ["Hi", "--top", "5"],
        ["Hi", "--top", "5", "--html", "x.html", "--rows", "15"],
        ["--rows", "2"],
        ["--steps", "2"],
        ["--system", "Be brief."],
        ["--raw"],
        ["Hi", "--docs", "https://example.org"],
        ["Hi", "--ban", ""],
    ],
)
def test_what_is_wrong_is_refused(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["explain", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_page_without_a_name_is_not_written(capsys):
    assert cli.main(["explain", "Hi", "--html", ""]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and "No such file or directory" in printed.err


def test_beam_search_is_offered_where_it_runs(capsys):
    for verb, listed in (("generate", True), ("chat", True), ("explain", False)):
        with pytest.raises(SystemExit):
            cli.main([verb, "--help"])
        assert ("--num-beams" in capsys.readouterr().out) == listed


@core_builds.needs_fused
def test_generate_shows_alternatives(capsys):
    assert cli.main(["generate", "Once upon a", "--raw", "--greedy", "--max-new-tokens", "2", "--show-alternatives", "2"]) == 0
    text, _, head, first, *_ = capsys.readouterr().out.splitlines()
    assert text.startswith(" time") and head.split()[:2] == ["token", "model"]
    assert first.startswith("' time'") and first.count("%") == 4 and "' Sunday' 8.0%" in first
