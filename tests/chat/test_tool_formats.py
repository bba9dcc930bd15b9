"""The kinds of text in which models write calls: what is read is what was called, and nothing of a call is shown as text."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from contextlib import suppress

import jsonschema
import numpy as np
import pytest
from call_texts import ARGUMENTS, CASES, FUNCTIONS, SEP, STAY

import decodestep as ds
from decodestep.chat import tool_formats as formats
from decodestep.chat.answer_format import AnswerFormat
from decodestep.chat.reasoning import THINK, find_reasoning
from decodestep.chat.template import ChatTemplate
from decodestep.chat.tool_call_format import NoCalls
from decodestep.chat.tool_grammar import Thought, one_call, text_at
from decodestep.chat.tool_messages import in_turns
from decodestep.chat.tools import ToolFormat
from decodestep.constraints.grammar import compile_grammar
from decodestep.constraints.processor import ConstraintLogitsProcessor
from decodestep.generation.engine_request import Delta
from decodestep.serving.endpoints.chat_completions import ChatChoice
from decodestep.tokenizers.tokenizer import Tokenizer
from decodestep.tokenizers.vocabulary import Vocabulary
from support.constrained_rows import END, VOCAB, run
from support.project import CHAT_TEMPLATES

HIDDEN = "\x00"


def is_json(text):
    with suppress(ValueError):
        return isinstance(json.loads(text), dict)
    return False


TOKENIZER = Tokenizer(  # with the control tokens END and HIDDEN
    None,
    Vocabulary([""] * VOCAB, frozenset({END, VOCAB - 1}), (), False),
    named_ids={},
    end_token_ids=frozenset({END}),
    add_bos=False,
)


def read(format_, text):
    """The visible text of a whole answer, and its calls."""
    reader = AnswerFormat(tools=format_).reader()
    reader.add(text)
    reader.end()
    return reader.content, reader.calls


def read_calls(call_format, text):
    """The visible text of a whole answer, and the name and the arguments of each call."""
    visible, calls = read(ToolFormat(call_format, False, True, ()), text)
    return visible, [(call.name, value(call.arguments)) for call in calls]


def value(arguments):
    """The arguments of a call; their text if they are not whole."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


# Calls that need no mark.
CALLS_OF_TIME = {
    formats.BareJson: '{"name": "time", "parameters": {}}',
    formats.Harmony: "<|channel|>commentary to=functions.time<|message|>{}",
}


@pytest.mark.parametrize(("kind", "template", "text", "visible", "names"), CASES)
def test_calls_are_read(kind, template, text, visible, names):
    assert not template or formats.find_call_format(template) is kind
    format_ = ToolFormat(kind(FUNCTIONS), False, True, ())
    found, calls = read(format_, text)
    given = {"stay": ARGUMENTS, "time": {}}
    assert found == visible
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [(name, given[name]) for name in names]


MARKED = {"city": "[TOOL_CALLS] <|python_tag|> <tool_call> </tool_call> <|START_ACTION|> Action: ```json <|end|> <|channel|>"}
CALL = json.dumps({"name": "stay", "arguments": MARKED})


@pytest.mark.parametrize(
    ("kind", "begin", "call", "end"),
    [
        (formats.TaggedJson, "<tool_call>", CALL, "</tool_call>"),
        (formats.BareJson, "", CALL, ""),
        (formats.BareJson, "<|python_tag|>", CALL, ""),
        (formats.MistralList, "[TOOL_CALLS][", CALL, "]"),
        (formats.MistralNamed, "[TOOL_CALLS]stay[ARGS]", json.dumps(MARKED), ""),
        (formats.CohereActions, "<|START_ACTION|>[", CALL.replace('"name"', '"tool_name"'), "]<|END_ACTION|>"),
        (formats.CohereFenced, "Action: ```json\n[", CALL.replace('"name"', '"tool_name"'), "]\n```\nDone"),
        (formats.Harmony, "<|channel|>commentary to=functions.stay<|message|>", json.dumps(MARKED), "<|call|>"),
    ],
)
def test_marks_within_arguments_are_text(kind, begin, call, end):
    format_ = ToolFormat(kind(FUNCTIONS), False, True, ())
    visible, [found] = read(format_, begin + call + end)
    assert (visible, json.loads(found.arguments)) == (end.partition("```\n")[2], MARKED)
    for bracket in ("", "}", "\n}\n"):  # one too few, and too many
        text = f"{begin}{call}{bracket}{end}" if bracket or call is not CALL else begin + call[:-1] + end
        assert [json.loads(each.arguments) for each in read(format_, text)[1]] == [MARKED]


