"""How models write function calls: a class for each format, and which one a chat template has."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from decodestep.chat.reasoning import Mark, Thought
from decodestep.chat.text_feed import WORD, Reading, TextFeed
from decodestep.chat.tool_call_format import CallFormat, Event, Pieces, ToolCall
from decodestep.chat.tool_json import UnreadableError, call_in, call_schema
from decodestep.chat.tool_tags import GemmaCalls, TaggedArguments, TaggedFunctions

_DIGITS = re.compile(r"\d*")


class TaggedJson(CallFormat):
    """Qwen, Hermes, SmolLM, Granite: <tool_call> {"name": ..., "arguments": {...}} </tool_call>, one or several."""

    marks = ("<tool_call>",)

    def calls(self, feed: TextFeed) -> Reading[list[ToolCall]]:
        yield from feed.expect(*self.marks)
        found = yield from feed.json("{")
        yield from self._end(feed, "</tool_call>")
        return [ToolCall(*call_in(found))]

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return ["<tool_call>\n", call_schema(name, "arguments", schema), "\n</tool_call>"]


class BareJson(CallFormat):
    """Llama 3.1 to 3.3: the text is one or more {"name": ..., "parameters": {...}}, optionally after <|python_tag|>."""

    marks = ("<|python_tag|>",)
    first_marks = ("{",)
    always_marked = False
    spelled = ("<|python_tag|>",)
    _SEPARATORS = re.compile(r"[;,\s]*")

    def calls(self, feed: TextFeed) -> Reading[list[ToolCall]]:
        yield from feed.optional(*self.marks)
        found = yield from feed.json("{")
        separators = yield from feed.run(self._SEPARATORS)
        if not separators.strip() and not (yield from feed.comes("{", *self.marks)) and not (yield from feed.done()):
            raise UnreadableError
        return [ToolCall(*call_in(found))]

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [call_schema(name, "parameters", schema)]


class MistralList(CallFormat):
    """Mistral up to 2024: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]; reads the later format too."""

    marks = ("[TOOL_CALLS]",)
    spelled = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def calls(self, feed: TextFeed) -> Reading[list[ToolCall]]:
        yield from feed.expect(*self.marks)
        yield from feed.space()
        name = yield from feed.run(WORD)
        if name and (yield from feed.optional("[CALL_ID]")):
            yield from feed.run(WORD)
        if name:
            yield from feed.optional("[ARGS]")
        found = yield from feed.json("{", "[")
        yield from self._end(feed)
        return [ToolCall(name, found)] if name else _listed(found, call_in)

    def new_id(self, name: str, number: int) -> str:
        return secrets.token_hex(5)[:9]  # templates refuse ids that are not of nine letters and digits

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return ["[TOOL_CALLS][", call_schema(name, "arguments", schema), "]"]


class MistralNamed(MistralList):
    """Mistral since 2025: [TOOL_CALLS]name[ARGS]{...}, once or several times."""

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [f"[TOOL_CALLS]{name}[ARGS]", schema]


class DeepSeek(CallFormat):
    """DeepSeek V3.1: calls between control tokens, name<sep>{...}; reads the format of V3 and R1 too."""

    marks = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    spelled = (*marks, "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
    _ENDS: tuple[str, ...] = ("```", *spelled[-2:])

    def calls(self, feed: TextFeed) -> Reading[list[ToolCall]]:
        section, begin = self.marks
        yield from feed.optional(section)
        yield from feed.space()
        yield from feed.expect(begin)
        yield from feed.space()
        name = yield from self._name(feed)
        arguments = yield from feed.json("{")
        for end in self._ENDS:
            yield from feed.space()
            yield from feed.optional(end)
        return [ToolCall(name, arguments)]

    def _name(self, feed: TextFeed) -> Reading[str]:
        """The name of a function, with what stands between it and the arguments."""
        kind = yield from feed.run(WORD)
        yield from feed.optional("<｜tool▁sep｜>")
        name = yield from feed.run(WORD)  # of V3 and R1, where "function" stands before it
        yield from feed.space()
        yield from feed.optional("```json")
        return name or kind

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin = f"{''.join(self.marks)}{name}<｜tool▁sep｜>"
        return [begin, schema, "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"]


class DeepSeekFenced(DeepSeek):
    """DeepSeek V3 and R1: function<sep>name, and the arguments in a Markdown code block."""

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        _, arguments, end = super().call(name, schema)
        return [f"{''.join(self.marks)}function<｜tool▁sep｜>{name}\n```json\n", arguments, f"\n```{end}"]


class KimiSection(DeepSeek):
    """Kimi K2: calls between control tokens, functions.name:number<argument begin>{...}."""

    marks = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
    spelled = (*marks, "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>")
    _ENDS = spelled[-2:]

    def _name(self, feed: TextFeed) -> Reading[str]:
        yield from feed.optional("functions.")
        name = yield from feed.run(WORD)
        if (yield from feed.optional(":")):
            yield from feed.run(_DIGITS)
        yield from feed.space()
        yield from feed.expect("<|tool_call_argument_begin|>")
        return name

    def new_id(self, name: str, number: int) -> str:
        return f"functions.{name}:{number}"  # written into the prompt in place of the name

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin, end = "".join(self.marks), "<|tool_call_end|><|tool_calls_section_end|>"
        return [f"{begin}functions.{name}:0<|tool_call_argument_begin|>", schema, end]


class CohereActions(CallFormat):
    """Command R7B: a list of {"tool_call_id": ..., "tool_name": ..., "parameters": {...}} between control tokens."""

    marks = ("<|START_ACTION|>",)
    spelled: tuple[str, ...] = ("<|START_ACTION|>", "<|END_ACTION|>")
    _END = "<|END_ACTION|>"

    def calls(self, feed: TextFeed) -> Reading[list[ToolCall]]:
        yield from feed.expect(*self.marks)
        found = yield from feed.json("{", "[")
        yield from self._end(feed, self._END)
        return _listed(found, _action_in)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin = f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "{name}", "parameters": '
        return [begin, schema, "}\n]<|END_ACTION|>"]


class CohereFenced(CohereActions):
    """Command R and R+: Action: and a list of {"tool_name": ..., "parameters": {...}} in a Markdown code block."""

    marks = ("Action: ```json",)
    spelled = ()
    _END = "```"

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin = f'Action: ```json\n[\n    {{\n        "tool_name": "{name}",\n        "parameters": '
        return [begin, schema, "\n    }\n]\n```"]


class Harmony(CallFormat):
    """gpt-oss: messages in channels; a message to functions.name is a call, others in final or commentary are the answer, and
    those in analysis are reasoning."""

    whole = True
    marks = ("<|start|>", "<|channel|>")
    first_marks = ("to=functions.",)
    always_marked = False
    spelled = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")
    _ENDS = ("<|end|>", "<|call|>", "<|return|>")
    _TO = re.compile(r"to=functions\.([\w-]+)")
    _ANALYSIS = re.compile(r"<\|channel\|>analysis")
    _ANSWERS = re.compile(r"<\|channel\|>(final|commentary)")

    def events(self, feed: TextFeed) -> Iterator[Event]:
        first, between = True, ""
        while True:
            feed.begin()
            if (yield from feed.done()):
                return
            space = (yield from feed.space()) if first else ""
            feed.begin()
            if not (yield from feed.comes(*self.marks, *(self.first_marks if first else ()))):
                first = False
                yield space + feed.plain(self.marks)  # of no message
                continue
            first = True
            try:
                found = yield from self.calls(feed)
            except UnreadableError:
                feed.back()
                yield space + feed.take(1)
                yield from self._body(feed)
                yield (yield from feed.optional(*self._ENDS))
                continue
            if found:
                yield from self.readable(found, feed.begun)
                continue
            head = feed.begun
            thinks, shown = self._ANALYSIS.search(head) is not None, self._ANSWERS.search(head) is not None
            if thinks:
                yield Mark(head, True)
            elif shown:
                yield between
                between = "\n"
            for piece in self._body(feed):
                yield Thought(piece) if thinks and piece is not None else piece if shown or piece is None else ""
            ended = yield from feed.optional(*self._ENDS)
            if thinks and (ended or not (yield from feed.done())):
                yield Mark(ended, False)

    def calls(self, feed: TextFeed) -> Reading[list[ToolCall]]:
        """The call of the message that comes next; of another message, reads what stands before its text."""
        head = yield from feed.until("<|message|>")
        yield from feed.expect("<|message|>")
        if "<|channel|>" not in head:
            raise UnreadableError
        called = self._TO.search(head)
        if called is None:
            return []
        arguments = yield from feed.json("{")
        yield from self._end(feed, *self._ENDS)
        return [ToolCall(called[1], arguments)]

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", schema]

    def _body(self, feed: TextFeed) -> Iterator[str | None]:
        """The text of a message in pieces; None where more is needed."""
        while not (yield from feed.done()) and not (yield from feed.comes(*self._ENDS, "<|start|>")):
            yield feed.plain((*self._ENDS, "<|start|>"))


# A template has the first format all of whose words it contains.
_FORMATS: tuple[tuple[tuple[str, ...], type[CallFormat]], ...] = (
    (("<|channel|>", "functions."), Harmony),
    (("<｜tool▁sep｜>", "```json"), DeepSeekFenced),
    (("<｜tool▁sep｜>",), DeepSeek),
    (("<|tool_calls_section_begin|>",), KimiSection),
    (("<|START_ACTION|>", "tool_name"), CohereActions),
    (("Action:", '"tool_name"'), CohereFenced),
    (("<|tool_call>", "call:"), GemmaCalls),
    (("[TOOL_CALLS]", "[ARGS]"), MistralNamed),
    (("[TOOL_CALLS]",), MistralList),
    (("<tool_call>", "<arg_key>"), TaggedArguments),
    (("<tool_call>", "<function="), TaggedFunctions),
    (("<tool_call>",), TaggedJson),
    (('{"name": function name, "parameters"',), BareJson),
)


def find_call_format(template: str) -> type[CallFormat] | None:
    """The format of calls in a chat template; None if it is unknown."""
    return next((kind for words, kind in _FORMATS if all(word in template for word in words)), None)


def _listed(found: object, read: Callable[[Any], tuple[str, Any]]) -> list[ToolCall]:
    """The calls of a list, or the one that stands in its place. read: the name and the arguments of one."""
    calls = []
    for item in found if isinstance(found, list) else [found]:
        source = json.dumps(item, ensure_ascii=False)
        try:
            calls.append(ToolCall(*read(item), source))
        except UnreadableError:
            calls.append(ToolCall("", None, source))
    return calls


def _action_in(found: object) -> tuple[str, Any]:
    """The name and the arguments of a call of Cohere's."""
    return call_in({**found, "name": found.get("tool_name")} if isinstance(found, dict) else found)
