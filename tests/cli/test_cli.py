"""The command line as a program sees it: output, exit codes, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from argparse import ArgumentParser
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from decodestep import SamplingParams, cli
from decodestep.cli import bench
from decodestep.cli.endings import failure
from decodestep.cli.options import add_params, build_params
from decodestep.models import DEFAULT_MODEL, load
from support import processes
from support.command_line import COMMAND, call, exit_code, run
from support.core_builds import TIERS
from support.project import BENCHMARKS

ERASE = "\r\x1b[K"


@pytest.fixture(scope="module", autouse=True)
def _fetched(model):
    """The model is on the machine before the first command."""


def test_generate_prints_the_answer():
    ended = run("generate", "What is the capital of Japan?", "--greedy")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "The capital of Japan is Tokyo.\n", "")


def test_json_is_one_object_with_everything(model):
    ended = call("generate", "Hi", "--json", "--seed", 3, "--max-new-tokens", 5, model=model)
    result = json.loads(ended.stdout)
    read = {"text", "reasoning", "content"}
    assert set(result) == {*read, "token_ids", "prompt_token_ids", "finish_reason", "logprobs", "seed", "stats"}
    assert result["seed"] == 3
    assert len(result["token_ids"]) == 5
    names = {row["operator"] for row in result["stats"]["operators"]}
    assert {"decoder_forward", "decode_step"} <= names


def test_a_seed_that_was_not_given_is_reported_and_gives_the_text_again(model):
    words = ("generate", "A poem", "--json", "--max-new-tokens", 24)
    first, other = (json.loads(call(*words, model=model).stdout) for _ in range(2))
    assert first["seed"] != other["seed"]
    again = json.loads(call(*words, "--seed", first["seed"], model=model).stdout)
    assert again["token_ids"] == first["token_ids"] != other["token_ids"]


def test_raw_leaves_the_prompt_alone(model):
    ended = call("generate", "Once upon", "--raw", "--greedy", "--json", "--max-new-tokens", 1, model=model)
    assert json.loads(ended.stdout)["prompt_token_ids"] == model.tokenizer.encode("Once upon")


def test_the_prompt_comes_from_standard_input():
    ended = run("generate", "-", "--greedy", input="What is the capital of Japan?")
    assert ended.stdout == "The capital of Japan is Tokyo.\n"


def test_stats_show_the_operators(model):
    ended = call("generate", "Hi", "--greedy", "--stats", "--max-new-tokens", 2, model=model, COLUMNS="200")
    for word in ("decoder_forward", "decode_step", "cpu", "tokens/s", "first token after"):
        assert word in ended.stderr


def test_stats_are_not_cut_on_a_narrow_terminal(model):
    ended = call("generate", "Hi", "--greedy", "--stats", "--max-new-tokens", 2, model=model, COLUMNS="20")
    assert "grouped_attention" in ended.stderr and "…" not in ended.stderr


def test_without_docstrings_the_command_is_the_same():
    ended = processes.run([sys.executable, "-OO", "-m", "decodestep", "env", "--json"])
    assert ended.returncode == 0 and json.loads(ended.stdout)["threads"] >= 1


@pytest.mark.parametrize(
    ("nodes", "said"), [([[0, 1]], "1 of memory"), ([[0, 1], [2, 3, 4]], "2 of memory, with 2, 3 CPUs: see --numa")]
)
def test_env_says_how_many_nodes_of_memory_there_are(nodes, said, monkeypatch, capsys):
    monkeypatch.setattr("decodestep.cli.env.memory_nodes", lambda: nodes)
    assert cli.main(["env"]) == 0
    assert f"{'nodes':<12}{said}\n" in capsys.readouterr().out


def test_logprobs_and_the_plan(model):
    ended = call(
        "generate",
        "Hi",
        "--json",
        "--logprobs",
        2,
        "--max-new-tokens",
        3,
        "--explain-plan",
        "--seed",
        1,
        "--samplers",
        "top_k, temperature, typical_p",
        "--typical-p",
        "0.9",
        "--top-k",
        "50",
        "--temperature",
        "0.7",
        model=model,
    )
    steps = json.loads(ended.stdout)["logprobs"]
    assert len(steps) == 3
    assert all(len(step["top_raw"]) == 2 and step["raw"] <= 0 for step in steps)
    lines = [line for line in ended.stderr.splitlines() if "Warper" in line]
    assert [line.split()[-1].split("Logits")[0].split(")")[0] for line in lines] == ["TopK", "Temperature", "Typical"]


def test_breakers_of_dry():
    parser = ArgumentParser()
    add_params(parser)
    given: dict[tuple[str, ...], tuple[str, ...] | None] = {(): None, ("none",): (), ("a", ":"): ("a", ":")}
    for texts, held in given.items():
        read = parser.parse_args([word for text in texts for word in ("--dry-sequence-breaker", text)])
        assert build_params(read).dry_sequence_breakers == held


def test_the_plan_of_beams(model):
    beams = ["--num-beams", 4, "--num-beam-groups", 2, "--diversity-penalty", 1, "--no-repeat-ngram-size", 2]
    ended = call("generate", "Hi", "--max-new-tokens", 2, "--explain-plan", *beams, model=model)
    first, ngrams, search = ended.stderr.splitlines()
    assert first == "row 0" and "NoRepeatNGram" in ngrams and search == "  2. beam search: 4 beams in 2 groups"


def test_explain_shows_what_each_step_does(model):
    chosen = ["Once upon a", "--raw", "--temperature", 1.2, "--top-k", 40, "--top-p", 0.6, "--seed", 7, "--json"]
    shown = json.loads(call("explain", *chosen, "--rows", 50, model=model).stdout)
    assert [line.split("(")[0].split()[-1] for line in shown["plan"][:3]] == [
        f"{n}LogitsWarper" for n in ("Temperature", "TopK", "TopP")
    ]
    table = [token["probabilities"] for token in shown["tokens"]]
    for stage, others in zip(zip(*table, strict=True), shown["others"], strict=True):
        assert sum(p for p in stage if p is not None) + others == pytest.approx(1)
    assert shown["left"][1] > shown["left"][2] == 40 > shown["left"][3] == sum(row[-1] is not None for row in table)
    before = [row[0] for row in table]
    assert before == sorted(before, reverse=True)
    first, second, powers = table[0], table[1], 1 / 1.2
    assert second[1] / first[1] == pytest.approx((second[0] / first[0]) ** powers, rel=1e-5)
    mass = sum(row[2] for row in table[:40] if row[3] is not None)
    assert all(row[3] is None or row[3] == pytest.approx(row[2] / mass, rel=1e-5) for row in table)
    drawn = json.loads(call("generate", *chosen, "--max-new-tokens", 1, model=model).stdout)
    assert shown["next_token"]["token_id"] == drawn["token_ids"][0]
    assert shown["prompt_token_ids"] == drawn["prompt_token_ids"]


def test_explain_prints_a_table(model):
    ended = call("explain", "Once upon a", "--raw", "--greedy", "--no-repeat-ngram-size", 1, "--rows", 3, model=model)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "NoRepeatNGramLogitsProcessor" in ended.stdout and "tokens left" in ended.stdout
    assert "' time'" in ended.stdout and ended.stdout.splitlines()[-1] == "the argmax: ' time'"
    banned = call("explain", "hi", "--greedy", "--no-repeat-ngram-size", 1, "--rows", 3, model=model).stdout
    assert any("'hi'" in line and line.endswith("-  dropped") for line in banned.splitlines())
    alone = call("explain", "--top-k", 7).stdout
    assert "TopKLogitsWarper(top_k=7)" in alone and "tokens left" not in alone


def test_a_terminal_without_the_characters_shows_the_rest():
    ended = run(
        "explain", "What is the capital of France?", "--dtype", "float32", env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert (ended.returncode, ended.stderr) == (0, "") and "'?'" in ended.stdout and "tokens left" in ended.stdout


@pytest.mark.parametrize("arguments", [["--rows", "0"], ["--top-p", "2"], ["--rows", "x"], [""]])
def test_explain_refuses_what_is_wrong(arguments, capsys):
    assert exit_code("explain", *([] if arguments == [""] else ["Hi"]), *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err


def test_a_stop_string_ends_the_text(model):
    ended = call("generate", "What is the capital of Japan?", "--greedy", "--stop", " is", model=model)
    assert ended.stdout == "The capital of Japan\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--top-p", "1.7"],
        ["--seed", "-1"],
        ["--seed", str(2**64)],
        ["--temperature", "nan"],
        ["--top-k", "x"],
        ["--max-new-tokens", "0"],
        ["--threads", "0"],
        ["--dtype", "int2"],
        ["--stop", ""],
        ["--no-such-option"],
        ["--samplers", "beam"],
        ["--samplers", "top_k", "--top-p", "0.5"],
        ["--logprobs", "-1"],
        ["--diversity-penalty", "1"],
        ["--num-beams", "4", "--num-beam-groups", "3"],
    ],
)
def test_a_wrong_request_exits_with_2(arguments, capsys):
    prompt = ["Hi"] if arguments else [""]
    assert exit_code("generate", *prompt, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "decodestep" in printed.err
    assert "Traceback" not in printed.err


def test_a_banned_text_never_comes_whatever_the_tokenizer_puts_first(tiny_file, capsys):
    """In files of Llama 3, texts begin with a token of their own."""
    model = str(tiny_file(pre="llama-bpe"))
    words = ["generate", "A", "--raw", "--greedy", "--max-new-tokens", "20", "--json", "--model", model]
    assert exit_code(*words) == 0
    free = json.loads(capsys.readouterr().out)
    letter = next(token for token in free["token_ids"] if token < 127 and chr(token).isalpha())
    assert exit_code(*words, "--ban", chr(letter)) == 0
    banned = json.loads(capsys.readouterr().out)
    assert len(free["prompt_token_ids"]) == 2 and banned["text"] and letter not in banned["token_ids"]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_row_that_fails_exits_with_1_after_what_it_has(more, tiny_file, tmp_path, capsys):
    """The file's vocabulary has no space, which the schema asks for."""
    schema, model = tmp_path / "schema.json", str(tiny_file())
    schema.write_text(json.dumps({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}))
    assert exit_code("generate", "A", "--raw", "--seed", "1", "--model", model, "--json-schema", str(schema), *more) == 1
    printed = capsys.readouterr()
    text = json.loads(printed.out)["text"] if more else printed.out
    assert text.startswith('{"a"') and printed.err.startswith("decodestep: json_schema: ") and printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ((), " after 256 tokens (--max-new-tokens)\n"),
        (
            ("--max-new-tokens", "9999"),
            ": 300 tokens, with those of the prompt, fill the context or the cache\n",
        ),
        (("--max-new-tokens", "9"), ""),
        (("--json",), ""),
    ],
)
def test_a_text_that_is_cut_says_so_where_nobody_asked_for_it(more, told, tiny_file, capsys):
    model = str(tiny_file(context=300))
    assert exit_code("generate", "A", "--raw", "--min-new-tokens", "9999", "--seed", "1", "--model", model, *more) == 0
    assert capsys.readouterr().err == (told and f"decodestep: the text is cut{told}")