@pytest.mark.parametrize("kind", dict.fromkeys(case[0] for case in CASES if case[0] is not formats.BareJson))
def test_several_calls_whose_arguments_have_marks(kind):
    """Also where the mark stands between tags, or in a string without JSON's quotes."""
    city = "".join(kind.marks) + " <|end|><|channel|>final<|message|>"
    text, end = "".join(fill_in(kind, city)), "<|call|>" if kind is formats.Harmony else "\n"
    assert read_calls(kind(FUNCTIONS), f"{text}{end}{text}") == ("", [("stay", {"city": city, "days": 2})] * 2)


@pytest.mark.parametrize("kind", dict.fromkeys(case[0] for case in CASES))
def test_a_call_that_is_cut_keeps_its_arguments_so_far(kind):
    """Nothing of it is content, not even its beginning. The model may have ended it itself."""
    text = "".join(fill_in(kind))
    [(_, whole)] = [(call.name, call.arguments) for call in read(ToolFormat(kind(FUNCTIONS), False, True, ()), text)[1]]
    lengths = []
    for end in range(max(map(len, (*kind.marks, *kind(FUNCTIONS).first_marks))), len(text)):
        reader = AnswerFormat(tools=ToolFormat(kind(FUNCTIONS), False, True, ())).reader()
        reader.add(text[:end])
        reader.end(cut=True)
        assert reader.content == "" and len(reader.calls) <= 1
        for call in reader.calls:
            assert call.name == "stay" and whole.startswith(call.arguments)
            assert reader.cut_call == (call.arguments != whole)
            lengths.append(len(call.arguments))
        by_model = AnswerFormat(tools=ToolFormat(kind(FUNCTIONS), False, True, ())).reader()
        by_model.add(text[:end])
        by_model.end()
        for call in by_model.calls:
            assert call.name == "stay" and by_model.cut_call == (not is_json(call.arguments))
    assert lengths == sorted(lengths) and lengths[0] == 0 and len(set(lengths)) >= 4


@pytest.mark.parametrize(
    ("kind", "stop", "is_call"),
    [
        (formats.TaggedJson, "</tool_call>", True),
        (formats.TaggedArguments, "</tool_call>", True),
        (formats.TaggedArguments, "<arg_key>days", False),
        (formats.TaggedFunctions, "</function>", True),
        (formats.TaggedFunctions, "</parameter>", False),
        (formats.GemmaCalls, "}", True),
    ],
)
def test_a_stop_string_may_be_the_end_of_a_call(kind, stop, is_call):
    """It is cut from the text, but a call that has its end is no call that is cut off."""
    params = ds.SamplingParams(stop_strings=[stop, "<|other|>"])
    row = ds.Sampler([], vocab_size=256, token_bytes=_byte).new_row(params)
    choice = ChatChoice(0, _Silent(), row, AnswerFormat(tools=ToolFormat(kind(FUNCTIONS), False, True, ())))
    text = f"So: {''.join(fill_in(kind))}"
    for byte in text.encode():
        if not row.text.stopped:
            piece = row.text.push(byte)
            choice.take(Delta(0, piece, byte, None, "stop" if row.text.stopped else ""))
    whole = choice.whole()
    [call] = whole["message"]["tool_calls"]
    so_far = '{"city":"Bonn"' if kind is formats.TaggedArguments else '{"city":"Bonn'
    assert value(call["function"]["arguments"]) == (ARGUMENTS if is_call else so_far)
    assert whole["message"]["content"] == "So:"
    assert (whole["finish_reason"], whole["ended_by"]) == ("tool_calls" if is_call else "length", "stop")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (formats.Harmony, "word " * 4000),
        (formats.GemmaCalls, "<|tool_call>call:stay{days:1," + "\n" * 3000),
        (formats.DeepSeek, "".join(formats.DeepSeek.marks) + f"stay{SEP}" + "\n" * 20000),
        (formats.TaggedArguments, "<tool_call>stay\n" + "<arg_key>city</arg_key><arg_value>" * 3000),
        (formats.TaggedFunctions, "<tool_call><function=stay><parameter=city>" + "<td>Bonn</td>\n" * 3000),
        (formats.TaggedFunctions, "<tool_call><function=stay><parameter=city></function><parameter=x>" * 1000),
        (formats.TaggedJson, '<tool_call>{"":"<tool_call>",' * 2000),
        (formats.TaggedJson, '<tool_call>{"\\"' * 3000),
        (formats.MistralList, "[TOOL_CALLS][" * 3000),
        (formats.BareJson, '{"name": ' * 3000),
        (formats.DeepSeek, formats.DeepSeek.marks[1] * 3000),
    ],
)
def test_a_long_text_is_read_in_time(kind, text):
    """One that is no call, or is cut off: meanwhile the server would answer nobody."""
    begun = time.process_time()
    content, calls = read(ToolFormat(kind(FUNCTIONS), False, True, ()), text)
    assert time.process_time() - begun < 1
    assert calls or content == text


