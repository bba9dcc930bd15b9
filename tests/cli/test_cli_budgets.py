"""Thinking budgets on the command line."""

from __future__ import annotations

import pytest

import decodestep as ds
from support import tiny_gguf_files
from support.command_line import call
from support.servers import byte_vocabulary

TEMPLATE = "{# </think> #}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:<think>"
BUDGET = ("--reasoning-budget", 3, "--reasoning-budget-message", "!")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_gguf_files.write(path, kind="Q8_0", context=500, **byte_vocabulary("<think>"))
    return ds.load(path, chat_template=TEMPLATE)


def test_generate_has_a_budget(model):
    asked = [{"role": "user", "content": "Hi"}]
    params = ds.SamplingParams(seed=1, max_new_tokens=20, thinking_budget_tokens=3, thinking_budget_message="!")
    [wanted] = ds.generate(model, [asked], params)
    done = call("generate", "Hi", "--seed", 1, "-n", 20, *BUDGET, model=model)
    assert done.returncode == 0 and done.stdout.rstrip("\n") == wanted.text.rstrip("\n") and "!</think>" in done.stdout
    plan = call("generate", "Hi", "--seed", 1, "-n", 1, "--explain-plan", *BUDGET, model=model).stderr
    assert "ThinkingBudget(budget=3" in plan


def test_chat_has_a_budget(model):
    done = call("chat", "--seed", 1, "-n", 20, *BUDGET, input="Hi\n", model=model)
    free = call("chat", "--seed", 1, "-n", 20, input="Hi\n", model=model)
    assert done.returncode == free.returncode == 0 and done.stdout != free.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("Hi", "--reasoning-budget", -2), "reasoning-budget must be -1 or more; got -2"),
        (("Hi", "--raw", *BUDGET), "thinking_budget_tokens must be None for a prompt that is no conversation"),
        (("Hi", "--regex", "a+", *BUDGET), "thinking_budget_tokens must be None beside regex"),
        (("Hi", "--num-beams", 2, *BUDGET), "thinking_budget_tokens must be None beside several beams"),
    ],
)
def test_what_a_budget_refuses(model, words, message):
    done = call("generate", *words, model=model)
    assert done.returncode == 2 and message in done.stderr