def test_explain_shows_as_many_tokens_as_it_is_asked_for(tiny_file, tmp_path, capsys):
    words = ["explain", "A", "--raw", "--seed", "1", "--model", str(tiny_file(context=300)), "--min-new-tokens", "9999"]
    assert (
        exit_code(*words, "--steps", "280", "--top", "1", "--html", str(tmp_path / "page.html"), "--compare", "--seed 2") == 0
    )
    assert capsys.readouterr().out.endswith(": 280 and 280 tokens\n")


def test_a_row_without_a_token_left_says_so(tiny_file, capsys):
    assert exit_code("generate", "A", "--raw", "--model", str(tiny_file()), "--regex", "a+", "--ban", "a") == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("\n", "decodestep: the text ends where every token is forbidden\n")


def test_a_terminal_shows_how_far_long_work_is(tiny_file, tmp_path, monkeypatch, capsys):
    """Loading, prompts and what is explained from a second on, and quantising, in a line that is erased before an error too."""
    generate = ["generate", "A", "--raw", "--max-new-tokens", "1", "--model", str(tiny_file())]
    quantize = ["quantize", str(tiny_file()), str(tmp_path / "out.gguf"), "--type"]
    assert exit_code(*generate) == exit_code(*quantize, "f16") == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("decodestep._base.progress.time", SimpleNamespace(monotonic=count(step=0.5).__next__))
    assert exit_code(*generate) == 0
    assert capsys.readouterr().err == f"{ERASE}loading: 1 of 2 layers{ERASE}loading: 2 of 2 layers{ERASE}"
    long = ["generate", "A" * 1500, *generate[2:-1], str(tiny_file(context=2000))]
    assert exit_code(*long) == 0
    *_, line, last = capsys.readouterr().err.split(ERASE)
    assert re.fullmatch(r"reading the prompt: \d+ of 1500 tokens", line) and last == ""
    assert exit_code("explain", "A", *generate[2:3], "--steps", "3", *generate[-2:]) == 0
    assert capsys.readouterr().err.endswith(f"{ERASE}token 2 of at most 3{ERASE}token 3 of at most 3{ERASE}")
    monkeypatch.setattr("decodestep.models.requantise.quantise", lambda *_: 1 / 0)
    assert exit_code(*quantize, "q4_0") == 1
    told = capsys.readouterr().err.split(ERASE)
    assert told[1:3] == ["reading tiny-F32.gguf", "0% token_embd.weight"] and told[-1].startswith("decodestep: internal error")