@pytest.mark.parametrize("kind", [formats.TaggedJson, formats.TaggedFunctions])
def test_a_long_call_is_read_in_time_as_it_comes(kind):
    text = "".join(fill_in(kind, "<tr>\n" * 6000 if kind is formats.TaggedFunctions else "Bonn" * 6000))
    reader = AnswerFormat(tools=ToolFormat(kind(FUNCTIONS), False, True, ())).reader()
    begun = time.process_time()
    for at in range(0, len(text), 4):
        reader.add(text[at : at + 4])
    reader.end()
    assert [call.name for call in reader.calls] == ["stay"]
    assert time.process_time() - begun < 1


def test_one_call_alone_where_no_more_are_asked_for():
    text = "".join(f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in ("time", "stay"))
    for several, names in ((True, ["time", "stay"]), (False, ["time"])):
        _, calls = read(ToolFormat(formats.TaggedJson(FUNCTIONS), False, True, (), several), text)
        assert [call.name for call in calls] == names


def test_results_are_one_turn_of_a_template_without_tools():
    """Gemma 3's refuses two messages of a user in a row."""
    source = (CHAT_TEMPLATES / "formats" / "gemma3.jinja").read_text()
    assert formats.find_call_format(source) is None
    calls = [{"function": {"name": name, "arguments": {}}} for name in FUNCTIONS]
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "", "tool_calls": calls},
                {"role": "tool", "content": "sunny"}, {"role": "tool", "content": "noon"}]  # fmt: skip
    written = [f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>' for name in FUNCTIONS]
    assert in_turns(messages)[1] == {"role": "assistant", "content": "\n".join(written)}
    for more in ([], [{"role": "user", "content": "Which?"}]):
        conversation = in_turns([*messages, *more])
        text = ChatTemplate({}, source).render(conversation, None, None, {"add_generation_prompt": True}, {"bos_token": "<s>"})
        expected = "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
        assert "\n".join([expected, *(message["content"] for message in more)]) in text


PUBLISHED = {formats.MistralList: "mistral_v3.jinja", formats.KimiSection: "kimi_k2.jinja"}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_calls_come_back_with_ids_that_the_template_accepts(kind):
    source = (CHAT_TEMPLATES / "formats" / PUBLISHED[kind]).read_text()
    assert formats.find_call_format(source) is kind
    [_, _, text, *_] = next(case for case in CASES if case[0] is kind)
    _, calls = read(ToolFormat(kind(FUNCTIONS), False, True, (), earlier=3), text)
    assert len({call.id for call in calls}) == 2
    given = [{"id": call.id, "type": "function", "function": {"name": call.name, "arguments": {}}} for call in calls]
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "", "tool_calls": given},
                *({"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in calls)]  # fmt: skip
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    prompt = ChatTemplate({}, source).render(messages, None, None, {"add_generation_prompt": True}, special)
    assert all(call.id in prompt for call in calls)
    assert kind is not formats.KimiSection or [call.id for call in calls] == ["functions.stay:3", "functions.time:4"]


@pytest.mark.parametrize("kind", [formats.TaggedJson, formats.BareJson, formats.MistralList, formats.CohereActions])
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("null", {}),
        ('""', {}),
        ('"{\\"days\\": 2}"', {"days": 2}),
        ("3", None),
        ("[1]", None),
        ('"Bonn"', None),
        ('"3"', None),
        ('{"days": NaN}', None),
        ('{"days": [-1e999]}', '{"days": ['),
    ],
)
def test_arguments_are_an_object(kind, written, expected):
    """Clients parse the arguments and take them as keywords."""
    begin = "" if kind is formats.BareJson else kind.marks[0]
    key = "tool_name" if kind is formats.CohereActions else "name"
    text = f'{begin}{{"{key}": "time", "parameters": {written}}}'
    _, calls = read(ToolFormat(kind(FUNCTIONS), False, True, ()), text)
    assert [value(call.arguments) for call in calls] == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (formats.Harmony, "<|channel|>commentary to=functions.time <|constrain|>json<|message|><|call|>"),
        (formats.Harmony, "<|channel|>commentary to=functions.time <|constrain|>json<|message|> <|end|>"),
        (formats.Harmony, "<|channel|>commentary to=functions.time <|constrain|>json<|message|>"),  # the end token has no text
        (formats.DeepSeek, f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time{SEP}<｜tool▁call▁end｜>"),
        (formats.DeepSeek, f"<｜tool▁call▁begin｜>function{SEP}time\n```json\n\n```<｜tool▁call▁end｜>"),
        (formats.KimiSection, "<|tool_call_begin|>functions.time:0<|tool_call_argument_begin|><|tool_call_end|>"),
        (formats.SolarCalls, "<|tool_call:begin|>a<|tool_call:name|>time<|tool_call:args|><|tool_call:end|>"),
        (formats.FunctionaryTags, "<function=time></function>"),
    ],
)
def test_a_call_may_have_no_arguments(kind, text):
    format_ = ToolFormat(kind(FUNCTIONS), False, True, ())
    for pieces in ([text], text):
        reader = AnswerFormat(tools=format_).reader()
        for piece in pieces:
            reader.add(piece)
        reader.end()
        assert (reader.content, [(call.name, call.arguments) for call in reader.calls]) == ("", [("time", "{}")])


