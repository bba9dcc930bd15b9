"""Calls while they come: streams equal whole answers, cut calls come back cut, and long ones take time in proportion."""

from __future__ import annotations

import json
import random
import time

import pytest
from call_texts import ARGUMENTS, CASES, FUNCTIONS, JSON

from decodestep.chat import tool_formats as formats
from decodestep.chat.answer_format import AnswerFormat
from decodestep.chat.tools import ToolFormat
from test_tool_formats import fill_in

KINDS = dict.fromkeys(case[0] for case in CASES)


def read(kind, pieces, *, cut=False, functions=FUNCTIONS):
    """What an answer says, from its parts: the content, and of each call the name and the arguments."""
    reader = AnswerFormat(tools=ToolFormat(kind(functions), False, True, ())).reader()
    parts = [part for piece in pieces for part in reader.add(piece)] + reader.end(cut=cut)
    calls = [[part.name, ""] for part in parts if part.kind == "call" and part.id]
    for part in parts:
        if part.kind == "call":
            calls[part.index][1] += part.text
    assert [(call.name, call.arguments) for call in reader.calls] == [tuple(call) for call in calls]
    return "".join(part.text for part in parts if part.kind == "content"), calls, reader.cut_call


def pieces_of(text, rng):
    """The text in pieces at random places."""
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.choice((1, 3, 10, 40))))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def texts_of(kind, rng):
    """Texts of a format: its calls, marks within strings, unknown functions, and ends that are missing."""
    one = "".join(fill_in(kind))
    marked = "".join(fill_in(kind, "".join(kind.marks) + " <|end|> </tool_call>]}"))
    known = [text for each, _, text, _, _ in CASES if each is kind]
    bits = [
        *known,
        one,
        marked,
        one.replace("stay", "king"),
        one[: rng.randrange(len(one))],
        "So. ",
        "\n",
        *kind.marks,
        *kind.ends,
    ]
    return "".join(rng.choice(bits) for _ in range(rng.randrange(1, 4)))


def check_cuts(kind, count):
    rng = random.Random(kind.__name__)
    for _ in range(count):
        text = texts_of(kind, rng)
        text = text[: rng.randrange(len(text) + 1)] if rng.random() < 0.3 else text
        cut = rng.random() < 0.5
        assert read(kind, pieces_of(text, rng), cut=cut) == read(kind, [text], cut=cut), text


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_says_what_the_whole_answer_says(kind):
    check_cuts(kind, 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_streams_in_two_thousand_cuts(kind):
    check_cuts(kind, 2000)


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_come_while_they_are_written(kind):
    """The first piece comes before half of the arguments have been read, and none is taken back."""
    text = "".join(fill_in(kind, "Bonn" * 50))
    reader = AnswerFormat(tools=ToolFormat(kind(FUNCTIONS), False, True, ())).reader()
    came = [sum(len(part.text) for part in reader.add(character) if part.kind == "call") for character in text]
    half = next(i for i in range(len(text)) if sum(came[: i + 1]) * 2 >= sum(came))
    assert 0.2 < half / len(text) < 0.8


def test_json_arguments_are_the_text_that_was_written():
    """Spaces, escapes and the order of keys, but for line ends within strings, which JSON cannot have."""
    written = '{ "city" :"B\\u00f6nn\\n" ,"days": 2.50e1,\n"more":[ ] }'
    text = f'<tool_call>{{"name": "stay", "arguments": {written}}}</tool_call>'
    assert read(formats.TaggedJson, [text]) == ("", [["stay", written]], False)
    broken = '{"city": "a\nb\tc"}'
    [[_, mended]] = read(formats.MistralNamed, [f"[TOOL_CALLS]stay[ARGS]{broken}"])[1]
    assert mended == '{"city": "a\\nb\\tc"}'


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("<tool_call>", []),
        ('<tool_call>{"name": "st', []),
        ('<tool_call>{"name": "stay', []),
        ('<tool_call>{"name": "stay"', [["stay", ""]]),
        ('<tool_call>{"name": "stay", "arguments": {"ci', [["stay", ""]]),
        ('<tool_call>{"name": "stay", "arguments": {"city": "B', [["stay", '{"city": "B']]),
        (f'<tool_call>{{"name": "stay", "arguments": {JSON}', [["stay", JSON]]),
        (f'<tool_call>{{"name": "stay", "arguments": {JSON}}}</tool_ca', [["stay", JSON]]),
        ('<tool_call>{"name": "king", "arguments": {"ci', None),
    ],
)
def test_a_call_that_is_cut(text, calls):
    content, found, cut = read(formats.TaggedJson, [f"So: {text}"], cut=True)
    if calls is None:  # of a function that nobody has
        assert (content, found) == (f"So: {text}", [])
    else:
        assert (content.rstrip(), found, cut) == ("So:", calls, bool(calls) and calls[0][1] != JSON)


def test_a_call_that_becomes_unreadable_keeps_its_arguments_so_far():
    good = f'<tool_call>{{"name": "stay", "arguments": {JSON}}}</tool_call>'
    text = f'{good}<tool_call>{{"name": "stay", "arguments": {{"city": 3 4}}}}</tool_call>Then. {good}'
    assert read(formats.TaggedJson, [text]) == ("Then.", [["stay", JSON], ["stay", '{"city": 3 '], ["stay", JSON]], False)


