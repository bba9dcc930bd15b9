"""The command with streams that are closed, full, or not UTF-8: a line on stderr at most, and an exit code that tells."""

from __future__ import annotations

import argparse
import os
import signal
import sys

import pytest

from decodestep.cli.options import text_of
from support import processes
from support.command_line import COMMAND, code_of

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize(
    "arguments",
    [["env", "--json"], ["explain", "--top-k", "3"], ["generate", "Hi", "--json", "--max-new-tokens", "1"], ["--help"]],
)
@pytest.mark.parametrize("output", ["closed pipe", "full disk"])
def test_output_that_cannot_be_written_is_one_line_at_most(arguments, output, model):
    if output == "full disk" and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    reading, writing = os.pipe()
    os.close(reading)
    where = writing if output == "closed pipe" else os.open("/dev/full", os.O_WRONLY)
    run = processes.run([*COMMAND, *arguments], stdout=where, env=BUFFERED)
    os.close(where)
    assert run.returncode == 1
    assert "ignored" not in run.stderr and len(run.stderr.splitlines()) == (output == "full disk")


@pytest.mark.parametrize(
    ("shell", "code"), [("generate - <&-", 2), ("chat <&-", 0), ("generate Hi --greedy --max-new-tokens 1 >&-", 0)]
)
def test_closed_streams_are_empty(shell, code, model):
    run = processes.run(["sh", "-c", f"{sys.executable} -m decodestep {shell}"])
    assert run.returncode == code and "internal error" not in run.stderr


@pytest.mark.parametrize(("arguments", "code"), [("env", 0), ("--help", 0), ("generate", 2)])
@pytest.mark.parametrize("ignored", [False, True])
def test_an_interrupt_while_the_process_ends_has_no_traceback(arguments, code, ignored):
    """A second Ctrl-C; where interrupts are ignored, as in the background of a shell, they still are."""
    program = (
        "import atexit, os, signal, sys\n"
        f"if {ignored}: signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "from decodestep.cli import main\n"
        "sys.exit(main())"
    )
    run = processes.run([sys.executable, "-c", program, arguments])
    assert "Traceback" not in run.stderr and "KeyboardInterrupt" not in run.stderr
    assert run.returncode == (code if ignored else -signal.SIGINT)


@pytest.mark.parametrize(
    "arguments", [("generate", "Hi", "--json-schema"), ("generate", "Hi", "--grammar"), ("serve", "--api-key-file")]
)
def test_a_file_that_is_not_utf_8_is_refused(arguments, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_bytes(b"\xff{")
    assert code_of(*arguments, str(file)) == 2
    option = arguments[-1].removeprefix("--")
    error = f"decodestep: {arguments[0]}: {option} must be a file of UTF-8; got {file}, invalid start byte at byte 0\n"
    assert capsys.readouterr().err == error


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    for text, read in (("{}", "{}"), ("alpha\r\n\r\n beta \r\n", "alpha\n\n beta \n")):
        (tmp_path / "file").write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert text_of(argparse.Namespace(chat_template=str(tmp_path / "file")), "chat-template") == read


def test_a_piped_prompt_that_is_not_utf_8_is_refused(model, tmp_path):
    (tmp_path / "prompt").write_bytes(b"a\xff")
    with (tmp_path / "prompt").open() as prompt:
        run = processes.run([*COMMAND, "generate", "-"], stdin=prompt, env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"})
    assert run.returncode == 2 and "text that can be encoded as UTF-8" in run.stderr


@pytest.mark.parametrize(
    "arguments",
    [["explain", "Hi", "--model", "none.gguf", "--html"], ["schedule", "--heads", "0", "--out"]],
    ids=["explain", "schedule"],
)
def test_output_that_cannot_be_written_is_found_before_the_work(arguments, tmp_path, capsys):
    missing, new, old, pipe = (tmp_path / name for name in ("none/x.html", "new.html", "old.html", "pipe.html"))
    assert code_of(*arguments, str(missing)) == code_of(*arguments, str(tmp_path / "old.html/x.html")) == 1
    assert str(missing) in capsys.readouterr().err
    old.write_text("old")
    os.mkfifo(pipe)
    for name in (new, old, pipe):  # what is wrong besides is found, and nothing has changed
        code_of(*arguments, str(name))
        assert "html" not in capsys.readouterr().err
    assert old.read_text() == "old" and not new.exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_file_for_which_the_disk_is_full_is_named(tiny_file, tmp_path, capsys):
    full, model = tmp_path / "full.html", tiny_file(**{"tokenizer.chat_template": "{{ messages[-1].content }}"})
    full.symlink_to("/dev/full")
    for arguments in [("explain", "A", "--model", str(model), "--html"), ("schedule", "--tokens", "1", "--out")]:
        assert code_of(*arguments, str(full)) == 1
        assert capsys.readouterr().err == f"decodestep: {full}: No space left on device\n"
    run = processes.run([*COMMAND, "chat", str(model)], input=f"/save {full}\n")
    assert (run.returncode, run.stderr) == (1, f"decodestep: {full}: No space left on device\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "Hi", "--ban", "\udcff"],
        ["explain", "Hi", "--html", "x.html", "--compare", '"'],
        ["generate", "Hi", "--show-alternatives", "0"],
        ["generate", "Hi", "--show-alternatives", "-1"],
        ["generate", "Hi", "--logprobs", "2"],
        ["chat", "--logprobs", "2"],
        ["explain", "Hi", "--logprobs", "2"],
        ["chat", "--system", "\udcff"],
        ["generate", "Hi", "--raw", "--system", "Be brief."],
        ["explain", "Hi", "--raw", "--system", "Be brief."],
        ["chat", "one.gguf", "--model", "two.gguf"],
        ["serve", "one.gguf", "--model", "two.gguf"],
        ["generate", "Hi", "--model", ""],
        ["chat", ""],
        ["serve", "--host", "127.0.0..1"],
        ["serve", "--max-rows", "0"],
        ["serve", "--max-waiting", "-1"],
        ["serve", "--cors-origin", "http://localhost:3000/"],
        ["serve", "--cors-origin", "localhost:3000"],
        ["serve", "--allowed-host", "example.org:443"],
        ["schedule", "--tokens", "1", "--heads", "1", "--cost", "hbm_bytes=1e-300", "--json"],
    ],
)
def test_what_is_wrong_is_refused_and_no_internal_error(arguments, model, capsys):
    assert code_of(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "internal error" not in printed.err
    assert "loading" not in printed.err  # a model that takes minutes