@pytest.mark.parametrize("begun", ["<|start|>", *(f"<|start|>assistant{channel}" for channel in ("", "<|channel|>final"))])
def test_a_message_that_has_only_begun_says_nothing(begun):
    format_ = ToolFormat(formats.Harmony(FUNCTIONS), False, True, ())
    call = "<|channel|>commentary to=functions.stay<|message|>{}<|call|>"
    assert read(format_, f"<|channel|>final<|message|>a<|end|>{begun}")[0] == "a"
    assert read(format_, f"{call}{begun}")[0] == "" and len(read(format_, f"{call}{begun}")[1]) == 1
    assert read(format_, f"<|channel|>final<|message|>a {begun}")[0] == f"a {begun}"  # which is quoted there


def test_gemmas_values():
    text = """<|tool_call>call:time{a:[<|"|>x, }<|"|>,"y",1.5,true,null],b:{c:{},d:[]},e: plain , f g :NaN}<tool_call|>"""
    _, [(name, arguments)] = read_calls(formats.GemmaCalls(FUNCTIONS), text)
    assert (name, arguments) == (
        "time",
        {"a": ["x, }", "y", 1.5, True, None], "b": {"c": {}, "d": []}, "e": "plain", "f g": "NaN"},
    )
    for broken, so_far in (("{a:[1,2", '{"a":[1,'), ("{a:1 b:2]", '{"a":"1 b:2"'), ('{a:<|"|>x}', '{"a":"x}')):
        assert read_calls(formats.GemmaCalls(FUNCTIONS), f"<|tool_call>call:time{broken}") == ("", [("time", so_far)])
    [(_, deep)] = read_calls(formats.GemmaCalls(FUNCTIONS), "<|tool_call>call:time{a:" + "[" * 9000)[1]
    assert deep == '{"a":' + "[" * 255
    assert read_calls(formats.GemmaCalls(FUNCTIONS), "<|tool_call>call:time{a}") == ("<|tool_call>call:time{a}", [])


