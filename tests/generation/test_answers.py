"""What completions and pieces say of an answer: its reasoning, its content, its calls; in generate, streams and engines."""

from __future__ import annotations

import asyncio
import json
import pickle
from dataclasses import replace

import pytest

import decodestep as ds
from decodestep.generation import Piece
from support import servers
from support.servers import byte_vocabulary

# With words by which the forms of calls and reasoning are found, and the end that the caller wants.
TEMPLATE = f"{{# <tool_call> {{% if tools %}} </think> #}}{servers.TEMPLATE}{{{{ end }}}}"
HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}}]
CALL = '<tool_call>{"name": "go", "arguments": {"n": 1}}</tool_call>'
ANSWER = f"<think>\nHm {CALL}\n</think>\n\nHi. {CALL}"
ASKED = {"messages": HELLO, "tools": TOOLS}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from support import tiny_gguf_files

    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_gguf_files.write(path, kind="Q8_0", context=2000, **byte_vocabulary("<think>"))
    return ds.load(path, chat_template=TEMPLATE)


def writes(text, **fields):
    """The params of a row that writes a text."""
    escaped = "".join(f"\\{c}" if c in r"\.[]{}()*+?|^$" else c for c in text)
    return ds.SamplingParams(regex=escaped, max_new_tokens=300, seed=1, **fields)


def joined(pieces):
    """What the parts of pieces say: reasoning, content, and of each call its id, name and arguments."""
    parts = [part for piece in pieces for part in piece.parts]
    told = ["".join(part.text for part in parts if part.kind == kind) for kind in ("reasoning", "content")]
    calls = []
    for part in parts:
        if part.kind == "call" and part.id:
            calls.append([part.id, part.name, ""])
        if part.kind == "call":
            assert part.index == len(calls) - 1
            calls[-1][2] += part.text
    return (*told, calls)


def said(completion):
    calls = [[call["id"], call["function"]["name"], call["function"]["arguments"]] for call in completion.tool_calls]
    return completion.reasoning, completion.content, calls


def check(completion):
    reasoning, content, [(_, name, arguments)] = said(completion)
    assert (reasoning, content, name, json.loads(arguments)) == (f"Hm {CALL}", "Hi.", "go", {"n": 1})
    assert completion.text == ANSWER and completion.tool_calls[0]["type"] == "function"


def test_a_completion_says_what_it_is_made_of(model):
    [alone] = ds.generate(model, ASKED, writes(ANSWER))
    check(alone)
    [plain] = ds.generate(model, HELLO, writes(ANSWER))
    assert said(plain) == (f"Hm {CALL}", f"Hi. {CALL}", [])
    ids = model.chat_ids(HELLO)
    for prompt in (ids, model.chat_prompt(HELLO)):
        [raw] = ds.generate(model, [prompt], writes(ANSWER))
        assert said(raw) == ("", "", []) and raw.text == plain.text
    both = ds.generate(model, [ASKED, HELLO, "a"], writes(ANSWER, num_return_sequences=2))
    assert [bool(one.tool_calls) for one in both] == [True, True, False, False, False, False]
    assert [one.reasoning for one in both] == [f"Hm {CALL}"] * 4 + [""] * 2


def test_the_prompt_begins_or_ends_reasoning(model):
    for end, text, expected in (
        ("<think>\n", "Hm\n</think>\n\nHi", ("Hm", "Hi", [])),
        ("<think>", "Hm", ("Hm", "", [])),
        ("<think>\n\n</think>\n\n", "\nHi", ("", "Hi", [])),
    ):
        prompt = {"messages": HELLO, "chat_template_kwargs": {"end": end}}
        assert said(ds.generate(model, prompt, writes(text))[0]) == expected
    continued = {"messages": [*HELLO, {"role": "assistant", "content": "So"}], "continue_final_message": True}
    [found] = ds.generate(model, continued, writes("<think>a</think>\n\nb"))
    assert said(found) == ("", "<think>a</think>\n\nb", [])


def test_pieces_say_what_they_are(model):
    pieces = []
    [alone] = ds.generate(model, ASKED, writes(ANSWER), stream=lambda _, piece: pieces.append(piece))
    check(alone)
    assert "".join(pieces) == ANSWER and all(type(piece) is Piece for piece in pieces) and joined(pieces) == said(alone)
    assert "".join(piece.reasoning for piece in pieces) == alone.reasoning
    assert "".join(piece.content for piece in pieces) == alone.content
    kinds = [part.kind for piece in pieces for part in piece.parts]
    assert list(dict.fromkeys(kinds)) == ["reasoning", "content", "call"]
    stream = ds.stream(model, ASKED, writes(ANSWER))
    pieces = list(stream)
    check(stream.completion)
    assert "".join(pieces) == ANSWER and joined(pieces) == said(stream.completion)
    assert all(piece.parts == () for piece in ds.stream(model, "a", writes(ANSWER)))


