"""Answers beside tools, as they come: nothing in reasoning is a call, what is no call is text, streams equal whole answers."""

from __future__ import annotations

import json
import re

import pytest
from call_texts import ARGUMENTS, CASES, FUNCTIONS
from hypothesis import given, settings
from hypothesis import strategies as st

from decodestep.chat import tool_formats as formats
from decodestep.chat.answer_format import AnswerFormat
from decodestep.chat.reasoning import find_reasoning
from decodestep.chat.tools import ToolFormat
from test_tool_formats import fill_in, value

KINDS = list(dict.fromkeys(case[0] for case in CASES))
MARKED = [kind for kind in KINDS if kind.always_marked]

MARKS = ("<think></think>", "<seed:think></seed:think>", "<mm:think></mm:think>", "[THINK][/THINK]", "◁think▷◁/think▷")
REASONING = [find_reasoning(marks) for marks in (*MARKS, "<|channel>thought\n<channel|>")]
CALL = ("stay", ARGUMENTS)
BREAKS = {  # what makes a call unreadable, and in place of what
    formats.GemmaCalls: ("2", "]"),
    formats.TaggedArguments: ("<arg_key>days", "and <arg_key>days"),
    formats.TaggedFunctions: ("<parameter=days", "and <parameter=days"),
    formats.SeedFunctions: ("<parameter=days", "and <parameter=days"),
    formats.HunyuanArguments: ("<arg_key:opensource>days", "and <arg_key:opensource>days"),
    formats.MiniCpmFunctions: ('<param name="days', 'and <param name="days'),
    formats.MiniMaxInvokes: ('<parameter name="days', 'and <parameter name="days'),
    formats.MiniMaxTags: ("]<]minimax[>[<days", "and ]<]minimax[>[<days"),
    formats.DsmlInvokes: ('<｜DSML｜parameter name="days', 'and <｜DSML｜parameter name="days'),
    formats.DsmlCalls: ('<｜DSML｜parameter name="days', 'and <｜DSML｜parameter name="days'),
    formats.KimiElements: ('<|open|>argument key="days', 'and <|open|>argument key="days'),
}


def format_of(kind, **options):
    return AnswerFormat(tools=ToolFormat(kind(FUNCTIONS), False, True, ()), **options)


def read_all(kind, pieces, **options):
    """The reasoning, the content and the calls of an answer that comes in pieces, all of which its parts say."""
    reader = format_of(kind, **options).reader()
    parts = [part for piece in pieces for part in reader.add(piece)] + reader.end()
    for name in ("reasoning", "content"):
        assert "".join(part.text for part in parts if part.kind == name) == getattr(reader, name)
    calls = [part for part in parts if part.kind == "call"]
    for i, call in enumerate(reader.calls):
        first, *more = [part for part in calls if part.index == i]
        assert (first.id, first.name) == (call.id, call.name) and not any(part.id or part.name for part in more)
        assert "".join(part.text for part in (first, *more)) == call.arguments
    assert [part.index for part in calls] == sorted(part.index for part in calls)
    return reader.reasoning, reader.content, [(call.name, value(call.arguments)) for call in reader.calls]


def read(kind, pieces, **options):
    """The content and the calls of an answer without reasoning."""
    reasoning, content, calls = read_all(kind, pieces, **options)
    assert reasoning == ""
    return content, calls


def written(kind, name="stay"):
    """The text of a call."""
    return "".join(fill_in(kind)).replace("stay", name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reasoning", REASONING)
def test_nothing_in_reasoning_is_a_call(kind, reasoning):
    call = written(kind)
    thought = f"Maybe {call} or not, {reasoning.opening} <tool_call>"
    opened = f"\n{reasoning.opening}{thought}"
    for text, begun in ((opened, False), (opened, True), (f"{thought}\n", True), (f"\n{thought}", True)):
        options = {"reasoning": reasoning, "begun": begun}
        ended = text + reasoning.closing
        assert read_all(kind, [f"{ended}\n\nIt is 5 degrees."], **options) == (thought, "It is 5 degrees.", [])
        assert read_all(kind, [f"{ended}\n\n{call}"], **options) == (thought, "", [CALL])
        raw = {**options, "separate": False}
        assert read(kind, [f"{ended}\n\nIt is 5 degrees."], **raw) == (f"{ended}\n\nIt is 5 degrees.", [])
        assert read(kind, [f"{ended}\n\n{call}"], **raw) == (ended, [CALL])
        for cut in (text, ended[:-1]):
            found = cut.removeprefix(f"\n{reasoning.opening}") if text == opened else cut.lstrip("\n")
            assert read_all(kind, [cut], **options) == (found, "", [])
            assert read(kind, [cut], **raw) == (cut, [])
    if kind.always_marked:  # the opening mark is one at the beginning alone
        text = f"So {reasoning.opening} {call}"
        assert read(kind, [text], reasoning=reasoning) == (f"So {reasoning.opening.rstrip()}", [CALL])


@pytest.mark.parametrize("kind", MARKED)
@pytest.mark.parametrize(
    "mention", ["the mark {} begins one", "the mark {}", "{}{}", "as `{}{{` and {}\nsay", "{} stay ", "{}\n\n<b>"]
)
def test_a_mark_that_is_mentioned_hides_no_call(kind, mention):
    mention = mention.format(*kind.marks, *kind.marks)
    assert read(kind, [mention]) == (mention, [])
    assert read(kind, [f"{mention}. {written(kind)}"]) == (f"{mention}.", [CALL])


@pytest.mark.parametrize("kind", MARKED)
def test_text_after_a_mention_is_sent_at_once(kind):
    text = f"The mark {kind.marks[0]} is not a call, {kind.marks[-1]} neither"
    reader = format_of(kind).reader()
    for i, character in enumerate(text):
        reader.add(character)
        held = text[len(reader.content) : i + 1].strip()
        # A mark or its beginning, and the word after it, which may be a function's name.
        assert any(mark.startswith(held) or re.fullmatch(rf"{re.escape(mark)}\s*\w*", held) for mark in kind.marks)


FIRST = (formats.BareJson, formats.PythonCalls, formats.FunctionaryRecipients)  # whose calls stand at the beginning alone


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FIRST])
def test_a_call_that_is_none_costs_no_other(kind):
    end = "<|call|>" if kind is formats.Harmony else ""
    good, unknown = written(kind) + end, written(kind, "king") + end
    broken = good.replace(*BREAKS.get(kind, ('"Bonn"', '"Bonn""')))
    content, calls = read(kind, [f"{good}\n{unknown}\n{good}"])
    assert (content.rstrip(), calls) == (unknown, [CALL] * 2)
    content, calls = read(kind, [f"{unknown}\n{good}"])
    assert (content.rstrip(), calls) == (unknown, [CALL])
    content, [first, (name, so_far), last] = read(kind, [f"{good}\n{broken}\n{good}"])  # one keeps its arguments so far
    assert (content, first, name, last) == ("", CALL, "stay", CALL)
    assert json.loads(so_far.split(",")[0] + "}") == {"city": "Bonn"}