@pytest.mark.parametrize("kind", dict.fromkeys(case[0] for case in CASES))
def test_what_is_no_call_is_text(kind):
    format_ = ToolFormat(kind(FUNCTIONS), False, True, ())
    begun = kind.marks[0] if kind.marks else "<|channel|>commentary to=functions.stay<|message|>"
    others = ("", "Hello {", '{"answer": 3}', '{"name": "king", "parameters": {}}', "[1, 2]")
    for text in (
        *others,
        begun + "{",
        begun + "[" * 9000,
        begun + "3",
        begun + "[3]",
        begun + '[{"name": [], "tool_name": []}]',
    ):
        assert read(format_, text) == (text, [])


def fill_in(kind, city="Bonn"):
    """The pieces of a call of `stay` with ARGUMENTS, or with another city."""
    arguments = {**ARGUMENTS, "city": city}
    values = iter((city, "2"))
    for piece in kind(FUNCTIONS).call("stay", STAY):
        if isinstance(piece, str):
            yield piece
        elif isinstance(piece, re.Pattern) or piece.get("type") == "integer":
            yield next(values)
        elif piece.get("type") == "string":
            yield json.dumps(next(values))
        else:
            key = next((key for key in piece["properties"] if key in ("arguments", "parameters")), None)
            yield json.dumps({"name": "stay", key: arguments} if key else arguments)


def _byte(token):
    return bytes([token]) if token < 256 else b""


def accepted_prefix(grammar, text):
    """How much of a text a grammar accepts, and whether the text may end there; HIDDEN stands for a token without text."""
    ids = [VOCAB - 1 if byte == ord(HIDDEN) else byte for byte in text.encode()]
    options = {"token_bytes": _byte, "vocab_size": VOCAB, "ends": frozenset({END})}
    processor = ConstraintLogitsProcessor("grammar", grammar, 0, **options)
    for i in range(len(ids) + 1):
        scores = processor(np.array([ids[:i]], np.int64), np.zeros((1, VOCAB), np.float32))[0]
        if i == len(ids) or scores[ids[i]] < 0:
            break
    return text.encode()[:i].decode("utf-8", "replace"), bool(scores[END] == 0)


