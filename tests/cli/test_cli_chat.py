"""`decodestep chat` from a pipe and in a terminal."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import sys
import time
from contextlib import contextmanager

import pytest

from decodestep import cli, models
from decodestep.decoding.page_pool import CacheFullError
from support import processes
from support.command_line import COMMAND, call, run


@pytest.fixture(scope="module", autouse=True)
def _fetched(model):
    """The model is on the machine before the first command."""


def test_a_pipe_gets_the_answers_alone():
    ended = run("chat", "--greedy", input="What is the capital of Japan?\n\n/exit\nnever read\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "The capital of Japan is Tokyo.\n", "")


def test_the_conversation_is_kept_saved_and_reset(tmp_path, model):
    import decodestep as ds

    first, second = tmp_path / "first.json", tmp_path / "second.json"
    lines = ["Name a river – é.", "//Another?", f"/save {first}", "/reset", f"/save {second}"]
    words = ["chat", model.path, "--greedy", "--max-new-tokens", 8, "--system", "Be brief."]
    ended = run(*words, input="\n".join(lines), encoding="utf-8")
    assert (ended.returncode, ended.stderr) == (0, "decodestep: the text is cut after 8 tokens (--max-new-tokens)\n" * 2)
    saved = json.loads(first.read_text("utf-8"))
    assert [message["role"] for message in saved] == ["system", "user", "assistant", "user", "assistant"]
    assert [saved[0]["content"], saved[1]["content"], saved[3]["content"]] == ["Be brief.", "Name a river – é.", "/Another?"]
    params = ds.SamplingParams(do_sample=False, max_new_tokens=8)
    for end in (2, 4):  # an answer is that of the messages before it
        assert ds.generate(model, [saved[:end]], params)[0].text == saved[end]["content"]
    assert ended.stdout.split() == f"{saved[2]['content']}\n{saved[4]['content']}".split()
    assert json.loads(second.read_text()) == saved[:1]


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("/nope", 2, "chat: command must be /reset, /save FILE, /help or /exit; got '/nope'"),
        ("/save", 2, "chat: command must be"),
        ("/save /no/such/folder/file", 1, "decodestep: /no/such/folder/file: No such file or directory\n"),
        ("/save ~nobody-of-this-name/file", 1, "No such file"),
        ("/save a\0b", 2, "chat: command must be"),
        ("word " * 9000, 2, "shorter than the context"),
    ],
    ids=["unknown", "save without a file", "save nowhere", "save with nobody", "save with a NUL", "too long"],
)
def test_a_pipe_ends_at_an_error(line, code, message, model):
    ended = call("chat", "--max-new-tokens", 1, input=f"{line}\nHello\n", model=model)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert message in ended.stderr


def test_a_pipe_may_begin_with_a_byte_order_mark():
    ended = run("chat", input="\ufeff/exit\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_file_without_a_template_is_an_error_at_the_start(tiny_file):
    ended = call("chat", tiny_file(), input="Hello\n")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "no chat template" in ended.stderr


def test_params_that_the_model_refuses_are_an_error_at_the_start(model):
    ended = call("chat", "--regex", "(", input="/exit\n", model=model)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "regex must be one that can be compiled" in ended.stderr


def test_an_answer_that_fails_is_an_error(tiny_file, tmp_path):
    """The file's vocabulary has no space, which the schema asks for."""
    model, schema = tiny_file(**{"tokenizer.chat_template": "{{ messages[-1].content }}"}), tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}))
    ended = call("chat", model, "--json-schema", schema, "--seed", 1, input="A\nB\n")
    assert ended.returncode == 1 and ended.stdout.startswith('{"a"') and ended.stdout.count("\n") == 1
    assert ended.stderr.startswith("decodestep: json_schema: ") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "pages", "told"),
    [
        ((), None, "the text is cut: 400 tokens, with those of the prompt, fill the context or the cache"),
        ((), 20, "the text is cut: 320 tokens, with those of the prompt, fill the context or the cache"),
        (("--num-beams", "2"), 12, "the text is cut: 96 tokens, with those of the prompt, fill the context or the cache"),
        (("--max-new-tokens", "9"), None, "the text is cut after 9 tokens (--max-new-tokens)"),
        (("--max-time", "0.01"), None, "the text is cut after 0.01 s (--max-time)"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_answer_that_is_cut_says_so(options, pages, told, tiny_file, monkeypatch, capsys):
    """Nothing but the context and the cache cuts one by default."""
    path = tiny_file(context=400, **{"tokenizer.chat_template": "{{ messages[-1].content }}"})
    if pages is not None:
        bytes_of_page = models.load(path).cache.page_bytes
        monkeypatch.setattr("decodestep.decoding.page_pool.memory_limit", lambda: 4 * pages * bytes_of_page)
    monkeypatch.setattr("sys.stdin", io.StringIO("A\n"))
    assert cli.main(["chat", str(path), "--min-new-tokens", "9999", "--seed", "1", *options]) == 0
    assert capsys.readouterr().err == f"decodestep: {told}\n"


def test_a_conversation_in_a_terminal_outlives_a_full_cache(tiny_file, monkeypatch, capsys):
    def full(*_, **__):
        raise CacheFullError("the cache is full")

    lines = iter(["A", "/save ~nobody-of-this-name/file", "/nope", "/exit"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    monkeypatch.setattr("decodestep.cli.chat.generate", full)
    assert cli.main(["chat", str(tiny_file(**{"tokenizer.chat_template": "{{ messages[-1].content }}"}))]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "decodestep: the cache is full" and "No such file" in told[1] and "command must be" in told[2]


@contextmanager
def terminal_of(*arguments):
    """The program on a pseudo-terminal."""
    import pty

    master, slave = pty.openpty()
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
    try:
        with processes.started([*COMMAND, "chat", *map(str, arguments)], env={**os.environ, "TERM": "dumb"}, **ends) as process:
            os.close(slave)
            yield Terminal(master, process)
    finally:
        os.close(master)


class Terminal:
    def __init__(self, master, process):
        self._master, self.process = master, process
        self.screen = ""

    def wait_for(self, text, meanwhile=lambda: None):
        """What is printed up to `text`, which must come within a minute; meanwhile() is called first and in each silence."""
        deadline = time.monotonic() + 60
        if text not in self.screen:
            meanwhile()
        while text not in self.screen:
            ready, _, _ = select.select([self._master], [], [], 1)
            if not ready:
                assert time.monotonic() < deadline, f"{text!r} did not come after {self.screen!r}"
                meanwhile()
                continue
            self.screen += os.read(self._master, 4096).decode("utf-8", "replace")
        before, self.screen = self.screen.split(text, 1)
        return before

    def type(self, text):
        os.write(self._master, text.encode("utf-8", "surrogateescape"))


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_byte_that_is_not_utf_8_does_not_end_a_conversation(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")  # as in most locales
    with terminal_of("--greedy", "--max-new-tokens", 2) as terminal:
        terminal.wait_for("> ")
        terminal.type("\udcff caf\n")
        terminal.wait_for("> ")
        terminal.type("/exit\n")
        assert terminal.process.wait(60) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_ctrl_c_ends_the_answer_and_not_the_program(tmp_path):
    saved = tmp_path / "saved.json"
    with terminal_of("--greedy", "--min-new-tokens", 1500) as terminal:
        terminal.wait_for("/help lists the commands")
        terminal.wait_for("> ")
        terminal.type("Tell me a story.\n")
        terminal.wait_for("Tell me a story.\r\n")  # the terminal's echo
        terminal.wait_for(" ")  # the answer has begun
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("> ")
        terminal.type(f"/save {saved}\n")
        terminal.wait_for("> ")
        messages = json.loads(saved.read_text("utf-8"))
        assert [message["role"] for message in messages] == ["user", "assistant"]
        assert 0 < len(messages[1]["content"].split()) < 1000
        # Python sees a signal between the prompt and the read only when the read ends: a person presses Ctrl-C again.
        terminal.wait_for("(/exit or Ctrl-D ends)", meanwhile=lambda: terminal.process.send_signal(signal.SIGINT))
        terminal.wait_for("> ")
        # The last of several Ctrl-C may still come, and take what has been typed with it.
        terminal.wait_for("command must be /reset", meanwhile=lambda: terminal.type("/nope\n"))
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.process.wait(60) == 0