def test_without_a_command_all_are_listed(capsys):
    assert exit_code() == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "continue a prompt with a model" in printed.err


@pytest.mark.parametrize(
    ("given", "like"),
    [("--tempersture=0.5", "; did you mean --temperature?"), ("--modle", "; did you mean --model?"), ("-qqq", "")],
)
def test_an_option_like_one_that_is_known_is_told(given, like):
    ended = call("generate", "Hi", given)
    assert ended.returncode == 2
    assert ended.stderr == (
        f"decodestep: generate: unrecognized arguments: {given}{like} (decodestep generate --help lists what it takes)\n"
    )


def test_the_defaults_are_those_of_sampling_params():
    options = ArgumentParser()
    add_params(options)
    params = build_params(options.parse_args([]))
    assert params == SamplingParams()
    shown = " ".join(call("generate", "--help").stdout.split())
    for name, before in (
        ("min_new_tokens", ""),
        ("presence_penalty", ""),
        ("temperature", "the model's, else "),
        ("top_k", "the model's, else "),
    ):
        found = re.findall(rf"--{name.replace('_', '-')}[ ,].*?\]", shown.partition("sampling:")[2])
        assert found[0].endswith(f"[{before}{getattr(params, name)}]")


def test_python_s_own_lack_of_memory_is_said_without_more():
    assert failure(MemoryError()) == (1, "out of memory")
    assert failure(MemoryError("a cache of 9 bytes")) == (1, "out of memory: a cache of 9 bytes")


