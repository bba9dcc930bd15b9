"""The kinds of text in which models write calls: what is read is what was called, and nothing of a call is shown as text."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

import decodestep as ds
from decodestep.serving import tool_formats as formats
from decodestep.serving.responses import Choice
from decodestep.serving.ticket import Gain
from decodestep.serving.tool_text import UnreadableError, grammar
from decodestep.serving.tools import ToolFormat
from test_constraint import run

STAY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"]}
FUNCTIONS = {"stay": STAY, "time": {}}
ARGUMENTS = {"city": "Bonn", "days": 2}
JSON = json.dumps(ARGUMENTS)
SEP = "<｜tool▁sep｜>"

# The kind, what a template of it contains, a text with calls, what the reader is told, and the calls' names.
CASES = [
    (formats.TaggedJson, "<tool_call>", f'Well. <tool_call>{{"name": "stay", "arguments": {JSON}}}</tool_call>\n<tool_call>\n'
     '{"name": "time", "arguments": {}}', "Well.", ["stay", "time"]),
    (formats.BareJson, '{"name": function name, "parameters": x}', f'{{"name": "stay", "parameters": {JSON}}}', "", ["stay"]),
    (formats.BareJson, "", f'On it.<|python_tag|>{{"name": "stay", "parameters": {JSON}}}; '
     '{"name": "time", "parameters": {}}', "On it.", ["stay", "time"]),
    (formats.MistralList, "[TOOL_CALLS]", f'[TOOL_CALLS][{{"name": "stay", "arguments": {JSON}, "id": "abc"}}, '
     '{"name": "time", "arguments": {}}]', "", ["stay", "time"]),
    (formats.MistralNamed, "[TOOL_CALLS] [ARGS]", f"Yes [TOOL_CALLS]stay[CALL_ID]a1[ARGS]{JSON}[TOOL_CALLS]time[ARGS]{{}}",
     "Yes", ["stay", "time"]),
    (formats.DeepSeek, SEP, f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>stay{SEP}{JSON}<｜tool▁call▁end｜>"
     f"<｜tool▁call▁begin｜>time{SEP}{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "", ["stay", "time"]),
    (formats.DeepSeekFenced, SEP + "```json", "So:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
     f"function{SEP}stay\n```json\n{JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "So:", ["stay"]),
    (formats.KimiSection, "<|tool_calls_section_begin|>", "So:<|tool_calls_section_begin|><|tool_call_begin|>functions.stay:0"
     f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_call_begin|>functions.time:1<|tool_call_argument_begin|>{{}}"
     "<|tool_call_end|><|tool_calls_section_end|>", "So:", ["stay", "time"]),
    (formats.CohereActions, '<|START_ACTION|> {"tool_name":', 'Plan.<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": '
     f'"stay", "parameters": {JSON}}},\n    {{"tool_call_id": "1", "tool_name": "time", "parameters": {{}}}}\n]<|END_ACTION|>',
     "Plan.", ["stay", "time"]),
    (formats.CohereFenced, 'Action: "tool_name":', 'Plan.\nAction: ```json\n[\n    {\n        "tool_name": "stay",\n'
     f'        "parameters": {JSON}\n    }},\n    {{"tool_name": "time", "parameters": {{}}}}\n]\n```', "Plan.",
     ["stay", "time"]),
    (formats.GemmaCalls, "<|tool_call> call:", 'So: <|tool_call>call:stay{city:<|"|>Bonn<|"|>,days:2}<tool_call|>'
     "<|tool_call>call:time{}<tool_call|>", "So:", ["stay", "time"]),
    (formats.GemmaCalls, "", '<|tool_call>call:stay{"city": "Bonn", <|"|>days<|"|>: 2}<tool_call|>', "", ["stay"]),
    (formats.Harmony, "<|channel|> functions.", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary"
     f" to=functions.stay <|constrain|>json<|message|>{JSON}<|call|>", "", ["stay"]),
    (formats.Harmony, "", f" to=functions.stay<|channel|>commentary json<|message|>{JSON}", "", ["stay"]),
    (formats.Harmony, "", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>a <b>", "a <b>",
     []),
    (formats.TaggedArguments, "<tool_call> <arg_key>", "<tool_call>stay\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n"
     "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call><tool_call>time</tool_call>", "", ["stay", "time"]),
    (formats.TaggedFunctions, "<tool_call> <function=", "<tool_call>\n<function=stay>\n<parameter=city>\nBonn\n</parameter>\n"
     "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>", "", ["stay"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "template", "text", "told", "names"), CASES)
def test_calls_are_read(kind, template, text, told, names):
    assert not template or formats.kind_of(template) is kind
    format_ = ToolFormat(kind(FUNCTIONS), True, False, ())
    found, calls = format_.read(text)
    given = {"stay": ARGUMENTS, "time": {}}
    assert found == told
    assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls] == [(n, given[n]) for n in names]
    shown = held = ""
    for character in text:  # as a stream has it
        held += character
        free = format_.text.free(held)
        shown, held = shown + held[:free], held[free:]
    assert (shown + format_.read(held)[0]).rstrip() == told and len(format_.read(held)[1]) == len(names)


def test_one_call_alone_where_no_more_are_asked_for():
    text = "".join(f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in ("time", "stay"))
    for several, names in ((True, ["time", "stay"]), (False, ["time"])):
        _, calls = ToolFormat(formats.TaggedJson(FUNCTIONS), True, False, (), several).read(text)
        assert [call["function"]["name"] for call in calls] == names


def test_gemmas_values():
    text = """<|tool_call>call:time{a:[<|"|>x, }<|"|>,"y",1.5,true,null],b:{c:{},d:[]},e:plain}<tool_call|>"""
    [(name, arguments)] = formats.GemmaCalls(FUNCTIONS).calls(text)
    assert (name, arguments) == ("time", {"a": ["x, }", "y", 1.5, True, None], "b": {"c": {}, "d": []}, "e": "plain"})
    for broken in ("{a:[1", "{a:1 b:2]", "{a}", '{a:<|"|>x}', "{a:" + "[" * 9000):
        with pytest.raises(UnreadableError):
            list(formats.GemmaCalls(FUNCTIONS).calls("<|tool_call>call:time" + broken))


@pytest.mark.parametrize("kind", dict.fromkeys(case[0] for case in CASES))
def test_what_is_no_call_is_text(kind):
    format_ = ToolFormat(kind(FUNCTIONS), True, False, ())
    begun = kind.marks[0] if kind.marks else "<|channel|>commentary to=functions.stay<|message|>"
    others = ("", "Hello {", '{"answer": 3}', '{"name": "king", "parameters": {}}', "[1, 2]")
    for text in (*others, begun + "{", begun + "[" * 9000):
        assert format_.read(text) == (text, [])


@pytest.mark.parametrize("kind", dict.fromkeys(case[0] for case in CASES))
def test_a_required_call_is_one_that_is_read(kind):
    """The pieces of a forced call, filled in, are read back; the grammar of them compiles."""
    from llguidance import LLMatcher

    text = kind(FUNCTIONS)
    forced = grammar([text.call(name, dict(schema)) for name, schema in FUNCTIONS.items()])
    assert not LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(forced))
    values = iter(("Bonn", "2"))
    filled = ""
    for piece in text.call("stay", STAY):
        if isinstance(piece, str):
            filled += piece
        elif isinstance(piece, re.Pattern) or piece.get("type") == "integer":
            filled += next(values)
        else:
            key = next((key for key in piece["properties"] if key in ("arguments", "parameters")), None)
            filled += json.dumps({"name": "stay", key: ARGUMENTS}) if key else JSON
            next(values), next(values)
    assert text.read(filled) == ("", [("stay", ARGUMENTS)])


def forced(kind, schema, rng, seed):
    """The arguments of a call that is drawn at random; None where it was cut."""
    text = kind({"f-1_": schema})
    row = run(ds.SamplingParams(grammar=grammar([text.call("f-1_", schema)]), seed=seed, max_new_tokens=None), rng, 2000)
    if row.reason != "eos":
        return None
    told, [(name, arguments)] = text.read(row.text.text)
    assert (told, name) == ("", "f-1_")
    return arguments


@pytest.mark.parametrize("kind", dict.fromkeys(case[0] for case in CASES))
@pytest.mark.parametrize("where", ["$defs", "definitions"])
def test_forced_arguments_may_refer_to_definitions(kind, where, rng):
    size = {"type": "integer", "minimum": 1, "maximum": 3}
    schema = {"type": "object", where: {"size": size}, "properties": {"a": {"$ref": f"#/{where}/size"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    assert forced(kind, schema, rng, 1)["a"] in (1, 2, 3)


@pytest.mark.parametrize("kind", [formats.TaggedJson, formats.BareJson, formats.MistralList, formats.MistralNamed])
def test_forced_arguments_may_hold_what_is_like_them(kind, rng):
    schema = {
        "type": "object",
        "properties": {"size": {"enum": [1]}, "kid": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["size", "kid"],
        "additionalProperties": False,
    }
    drawn = [arguments for seed in range(5) if (arguments := forced(kind, schema, rng, seed))]
    assert drawn
    for arguments in drawn:
        jsonschema.validate(arguments, schema)


@pytest.mark.parametrize("kind", [formats.TaggedArguments, formats.TaggedFunctions, formats.GemmaCalls])
def test_a_constant_text_is_written_between_tags(kind, rng):
    for given in ({"const": "one"}, {"enum": ["one"]}):
        schema = {"type": "object", "properties": {"key": {"type": "string", **given}}, "required": ["key"]}
        assert forced(kind, schema, rng, 1) == {"key": "one"}


class _Silent:
    """A tokenizer whose tokens have no text."""

    def token_bytes(self, token):
        return b""

    def token(self, token):
        return ""


@pytest.mark.parametrize(
    "text", ['Sure: {"name": "time", "parameters": {}}', '{"name": "time", "parameters": {}}', "Hi \n", "a { b"]
)
def test_whole_and_streamed_answers_have_the_same_calls(text):
    format_ = ToolFormat(formats.BareJson(FUNCTIONS), True, False, ())
    whole, streamed = (Choice(0, True, _Silent(), format_, False) for _ in range(2))
    parts = []
    for i, character in enumerate(text):
        gain = Gain(0, character, 1, None, "eos" if i == len(text) - 1 else "")
        whole.take(gain)
        parts += streamed.chunk(gain, None)
    told = whole.whole(None)
    assert (told["message"]["content"] or "") == "".join(part["delta"].get("content", "") for part in parts)
    assert told["finish_reason"] == parts[-1]["finish_reason"]