@pytest.mark.parametrize("kind", dict.fromkeys(case[0] for case in CASES))
def test_a_required_call_is_one_that_is_read(kind):
    """The pieces of a forced call, filled in, are read back; the grammar of them compiles."""
    from llguidance import LLMatcher

    text = kind(FUNCTIONS)
    forced = one_call([text.call(name, dict(schema)) for name, schema in FUNCTIONS.items()])
    assert not LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(forced))
    filled = "".join(fill_in(kind))
    assert read_calls(text, filled) == ("", [("stay", ARGUMENTS)])
    assert accepted_prefix(forced, filled) == (filled, True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", dict.fromkeys(case[0] for case in CASES))
def test_only_allowed_functions_are_called(kind):
    """Text stays free; a call that begins with a mark can only be of an allowed function, and no other is read as a call."""
    both = [{"type": "function", "function": {"name": name}} for name in FUNCTIONS]
    format_ = ToolFormat(kind({"stay": STAY}), False, True, tuple(both))
    grammar = format_.grammar(TOKENIZER, None)
    other = CALLS_OF_TIME.get(kind) or "".join(map(str, kind(FUNCTIONS).call("time", {})))
    assert read(format_, f"Well. {other}")[1] == [] == read(format_, other)[1]
    if not kind.always_marked:
        assert grammar is None
        return
    text = f"W\u00e9ll{HIDDEN}.\n{{ <"
    one = "".join(fill_in(kind))
    for good in ("", HIDDEN, text, text + one, f"{text}{one}\n{one}", f"{one} \n"):
        assert accepted_prefix(grammar, good) == (good, True)
        assert len(read(format_, good)[1]) == good.count(one)
    for mark in kind.marks:
        begin = one[one.index(mark) :]
        assert accepted_prefix(grammar, text + begin) == (text + begin, True)
        wrong, may_end = accepted_prefix(grammar, text + mark + HIDDEN)
        assert (wrong, may_end) == (text + mark, False)
    assert not accepted_prefix(grammar, text + other)[1]
    alone = dataclasses.replace(format_, several=False).grammar(TOKENIZER, None)
    assert accepted_prefix(alone, text + one) == (text + one, True) and accepted_prefix(alone, one + one) == (one, True)
    assert ToolFormat(kind(FUNCTIONS), False, True, tuple(both)).grammar(TOKENIZER, None) is None


@pytest.mark.parametrize("kind", dict.fromkeys(case[0] for case in CASES))
def test_a_strict_function_is_called_with_arguments_of_its_schema(kind):
    tools = [{"type": "function", "function": {"name": name, "strict": name == "stay"}} for name in FUNCTIONS]
    format_ = ToolFormat(kind(FUNCTIONS), False, True, tuple(tools))
    grammar = format_.grammar(TOKENIZER, None)
    one = "".join(fill_in(kind))
    if not kind.always_marked:
        assert grammar is None
        return
    for good in ("", "Well.", one, f"Well. {one}"):
        assert accepted_prefix(grammar, good) == (good, True)
    wrong = f"Well. {one.replace('2', 'two')}"
    assert accepted_prefix(grammar, wrong) == (wrong[: wrong.index("two")], False)


@pytest.mark.parametrize("kind", [formats.TaggedJson, formats.DeepSeek])
def test_a_mark_in_reasoning_begins_no_constrained_call(kind):
    tools = [{"type": "function", "function": {"name": name, "strict": True}} for name in FUNCTIONS]
    format_ = ToolFormat(kind(FUNCTIONS), False, True, tuple(tools))
    wrong = f"Well. {''.join(fill_in(kind)).replace('2', 'two')}"
    for begin, in_reasoning in (("\n<think>", False), ("", True)):
        grammar = format_.grammar(TOKENIZER, None, Thought(begun=in_reasoning))
        for thought in ("", f"Maybe {wrong}"):
            assert accepted_prefix(grammar, begin + thought) == (begin + thought, True)
            text = f"{begin}{thought}</think>\n\n{wrong}"
            assert accepted_prefix(grammar, text) == (text[: text.rindex("two")], False)


ANSWER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize("kind", [formats.TaggedJson, formats.BareJson, formats.MistralNamed, formats.Harmony])
def test_a_required_call_comes_after_the_reasoning(kind):
    """It may be left out, unless the prompt has begun it; the text cannot end within it, nor have anything else after it."""
    reasoning = find_reasoning("<|channel|>analysis") if kind is formats.Harmony else THINK
    joint = "<|start|>assistant" if kind is formats.Harmony else "\n\n"
    required, one = ToolFormat(kind(FUNCTIONS), True, True, ()), "".join(fill_in(kind))
    for begin, begun in ((reasoning.opening, False), ("", True)):
        grammar = required.grammar(TOKENIZER, None, Thought(reasoning, begun, off=False))
        thought = f"{begin}Maybe {one} or not"
        assert accepted_prefix(grammar, thought) == (thought, False)
        text = f"{thought}{reasoning.closing}{joint}"
        assert accepted_prefix(grammar, text + one) == (text + one, True)
        assert accepted_prefix(grammar, f"{text}Well.")[1] is False
        assert accepted_prefix(grammar, one) == (one, not begun)
    off = required.grammar(TOKENIZER, None, Thought(reasoning, off=True))
    assert accepted_prefix(off, one) == (one, True) and accepted_prefix(off, thought) == ("", False)


FORMS = [
    "</think>",
    "</think><response>",
    "<|START_THINKING|>",
    "<|begin|><|think|>",
    "<|open|><|sep|>think",
    "<|channel|>analysis",
]


@pytest.mark.parametrize("template", FORMS)
def test_an_answer_of_a_schema_comes_after_the_reasoning(template):
    """Between the marks that its answers have."""
    reasoning = find_reasoning(template)
    plain = formats.Harmony({}) if reasoning.in_messages else NoCalls({})
    joint = ("<|start|>assistant" if reasoning.in_messages else "") + "".join(reasoning.answer) + plain.answer_begin
    for begun in (False, True):
        format_ = AnswerFormat(reasoning, begun=begun, plain=plain)
        grammar = format_.grammar(TOKENIZER, ANSWER)
        thought = ("" if begun else reasoning.opening) + 'Is it {"a": 3}?'
        text = f'{thought}{reasoning.closing}{joint}{{"a": 3}}'
        assert accepted_prefix(grammar, text)[0] == text and accepted_prefix(grammar, thought) == (thought, False)
        assert accepted_prefix(grammar, text.replace("3}", "x}"))[1] is False
        reader = format_.reader()
        reader.add(text + "".join(reasoning.answer_ends))
        reader.end()
        assert (reader.reasoning, reader.content) == ('Is it {"a": 3}?', '{"a": 3}')
        for space in ("\xa0", "\u3000", "\x0b", "\x0c"):  # which JSON does not have
            before = text.removesuffix('{"a": 3}')
            assert accepted_prefix(grammar, before + space) == (before, False)
    assert AnswerFormat(None).grammar(TOKENIZER, ANSWER) is None  # the schema alone says what may be written
    assert AnswerFormat(THINK, ended=True).grammar(TOKENIZER, ANSWER) is None
    assert AnswerFormat(THINK).grammar(TOKENIZER, ANSWER, continues=True) is None


UNIQUE = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}, "required": ["tags"]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", dict.fromkeys(case[0] for case in CASES if case[0] is not formats.MiniMaxTags))
def test_a_function_that_is_not_strict_is_called_with_any_arguments(kind):
    """Also beside a strict one, and where its schema cannot be enforced. MiniMax M3's have the names of the schema as tags."""
    functions = {"stay": STAY, "tag": UNIQUE}
    tools = [{"type": "function", "function": {"name": name, "strict": name == "stay"}} for name in functions]
    format_ = ToolFormat(kind(functions), False, True, tuple(tools))
    tag = "".join(fill_in(kind)).replace("stay", "tag")
    assert accepted_prefix(format_.grammar(TOKENIZER, STAY), tag) == (tag, True)
    if kind.always_marked:
        text = f"{tag}\n{tag.replace('2', '[{}]')}"
        assert accepted_prefix(format_.grammar(TOKENIZER, None), text) == (text, True)
        assert len(read(format_, text)[1]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", dict.fromkeys(case[0] for case in CASES))
def test_an_answer_of_a_schema_or_calls(kind):
    """A response_format is that of an answer: the functions may be called instead."""
    format_ = ToolFormat(kind({"stay": STAY}), False, True, ({"type": "function", "function": {"name": "stay"}},))
    grammar = format_.grammar(TOKENIZER, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    one = "".join(fill_in(kind))
    answer = kind.answer_begin + '{"a": 3}'
    for good in (answer, one, *([f"{one}\n{one}\n"] if kind.always_marked else [])):
        assert accepted_prefix(grammar, good) == (good, True)
    assert accepted_prefix(grammar, "Well.") == ("", False)
    required = ToolFormat(kind({"stay": STAY}), True, True, format_.definitions).grammar(TOKENIZER, {})
    assert accepted_prefix(required, one) == (one, True) and accepted_prefix(required, answer)[1] is False


def draw_arguments(kind, schema, rng, seed):
    """The arguments of a call that is drawn at random; None where it was cut."""
    text = kind({"f-1_": schema})
    row = run(ds.SamplingParams(grammar=one_call([text.call("f-1_", schema)]), seed=seed, max_new_tokens=None), rng, 2000)
    if row.reason != "eos":
        return None
    visible, [(name, arguments)] = read_calls(text, row.text.text)
    assert (visible, name) == ("", "f-1_")
    return arguments


@pytest.mark.slow
@pytest.mark.parametrize("kind", dict.fromkeys(case[0] for case in CASES))
@pytest.mark.parametrize("where", ["$defs", "definitions"])
def test_forced_arguments_may_refer_to_definitions(kind, where, rng):
    size = {"type": "integer", "minimum": 1, "maximum": 3}
    schema = {"type": "object", where: {"size": size}, "properties": {"a": {"$ref": f"#/{where}/size"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    assert draw_arguments(kind, schema, rng, 1)["a"] in (1, 2, 3)


@pytest.mark.parametrize("kind", [formats.TaggedJson, formats.BareJson, formats.MistralList, formats.MistralNamed])
def test_forced_arguments_may_hold_what_is_like_them(kind, rng):
    schema = {
        "type": "object",
        "properties": {"size": {"enum": [1]}, "kid": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["size", "kid"],
        "additionalProperties": False,
    }
    drawn = [arguments for seed in range(5) if (arguments := draw_arguments(kind, schema, rng, seed))]
    assert drawn
    for arguments in drawn:
        jsonschema.validate(arguments, schema)


@pytest.mark.parametrize("kind", dict.fromkeys(case[0] for case in CASES))
def test_forced_arguments_have_what_schemas_of_other_libraries_have(kind, rng):
    """Formats that are only annotations, as OpenAPI's, and keywords with the value that has no effect."""
    size = {"type": "integer", "format": "int32", "minimum": 1, "maximum": 3}
    sizes = {"type": "array", "items": size, "uniqueItems": False, "minItems": 1, "maxItems": 2}
    schema = {"type": "object", "properties": {"size": size, "sizes": sizes}, "required": ["size", "sizes"],
              "additionalProperties": False}  # fmt: skip
    jsonschema.validate(draw_arguments(kind, schema, rng, 1), schema)


@pytest.mark.parametrize("kind", [formats.TaggedArguments, formats.TaggedFunctions, formats.GemmaCalls])
def test_names_of_arguments_that_are_no_names_are_left_out(kind, rng):
    schema = {"type": "object", "properties": {"key": {"const": "one"}, "more": {}}, "required": [["key"], {}, "key", "other"]}
    assert draw_arguments(kind, schema, rng, 1) == {"key": "one"}


@pytest.mark.parametrize("kind", [formats.TaggedArguments, formats.TaggedFunctions, formats.GemmaCalls])
def test_a_constant_text_is_written_between_tags(kind, rng):
    for given in ({"const": "one"}, {"enum": ["one"]}):
        schema = {"type": "object", "properties": {"key": {"type": "string", **given}}, "required": ["key"]}
        assert draw_arguments(kind, schema, rng, 1) == {"key": "one"}


class _Silent:
    """A tokenizer whose tokens have no text."""

    def token_bytes(self, token):
        return b""

    def token(self, token):
        return ""


_ROW = ds.Sampler([], vocab_size=1).new_row(ds.SamplingParams())


@pytest.mark.parametrize(
    "text", ['Sure: {"name": "time", "parameters": {}}', '{"name": "time", "parameters": {}}', "Hi \n", "a { b"]
)
def test_whole_and_streamed_answers_have_the_same_calls(text):
    format_ = AnswerFormat(tools=ToolFormat(formats.BareJson(FUNCTIONS), False, True, ()))
    whole, streamed = (ChatChoice(0, _Silent(), _ROW, format_) for _ in range(2))
    parts = []
    for i, character in enumerate(text):
        delta = Delta(0, character, 1, None, "eos" if i == len(text) - 1 else "")
        whole.take(delta)
        parts += streamed.chunk(delta)
    told = whole.whole()
    assert (told["message"]["content"] or "") == "".join(part["delta"].get("content", "") for part in parts)
    assert told["finish_reason"] == parts[-1]["finish_reason"]


def test_an_error_in_the_rules_of_a_schema_is_about_its_function():
    marks = ["zero", "one", "two"]
    schemas = [{"type": "object", "properties": {mark: {"type": "integer", "minimum": 5}}} for mark in marks]
    grammar = one_call([["call ", schema] for schema in schemas])
    compiled = compile_grammar("grammar", grammar).split("\n")
    assert len(compiled) > grammar.count("\n") + 1
    for i, mark in enumerate(marks):
        lines = [number for number, line in enumerate(compiled, 1) if f'"\\"{mark}\\""' in line]
        assert lines and [text_at(grammar, f"at {number}(3): wrong") for number in lines] == [i] * len(lines)