@pytest.mark.parametrize(
    ("kind", "key", "form"),
    [
        (formats.MistralList, "name", "[TOOL_CALLS]{}"),
        (formats.CohereActions, "tool_name", "<|START_ACTION|>{}<|END_ACTION|>"),
        (formats.CohereFenced, "tool_name", "Action: ```json\n{}\n```"),
    ],
)
def test_a_call_of_a_list_that_is_none_costs_no_other(kind, key, form):
    good = {key: "stay", "parameters": ARGUMENTS}
    for bad in ({key: "king", "parameters": {}}, {key: "stay", "parameters": [1]}, {"answer": "é"}, 3):
        assert read(kind, [form.format(json.dumps([good, bad, good]))]) == (json.dumps(bad), [CALL] * 2)
        alone = form.format(json.dumps([bad, bad]))
        assert read(kind, [alone]) == (alone, [])


def test_several_bare_calls_one_of_which_is_none():
    good, bad = written(formats.BareJson), '{"name": "king", "parameters": {}}'
    for separator in (";", "; ", ",\n", "\n", ""):
        content, calls = read(formats.BareJson, [separator.join([good, bad, good])])
        assert (content.rstrip(";,\n "), calls) == (bad, [CALL] * 2)


@pytest.mark.parametrize("kind", [kind for kind in MARKED if kind not in (formats.MistralList, formats.MistralNamed)])
def test_text_between_calls_and_after_them_is_content(kind):
    call = written(kind)
    assert read(kind, [f" Well.\n\n{call}\n Also:\n{call}\n\n{call} \nDone. \n"]) == (" Well.\nAlso:\nDone. \n", [CALL] * 3)
    assert read(kind, [f"{call} \nDone."]) == ("Done.", [CALL])
    assert read(kind, [f"Well. {call} \n"]) == ("Well.", [CALL])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_streams_equal_whole_answers(kind, data):
    reasoning = data.draw(st.sampled_from(REASONING[:4]))
    begun = data.draw(st.booleans())
    names = [*kind.marks, *kind.first_marks, *kind.spelled, reasoning.opening, reasoning.closing, "<|end|>", "</tool_call>"]
    call = written(kind)
    bits = [call, call, written(kind, "king"), call[: len(call) // 2], call[len(call) // 2 :], *names]
    words = st.one_of(
        st.sampled_from([*bits, " ", "\n", "So ", "{", "}", '"', "\\", "<", ";", "é"]), st.text('<tol_ca>{}[]" \n', max_size=5)
    )
    text = "".join(data.draw(st.lists(words, max_size=10)))
    if data.draw(st.booleans()):
        text = reasoning.opening + text
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for separate in (True, False):
        options = {"reasoning": reasoning, "begun": begun, "separate": separate}
        whole = read_all(kind, [text], **options)
        assert read_all(kind, pieces, **options) == whole
        assert read_all(kind, text, **options) == whole
    if kind is not formats.Harmony and not whole[2]:
        assert whole[1] == text  # no character is lost


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_been_sent_is_never_taken_back(kind):
    text = f"So \n{written(kind)}\n and <tool_call> {written(kind, 'king')}{written(kind)} \n"
    reader = format_of(kind).reader()
    content, calls = "", 0
    for character in text:
        reader.add(character)
        assert reader.content.startswith(content) and len(reader.calls) >= calls
        content, calls = reader.content, len(reader.calls)