def test_asynchronous_pieces_say_what_they_are(model):
    async def read(*arguments, **options):
        async with ds.astream(*arguments, **options) as stream:
            return [piece async for piece in stream], stream.completion

    with ds.Engine(model) as engine:
        ways = [(model, {}), (engine, {}), (model, {"processors": [lambda _, scores: scores]})]
        for where, options in ways:
            pieces, completion = asyncio.run(read(where, ASKED, writes(ANSWER), **options))
            check(completion)
            assert "".join(pieces) == ANSWER and joined(pieces) == said(completion)


def test_deltas_of_an_engine_say_what_they_are(model):
    with ds.Engine(model) as engine:
        request = engine.submit(ASKED, writes(ANSWER, num_return_sequences=2))
        deltas = list(request)
        for sample, completion in enumerate(request.result()):
            own = [delta for delta in deltas if delta.sample == sample]
            check(completion)
            assert "".join(delta.text for delta in own) == ANSWER and joined(own) == said(completion)
            assert (
                "".join(delta.content for delta in own) == "Hi." and "".join(delta.reasoning for delta in own) == f"Hm {CALL}"
            )
        assert all(delta.parts == () for delta in engine.submit("a", writes("ab")))
        unread = engine.submit(ASKED, writes(ANSWER))
        check(unread.result()[0])
        assert said(unread.result()[0]) == said(unread.result()[0])  # with the same ids


def test_what_is_held_back_is_told_when_a_row_ends(model):
    """Text that may become a mark is content where the model has ended it, and nothing where it is cut, however."""
    text, cut = "Hi <tool_call", "Hi "
    for end in ("eos", "stop", "length", "cancelled", "closed"):
        params = {"stop": writes(f"{text}. x", stop_strings=[". x"]), "eos": writes(text)}.get(
            end, writes(f"{text}>" + "y" * 99)
        )
        pieces = []

        def stop(_, piece):
            pieces.append(piece)  # noqa: B023 - called at once
            return not (end == "cancelled" and "".join(pieces) == text)  # noqa: B023

        if end == "length":
            params = ds.SamplingParams(regex=params.regex, max_new_tokens=len(text))
        if end == "closed":
            with ds.stream(model, ASKED, params) as stream:
                while "".join(pieces) != text:
                    pieces.append(next(stream))
            assert said(stream.completion) == ("", cut, [])
            continue
        [found] = ds.generate(model, ASKED, params, stream=stop)
        expected = ("", text if end == "eos" else cut, [])
        assert (found.text, found.finish_reason) == (text, end) and said(found) == expected == joined(pieces)


def test_a_row_out_of_time_tells_what_was_held_back(model):
    pieces = []

    def slow(_, piece):
        pieces.append(piece)
        if "".join(pieces) == "Hi <":
            import time

            time.sleep(0.3)

    [found] = ds.generate(model, ASKED, writes("Hi <tool_call" + "y" * 99, max_time=0.25), stream=slow)
    assert found.finish_reason == "time" and joined(pieces)[:2] == (found.reasoning, found.content)


def test_marks_that_are_control_tokens_are_in_the_text_of_an_answer(tiny_file):
    """As the reader must see them; elsewhere control tokens have no text."""
    vocabulary = byte_vocabulary("[THINK]")
    types = [1] * 256 + [1] * 41 + [3, 3, 3]
    path = tiny_file(kind="Q8_0", context=400, **vocabulary, **{"tokenizer.ggml.token_type": types})
    model = ds.load(path, chat_template=TEMPLATE.replace("</think>", "[THINK] [/THINK]"))
    mark = len(model.tokenizer) - 1
    assert mark in model.tokenizer.special
    begin = ds.SamplingParams(do_sample=False, max_new_tokens=3, sequence_bias={(mark,): 50.0})
    [answer] = ds.generate(model, HELLO, begin)
    assert answer.token_ids == [mark] * 3 and answer.text == "[THINK]" * 3 and answer.reasoning == "[THINK]" * 2
    [raw] = ds.generate(model, [model.chat_ids(HELLO)], begin)
    assert raw.text == raw.reasoning == ""
    with ds.Engine(model) as engine:
        assert engine.submit(HELLO, begin).result() == [answer]
    pieces = []
    [beam] = ds.generate(model, HELLO, replace(begin, num_beams=2), stream=lambda _, piece: pieces.append(piece))
    assert beam.text == answer.text and said(beam) == said(answer) == joined(pieces)


def test_a_piece_is_a_string():
    piece = Piece("ab")
    assert (
        piece == "ab"
        and f"{piece}c" == "abc"
        and "".join([piece]) == "ab"
        and piece.parts == ()
        and json.dumps(piece) == '"ab"'
    )
    assert pickle.loads(pickle.dumps(piece)) == "ab"
