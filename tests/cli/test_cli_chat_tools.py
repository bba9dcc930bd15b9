"""`decodestep chat` with models that reason and call functions: what is shown, asked, called and kept."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import decodestep as ds
from decodestep import cli
from support.servers import byte_vocabulary

TEMPLATE = (
    "{# <tool_call> {% if tools %} </think> #}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% if m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %};{% endfor %}assistant:"
)
FILE = '''
"""Tools."""

import datetime

said = []


def go(city: str, days: int = 1) -> dict:
    """Goes.

    Args:
        city: Where to.
    """
    said.append(city)
    if city == "Nowhere":
        raise ValueError("no such city")
    return {"went": city, "days": days}


def _hidden():
    ...
'''


def call(city):
    return f'<tool_call>{{"name": "go", "arguments": {{"city": "{city}"}}}}</tool_call>'


@pytest.fixture
def talk(tiny_file, tmp_path, monkeypatch, capsys):
    """Holds a conversation in a terminal, of which the answers are given; returns what is printed, and the saved messages."""
    path = tiny_file(context=2000, **byte_vocabulary("<think>"), **{"tokenizer.chat_template": TEMPLATE})
    (tmp_path / "tools.py").write_text(FILE)
    saved = tmp_path / "saved.json"

    def held(lines, answers, *options, is_terminal=True):
        """lines: what is typed. answers: regular expressions of what the model writes, in turn."""
        typed, asked = iter([*lines, f"/save {saved}", "/exit"]), []

        def scripted(model, prompt, params, **more):
            return ds.generate(model, prompt, replace(params, regex=answers.pop(0)), **more)

        def read(question):
            asked.append(question)
            print(question, end="")
            line = next(typed)
            if not isinstance(line, str):
                raise line
            return line

        monkeypatch.setattr("decodestep.cli.chat.generate", scripted)
        monkeypatch.setattr("sys.stdin.isatty", lambda: is_terminal, raising=False)
        monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)
        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert cli.main(["chat", str(path), "--seed", "1", *options]) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err, json.loads(saved.read_text()), [each for each in asked if each != "> "]

    return held


def literal(text):
    return "".join(f"\\{c}" if c in r"\.[]{}()*+?|^$" else c for c in text)


def test_what_a_model_thinks_is_shown_dimly_and_kept(talk):
    printed, _, messages, _ = talk(["Hello"], [literal("<think>\nHm.\n</think>\n\nHi.")])
    assert "\x1b[2mHm.\x1b[22m\n\nHi.\n" in printed and "think>" not in printed
    assert messages[1] == {"role": "assistant", "content": "Hi.", "reasoning_content": "Hm."}
    printed, _, messages, _ = talk(["Hello"], [literal("<think>Hm.")])
    assert "\x1b[2mHm.\x1b[22m\n" in printed and messages[1]["content"] == ""


def test_a_call_is_made_if_the_user_allows_it(talk, tmp_path):
    tools = ("--tools", str(tmp_path / "tools.py"))
    answers = [literal(f"So. {call('Bonn')}"), literal("<think>Ok.</think>Done.")]
    printed, _, messages, asked = talk(["Hello", "y"], answers, *tools)
    assert asked == ["call go(city='Bonn')? [y/N] "]
    assert 'So.\ncall go(city=\'Bonn\')? [y/N] = {"went": "Bonn", "days": 1}\n\x1b[2mOk.\x1b[22m\n\nDone.\n' in printed
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    [made] = messages[1]["tool_calls"]
    assert made["function"] == {"name": "go", "arguments": '{"city": "Bonn"}'} and messages[2]["tool_call_id"] == made["id"]
    assert messages[2]["content"] == '{"went": "Bonn", "days": 1}' and messages[3]["content"] == "Done."


def test_a_call_is_not_made_otherwise(talk, tmp_path):
    tools = ("--tools", str(tmp_path / "tools.py"))
    answers = [literal(call("Bonn") + call("Rome")), literal("Fine.")]
    _, _, messages, asked = talk(["Hello", "", "no"], answers, *tools)
    assert len(asked) == 2 and [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert {message["content"] for message in messages[2:4]} == {"The user has not allowed this call."}


def test_an_interrupt_at_the_question_ends_the_turn(talk, tmp_path):
    tools = ("--tools", str(tmp_path / "tools.py"))
    for end in (KeyboardInterrupt, EOFError):
        _, _, messages, asked = talk(["Hello", end], [literal(call("Bonn") + call("Rome"))], *tools)
        assert len(asked) == 1 and [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]


def test_what_a_function_raises_is_told_to_the_model(talk, tmp_path):
    tools = ("--tools", str(tmp_path / "tools.py"))
    answers = [literal(call("Nowhere")), literal('<tool_call>{"name": "go", "arguments": {"place": 1}}</tool_call>'), "Oh\\."]
    printed, _, messages, _ = talk(["Hello", "y", "Y"], answers, *tools)
    results = [message["content"] for message in messages if message["role"] == "tool"]
    assert results[0] == "ValueError: no such city" and results[1].startswith("TypeError: ") and results[0] in printed


def test_a_call_that_is_cut_is_none(talk, tmp_path):
    options = ("--tools", str(tmp_path / "tools.py"), "--max-new-tokens", "50")
    _, err, messages, asked = talk(["Hello"], [literal(f"So. {call('Bonn')}")], *options)
    assert asked == [] and "tool_calls" not in messages[1] and "cut after 50 tokens" in err


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [("def _f(): ...", 2, "a file with functions"), ("def f(x: complex): ...", 2, "f"), ("1 / 0", 1, "division by zero")],
)
def test_files_without_tools_are_refused(text, code, message, tiny_file, tmp_path, monkeypatch, capsys):
    (tmp_path / "f.py").write_text(text)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    path = tiny_file(**{"tokenizer.chat_template": TEMPLATE})
    assert cli.main(["chat", str(path), "--tools", str(tmp_path / "f.py")]) == code
    assert message in capsys.readouterr().err


def test_tools_need_a_terminal(tiny_file, tmp_path, monkeypatch, capsys):
    (tmp_path / "f.py").write_text(FILE)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert cli.main(["chat", str(tiny_file(**{"tokenizer.chat_template": TEMPLATE})), "--tools", str(tmp_path / "f.py")]) == 2
    assert "--tools must be given in a terminal" in capsys.readouterr().err
