"""--draft: what it takes, that texts do not depend on it, and where its tokens are shown."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

import decodestep as ds
from decodestep.explain.terminal import print_drafts
from decodestep.generation.drafts import drafting
from support.command_line import call, exit_code

REPEATS = ("Repeat this word for word: The lazy dog sleeps. The lazy dog sleeps. The lazy dog sleeps.", "--greedy")


@pytest.fixture
def eager(monkeypatch):
    """Rows draft all that is proposed, however long passes take."""
    monkeypatch.setattr(drafting, "choose_lengths", lambda outlooks, rows, seconds: [each.tokens for each in outlooks])


@pytest.mark.parametrize("verb", [["generate", "Hi"], ["chat"], ["serve"], ["explain", "Hi"]], ids=lambda verb: verb[0])
@pytest.mark.parametrize("value", ["8", "-1", ""])
def test_a_length_is_refused_with_what_is_meant(verb, value, capsys):
    assert exit_code(*verb, f"--draft={value}") == 2
    printed = capsys.readouterr()
    kinds = "must be auto, off, lookup, mtp, or a smaller model of the same vocabulary"
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith(
        f"decodestep: {verb[0]}: argument --draft: {kinds}; got {value!r}: no length, as the one that"
    )


@pytest.mark.usefixtures("eager")
def test_the_text_is_the_same_and_stats_tell_what_was_drafted(model):
    ended = {kind: call("generate", *REPEATS, "--json", "--draft", kind, model=model) for kind in ("off", "lookup", "auto")}
    off, lookup, auto = (json.loads(ran.stdout) for ran in ended.values())
    assert off["token_ids"] == lookup["token_ids"] == auto["token_ids"]
    assert (off["stats"]["drafted"], off["stats"]["accepted"]) == (0, 0)
    for found in (lookup["stats"], auto["stats"]):
        assert 0 < found["accepted"] <= found["drafted"] and found["accepted"] < found["new_tokens"]
    shown = call("generate", *REPEATS, "--stats", "--draft", "lookup", model=model, COLUMNS="300").stderr
    assert f"prompt, {lookup['stats']['accepted']} of {lookup['stats']['drafted']} drafted accepted, " in shown
    assert (
        "prompt, none drafted, " in call("generate", "Hi", "--max-new-tokens", 2, "--stats", model=model, COLUMNS="300").stderr
    )


@pytest.mark.parametrize("verb", ["generate", "chat", "serve"])
@pytest.mark.parametrize(
    ("named", "taken"), [("off", None), ("lookup", "lookup"), ("mtp", "mtp"), ("auto", "auto"), ("a.gguf", 0)]
)
def test_a_verb_drafts_as_it_is_told(verb, named, taken, model, monkeypatch):
    given = []

    def noted(*_, draft, **__):
        given.append(draft)
        raise ds.errors.RequestError("x", "y", "z", "told")

    for place in ("cli.generate.generate", "cli.chat.generate", "serving.served_models.ServedModels"):
        monkeypatch.setattr(f"decodestep.{place}", noted)
    words = {"generate": ["Hi"], "chat": [], "serve": ["--port", "0"]}[verb]
    assert call(verb, *words, "--draft", named, input="Hi\n", model=model).returncode == 2
    assert given == [model if taken == 0 else taken]


@pytest.mark.usefixtures("eager")
def test_explain_shows_which_tokens_came_free(model, tmp_path):
    words = ("explain", *REPEATS, "--steps", 30)
    shown = json.loads(call(*words, "--json", "--rows", 1, model=model).stdout)
    accepted = [token["accepted"] for token in (shown, *shown["then"])]
    assert any(accepted) and not accepted[0]
    page = tmp_path / "page.html"
    call(*words, "--html", page, model=model)
    [run] = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)[1])["runs"]
    assert [i in run["accepted"] for i in range(len(run["tokens"]))] == accepted
    call(*words, "--html", page, "--draft", "off", model=model)
    assert '"accepted":[]' in page.read_text(encoding="utf-8")
    *_, text, told = call(*words, "--rows", 1, model=model, COLUMNS="200").stdout.splitlines()
    assert f"{sum(accepted)} of {len(accepted)} tokens came free" in told and text.count("[") == text.count("]") > 0
    assert "came free" not in call("explain", "Hi", "--greedy", "--rows", 1, model=model).stdout


@pytest.mark.parametrize("color", [True, False])
def test_drafted_words_have_another_shade_or_brackets(color):
    file = io.TextIOWrapper(io.BytesIO(), "utf-8")
    console = Console(file=file, force_terminal=color, color_system="truecolor" if color else None, width=200)
    words = [("The", False), (" lazy", True), (" dog", True), (".", False)]
    tokens = [{"next_token": {"token_id": 1, "token": word}, "accepted": accepted} for word, accepted in words]
    print_drafts(console, [*tokens, {"next_token": None, "accepted": False}])
    file.seek(0)
    _, text, told = file.read().splitlines()
    assert text == ("The\x1b[30;46m lazy dog\x1b[0m." if color else "The[ lazy dog].") and "2 of 5 tokens came free" in told
