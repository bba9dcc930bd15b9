"""Thinking budgets: reasoning ends after so many tokens, exactly, however rows are run; the rest of the text is free."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

import decodestep as ds
from decodestep._base.byte_alphabet import BYTE_OF
from decodestep.generation.drafts import Drafter, Outlook
from support import tiny_gguf_files
from support.servers import byte_vocabulary

TEMPLATE = (
    "{# </think> #}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:{% if thinks %}<think>{% endif %}"
)
HELLO = [{"role": "user", "content": "hello"}]
THINKING = {"messages": HELLO, "chat_template_kwargs": {"thinks": True}}
FREE = ds.SamplingParams(max_new_tokens=90, seed=1, ignore_eos=True)


OPENING = 299


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_gguf_files.write(path, kind="Q8_0", context=500, **byte_vocabulary("<think>"))
    return ds.load(path, chat_template=TEMPLATE)


def writing(tokens):
    """Processors that make rows begin with tokens."""

    def new(row):
        begins = []

        def write(input_ids, scores):
            begins.append(input_ids.shape[1])
            place = input_ids.shape[1] - begins[0]
            if place < len(tokens):
                scores = np.full_like(scores, -1e9)
                scores[0, tokens[place]] = 0
            return scores

        return [write]

    return new


def run(model, prompt, params, **more):
    return ds.generate(model, [prompt], params, **more)[0]


def ids(text):
    """Those of a text in ASCII, a token for each of its bytes."""
    return [[*BYTE_OF.values()].index(byte) for byte in text.encode()]


def complete_at(model, tokens, least):
    """The first number of tokens, at least so many, that do not end within a character of UTF-8."""
    for count in range(least, len(tokens)):
        data = b"".join(map(model.tokenizer.spelled_bytes, tokens[:count]))
        lead = min((n for n in range(1, 4) if data[-n:][:1] >= b"\xc0"), default=0)
        within = lead and all(0x80 <= byte < 0xC0 for byte in data[len(data) - lead + 1 :])
        if not within or lead >= (2 if data[-lead] < 0xE0 else 3 if data[-lead] < 0xF0 else 4):
            return count
    raise AssertionError


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [0, 1, 7, 30])
def test_the_closing_mark_is_forced_after_the_budget(model, budget, seed):
    """Of a prompt that ends with the opening mark; a message comes before it. Then the row draws as from any other text."""
    params = replace(FREE, seed=seed)
    free = run(model, THINKING, params)
    ended = run(model, THINKING, replace(params, thinking_budget_tokens=budget, thinking_budget_message=" So: "))
    count = complete_at(model, free.token_ids, budget)
    forced = [*ids(" So: "), *ids("</think>")]
    assert ended.token_ids[: count + len(forced)] == [*free.token_ids[:count], *forced]
    assert len(ended.token_ids) == params.max_new_tokens and ended.finish_reason == "length"
    assert ended.reasoning.endswith("So: ") and "</think>" not in ended.content
    whole = [*ended.prompt_token_ids, *ended.token_ids]
    begun = len(whole) - 20
    rest = run(model, whole[:begun], replace(params, max_new_tokens=20))
    assert rest.token_ids == ended.token_ids[-20:]


def test_what_ends_before_its_budget_is_as_it_was(model):
    for text in ("</think>Hi", "ab</think>", "a\n</think>"):
        write = writing(ids(text))
        assert (
            run(model, THINKING, FREE, processors=write).token_ids
            == run(model, THINKING, replace(FREE, thinking_budget_tokens=20), processors=write).token_ids
        )
    for none in (None, -1):
        assert run(model, THINKING, replace(FREE, thinking_budget_tokens=none)) == run(model, THINKING, FREE)


@pytest.mark.parametrize("before", ["", " \n"])
def test_a_model_that_opens_its_reasoning_has_a_budget_from_there(model, before):
    opened = [*ids(before), OPENING]
    write, params = writing([*opened, *ids("Hm ")]), replace(FREE, thinking_budget_tokens=3)
    whole = run(model, HELLO, params, processors=write)
    assert whole.token_ids[: len(opened) + 11] == [*opened, *ids("Hm </think>")] and whole.reasoning == "Hm "
    none = run(model, HELLO, replace(params, thinking_budget_tokens=0), processors=write)
    assert none.token_ids[: len(opened) + 8] == [*opened, *ids("</think>")] and none.reasoning == ""
    twice = run(model, THINKING, params, processors=write)  # a mark after that of the prompt counts
    assert twice.token_ids[:11] == [*[*opened, *ids("Hm ")][:3], *ids("</think>")]


def test_a_text_that_does_not_begin_with_the_mark_has_no_reasoning(model):
    for tokens in ([*ids("a"), OPENING, *ids("Hm")], ids("<thin>")):
        write = writing(tokens)
        free = run(model, HELLO, FREE, processors=write)
        assert run(model, HELLO, replace(FREE, thinking_budget_tokens=1), processors=write) == free


def test_an_end_token_within_reasoning_ends_the_row(model):
    params = replace(FREE, ignore_eos=False, thinking_budget_tokens=20)
    ended = run(model, THINKING, params, processors=writing([*ids("Hm"), 298]))
    assert (ended.token_ids, ended.finish_reason, ended.reasoning) == ([*ids("Hm"), 298], "eos", "Hm")


class Wrong(Drafter):
    is_certain = True

    def outlook(self, row, most):
        return Outlook(5, 1.0)

    def propose(self, row, limit):
        return [(len(row.history) * 7 + i) % 299 for i in range(limit)]


@pytest.mark.slow
def test_the_text_is_the_same_in_any_batch_with_any_drafts(model):
    """And in streams and engines; forced tokens are drafted, and are no drafts of a drafter."""
    params = [
        replace(FREE, seed=n, temperature=n / 4, thinking_budget_tokens=(None, 0, 3, 9, 20)[n % 5], logprobs=n % 2 or None)
        for n in range(10)
    ]
    params = [replace(one, thinking_budget_message="done." if n % 3 else None) for n, one in enumerate(params)]
    prompts = [THINKING if n % 4 else HELLO for n in range(10)]
    alone = [run(model, prompt, one, draft=None) for prompt, one in zip(prompts, params, strict=True)]
    assert ds.generate(model, prompts, params, draft=None) == alone
    for draft in ("auto", "lookup", ds.load(model.path), lambda row: Wrong()):
        assert ds.generate(model, prompts, params, draft=draft) == alone
    with ds.Engine(model) as engine:
        requests = [engine.submit(prompt, one) for prompt, one in zip(prompts, params, strict=True)]
        assert [request.result()[0] for request in requests] == alone

    async def read(prompt, one):
        return "".join([piece async for piece in ds.astream(model, prompt, one)])

    for prompt, one, whole in zip(prompts[:4], params, alone, strict=False):
        with ds.stream(model, prompt, one) as pieces:
            assert "".join(pieces) == whole.text and pieces.completion == whole
        assert asyncio.run(read(prompt, one)) == whole.text
    several = ds.generate(model, THINKING, replace(params[2], num_return_sequences=3))
    assert all("</think>" in model.tokenizer.decode(one.token_ids[3:20]) for one in several)


def test_forced_tokens_take_no_passes_of_their_own(model, monkeypatch):
    ran, logits = [], model.decoder.logits
    monkeypatch.setattr(model.decoder, "logits", lambda *given: (ran.append(len(given[0].tokens)), logits(*given))[1])
    params = replace(FREE, thinking_budget_tokens=0, thinking_budget_message="I have thought enough.", max_new_tokens=40)
    done = run(model, THINKING, params, draft=None)
    assert done.token_ids[:30] == ids("I have thought enough.</think>") and done.drafted == 0
    assert len(ran) == 1 + 40 - 30


def test_refusals(model):
    budget = replace(FREE, thinking_budget_tokens=5)
    for prompt in ("hello", [1, 2, 3]):
        with pytest.raises(ValueError, match="thinking_budget_tokens must be None for a prompt that is no conversation"):
            run(model, prompt, budget)
        with ds.Engine(model) as engine, pytest.raises(ValueError, match="thinking_budget_tokens must be None for a prompt"):
            engine.submit(prompt, budget)
    for language, text in (("regex", "[a-z]+"), ("grammar", 'root ::= "a"'), ("json_schema", "{}")):
        with pytest.raises(ValueError, match=f"thinking_budget_tokens must be None beside {language}"):
            run(model, HELLO, replace(budget, ignore_eos=False, **{language: text}))
    with pytest.raises(ValueError, match="thinking_budget_tokens must be None beside several beams"):
        ds.SamplingParams(thinking_budget_tokens=5, num_beams=2)
    with pytest.raises(ValueError, match="thinking_budget_tokens must be an integer in"):
        ds.SamplingParams(thinking_token_budget=-2)
    with pytest.raises(ValueError, match="thinking_budget_tokens must be None for a prompt"):
        ds.Sampler(budget, vocab_size=10)