def test_an_internal_error_is_not_blamed_on_the_request(monkeypatch, capsys):
    monkeypatch.setattr("decodestep.cli.env.environment", lambda: np.zeros(2).reshape(3))
    assert cli.main(["env"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("decodestep: internal error: ValueError: cannot reshape") and "--traceback" in printed
    assert cli.main(["env", "--traceback"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_no_verb_exits_with_2():
    assert run().returncode == 2
    assert exit_code("dance") == 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["dance"], "decodestep: argument COMMAND: invalid choice: 'dance'"),
        (["generate"], "decodestep: generate: the following arguments are required: prompt (decodestep generate --help lists"),
        (["generate", "Hi", "--top-k", "x"], "decodestep: generate: argument --top-k: invalid int value: 'x'"),
        (["chat", "--steps", "2"], "decodestep: chat: unrecognized arguments: --steps"),
        (["schedule", "--tokens", "2", "more"], "decodestep: schedule: unrecognized arguments: more (decodestep schedule --h"),
    ],
)
def test_arguments_that_cannot_be_read_are_one_line(arguments, line, capsys):
    assert exit_code(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(line) and printed.err.count("\n") == 1 and printed.out == ""


def test_a_prompt_longer_than_the_context_exits_with_2(model):
    ended = call("generate", "-", input="word " * 9000, model=model)
    assert ended.returncode == 2
    assert "shorter than the context of 8192" in ended.stderr


def test_a_missing_or_broken_file_exits_with_1(tmp_path, model_path):
    ended = call("generate", "Hi", "--model", tmp_path / "none.gguf")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "No such file" in ended.stderr
    broken = tmp_path / "broken.gguf"
    with model_path.open("rb") as whole:
        broken.write_bytes(whole.read(5_000_000))
    ended = call("generate", "Hi", "--model", broken)
    assert ended.returncode == 1
    assert "truncated" in ended.stderr


def test_ctrl_c_ends_with_what_was_generated():
    story = ["generate", "Tell me a long story.", "--max-new-tokens", "8000", "--seed", "5", "--temperature", "1.5", "--stats"]
    with processes.started([*COMMAND, *story]) as process:
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, bool(first), out.endswith("\n")) == (0, True, True)
    assert "ended by cancelled" in " ".join(err.split())


def test_ctrl_c_in_a_long_prompt_ends_before_the_first_token():
    words = [*COMMAND, "generate", "-", "--json", "--explain-plan", "--greedy"]
    with processes.started(words, stdin=subprocess.PIPE) as process:
        process.stdin.write("word " * 7000)
        process.stdin.close()
        assert process.stderr.readline().startswith("row")  # the model is loaded, and Ctrl-C is watched for
        process.send_signal(signal.SIGINT)
        out, err = process.stdout.read(), process.stderr.read()
        assert process.wait(timeout=60) == 0
    result = json.loads(out)
    assert (result["finish_reason"], result["token_ids"], result["text"]) == ("cancelled", [], "")
    assert "Traceback" not in err


def test_a_closed_pipe_is_no_crash():
    with processes.started([*COMMAND, "generate", "Tell me a story.", "--max-new-tokens", "60", "--greedy"]) as process:
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert err == ""


def test_env_tells_what_runs_here():
    facts = json.loads(run("env", "--json").stdout)
    assert facts["isa"] in TIERS
    assert facts["backends"]["linear"] == "cpu+reference"
    assert "SmolLM2" in facts["model"]
    text = call("env").stdout
    assert all(name in text for name in facts)


def test_env_describes_the_default_model_by_its_name(model, capsys):
    described = []
    for name in (DEFAULT_MODEL, str(model.path)):
        assert cli.main(["env", "--json", "--model", name]) == 0
        described.append(json.loads(capsys.readouterr().out)["model"]["file"])
    assert described[0] == described[1]


@pytest.mark.parametrize("load", [0.4, 700.0])
def test_env_tells_a_models_numbers_with_their_units(model, capsys, monkeypatch, load):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert cli.main(["env", "--model", str(model.path)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"Q4_1 [\d.]+ MiB, Q8_0", text) and f"bfloat16, {model.cache.page_bytes / 2**14:.1f} KiB per token" in text
    assert re.search(r"at most [\d.]+ tokens/s of one sequence: a token reads [\d.]+ MiB of weights, memory [\d.]+ GB/s", text)
    assert ("beside other programs (a load of 700.0)" in text) == (load == 700)
    assert "_bytes" not in text and "a_second" not in text


@pytest.mark.parametrize("verb", sorted(cli._VERBS))
def test_help_fits_a_terminal(verb, monkeypatch, capsys):
    monkeypatch.setattr(bench, "_FOLDER", BENCHMARKS)  # a test may run on an installed package
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"usage: decodestep {verb}") and max(map(len, lines)) < 80


def test_an_instruction_set_that_is_none_exits_with_1():
    ended = run("env", env={**os.environ, "DECODESTEP_ISA": "avx9"})
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("decodestep: isa: DECODESTEP_ISA must be one of baseline")


def test_help_names_the_exit_codes(capsys):
    for arguments in ([], ["generate"], ["explain"], ["env"]):
        assert exit_code(*arguments, "--help") == 0
        assert "exit codes" in capsys.readouterr().out


def test_short_names_and_those_of_other_programs(model):
    words = ("generate", "Hi", "--json", "--seed", 3)
    ended = call(*words, "-n", 5, "--temp", 0.5, "--repeat-penalty", 1.2, model=model)
    again = call(*words, "--max-tokens", 5, "--temperature", 0.5, "--repetition-penalty", 1.2, model=model)
    assert json.loads(ended.stdout)["token_ids"] == json.loads(again.stdout)["token_ids"]
    assert len(json.loads(ended.stdout)["token_ids"]) == 5


def test_the_template_gets_its_variables(tiny_file, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}{{ mood }}{{ enable_thinking }}")
    words = ("generate", "-m", tiny_file(), "--chat-template", template, "--json", "-n", 1, "--greedy", "Hi")
    ended = call(*words, "--chat-template-kwargs", '{"mood": "calm"}', "--no-enable-thinking")
    expected = load(tiny_file()).tokenizer.encode("HicalmFalse")
    assert json.loads(ended.stdout)["prompt_token_ids"] == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--chat-template-kwargs", "[1]"), "chat-template-kwargs must be a JSON object; got '[1]'"),
        (("--chat-template-kwargs", "{"), "chat-template-kwargs must be a JSON object"),
        (
            ("--chat-template-kwargs", '{"tools": []}'),
            "chat_template_kwargs must be without names that have a place of their own",
        ),
        (("--raw", "--enable-thinking"), "raw must be left out with variables of the chat template"),
        (("--sampling-defaults", "some"), "--sampling-defaults: invalid choice: 'some'"),
    ],
)
def test_what_the_new_options_refuse(words, message, model):
    ended = call("generate", "Hi", *words, model=model)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr


def test_what_the_options_leave_out_is_the_models(tiny_file):
    path = tiny_file(**{"general.sampling.temp": 0.0})
    words = ("generate", "-m", path, "--raw", "ab", "--json", "-n", 8)
    seeds = [json.loads(call(*words, *more).stdout)["seed"] for more in ((), ("--temp", 1), ("--sampling-defaults", "none"))]
    assert seeds[0] is None and None not in seeds[1:]  # greedy, and not


def test_quantize_takes_its_source_by_option_too(tiny_file, tmp_path):
    source, target = tiny_file(), tmp_path / "small.gguf"
    assert call("quantize", "-m", source, target, "--type", "q8_0").returncode == 0
    assert target.exists()
    assert call("quantize", target, "--type", "q8_0").returncode == 2
    assert call("quantize", "-m", source, source, target, "--type", "q8_0").returncode == 2