@pytest.mark.parametrize("kind", [formats.PythonCalls, formats.MarkedPythonCalls, formats.OlmoCalls])
@pytest.mark.parametrize(
    ("written", "city"),
    [
        (r"\u00e9 \x41 \U0001F600", "é A 😀"),
        (r"\ud83d\ude00", "😀"),
        (r"\u00g \x4 \xg \U0001 \u \U.", r"\u00g \x4 \xg \U0001 \u \U."),
        (r"\n\'\"\\\d\/", "\n'\"\\\\d/"),
    ],
)
def test_an_escape_of_python_may_come_in_pieces(kind, written, city):
    text = "".join(fill_in(kind)).replace("Bonn", written)
    _, [[_, arguments]], _ = found = read(kind, [text])
    assert json.loads(arguments)["city"] == city
    for cut in range(len(text)):
        assert read(kind, [text[:cut], text[cut:]]) == found
    assert read(kind, text) == found


def test_nothing_in_the_arguments_of_an_unknown_function_is_called():
    inner = "<tool_call><function=time></function></tool_call>"
    text = f"<tool_call><function=king><parameter=a>{inner}</parameter></function></tool_call>"
    assert read(formats.TaggedFunctions, [text]) == (text, [], False)


LONG = {
    "json": (formats.TaggedJson, '<tool_call>{"name": "stay", "arguments": {"city": "', "Bonn\\n", '"}}'),
    "json values": (formats.TaggedJson, '<tool_call>{"name": "stay", "arguments": {"a": [', "1, ", "2]}}"),
    "json before its name": (formats.TaggedJson, '<tool_call>{"arguments": {"a": [', "1, ", '2]}, "name": "stay"}'),
    "unknown": (formats.TaggedJson, '<tool_call>{"name": "king", "arguments": {"city": "', "Bonn", '"}}'),
    "tags": (formats.TaggedFunctions, "<function=stay><parameter=city>", "<b>\n", "</parameter></function>"),
    "tags that close nothing": (
        formats.TaggedFunctions,
        "<function=stay><parameter=city>",
        "</function> ",
        "</parameter></function>",
    ),
    "white space": (formats.TaggedFunctions, "<function=stay><parameter=city>", "\n", "</parameter></function>"),
    "values between tags": (formats.TaggedFunctions, "<function=stay><parameter=more>[", "1, ", "2]</parameter></function>"),
    "gemma": (formats.GemmaCalls, "<|tool_call>call:stay{a:[", "1,", "2]}<tool_call|>"),
    "python": (formats.PythonCalls, "[stay(city='", "Bonn\\n", "')]"),
    "many calls": (formats.MistralList, "[TOOL_CALLS][", '{"name": "time", "arguments": {}},', "0]"),
    "many marks": (formats.Harmony, "", "<|start|>", ""),
    "blank": (formats.TaggedJson, "", "\n", ""),
}


@pytest.mark.parametrize("name", LONG)
def test_the_time_of_a_long_call_grows_with_its_length_alone(name):
    kind, begin, more, end = LONG[name]

    def seconds(length):
        text = begin + more * (length // len(more)) + end
        begun = time.process_time()
        read(kind, [text[at : at + 4] for at in range(0, len(text), 4)])
        return time.process_time() - begun

    short = min(seconds(5_000) for _ in range(3))
    # Eight times the text. Once in a while a collection of the process's garbage comes in between.
    assert any(seconds(40_000) < 24 * short + 0.05 for _ in range(3))


def test_deep_arguments_end_a_call_and_raise_nothing():
    for kind, begin in (
        (formats.TaggedJson, '<tool_call>{"name": "stay", "arguments": {"a": '),
        (formats.PythonCalls, "[stay(a="),
    ):
        for opening in ("[", '{"a": '):
            _, [[name, found]], _ = read(kind, [begin + opening * 50_000])
            assert name == "stay" and len(found) < 2500


def test_arguments_are_read_from_json_of_every_form():
    for arguments in (ARGUMENTS, {}, {"a": {"b": [None, True, -1.5e-3, '\u2028😀"\\/']}}):
        for written in (json.dumps(arguments), json.dumps(arguments, indent=2), json.dumps(arguments, ensure_ascii=False)):
            for text in (written, json.dumps(written)):
                _, [[_, found]], _ = read(formats.TaggedJson, [f'<tool_call>{{"name": "time", "arguments": {text}}}'])
                assert json.loads(found) == arguments


@pytest.mark.parametrize("mark", ["<tool_call>", "<function="])
def test_no_beginning_of_a_mark_is_content_where_the_text_is_cut(mark):
    """A single character is: it may as well be a comparison. So is all of a text that the model has ended."""
    for length in range(1, len(mark)):
        text = f"Is a {mark[:length]}"
        content, calls, cut = read(formats.TaggedFunctions, [text], cut=True)
        assert (content.rstrip(), calls, cut) == ("Is a <" if length == 1 else "Is a", [], False)
        assert read(formats.TaggedFunctions, [text]) == (text, [], False)
