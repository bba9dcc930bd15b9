"""How models write function calls: a class for each format."""

from __future__ import annotations

import re
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from decodestep.serving.tool_call_format import CallFormat, Calls, Pieces
from decodestep.serving.tool_json import (
    UnreadableError,
    arguments_in,
    call_in,
    call_schema,
    constrained_arguments,
    first_json,
    marked_json,
    properties,
    tagged_form,
    tagged_value,
)

T = TypeVar("T")


class TaggedJson(CallFormat):
    """Qwen, Hermes, SmolLM, Granite: <tool_call> {"name": ..., "arguments": {...}} </tool_call>, one or several."""

    marks = ("<tool_call>",)

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        while text:
            found, text = marked_json(text.removeprefix("<tool_call>"), "<tool_call>", "</tool_call>")
            yield call_in(found)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return ["<tool_call>\n", call_schema(name, "arguments", schema), "\n</tool_call>"]


class BareJson(CallFormat):
    """Llama 3.1 to 3.3: the text is one or more {"name": ..., "parameters": {...}}, optionally after <|python_tag|>."""

    marks = ("<|python_tag|>",)
    always_marked = False
    spelled = ("<|python_tag|>",)

    def plain_length(self, text: str) -> int:
        return 0 if not text.strip() or text.lstrip()[0] == "{" else super().plain_length(text)

    def read(self, text: str) -> tuple[str, Calls]:
        if text.lstrip()[:1] != "{":
            return super().read(text)
        try:
            return "", list(self.calls(text))
        except UnreadableError:
            return text, []  # JSON that is not a call, therefore the answer

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        rest = text.strip().removeprefix("<|python_tag|>").lstrip()
        while rest:
            found, rest = first_json(rest)
            yield call_in(found)
            rest = rest.lstrip(" ;,\n")

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [call_schema(name, "parameters", schema)]


class MistralList(CallFormat):
    """Mistral up to 2024: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]; reads the later format too."""

    marks = ("[TOOL_CALLS]",)
    spelled = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    _NAMED = re.compile(r"\s*([\w-]+)(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*(?=\{)")

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        while text:
            text = text.removeprefix("[TOOL_CALLS]")
            named = self._NAMED.match(text)
            found, text = marked_json(text[named.end() :] if named else text, "[TOOL_CALLS]", "")
            if named:
                yield named[1], found
            else:
                yield from map(call_in, found if isinstance(found, list) else [found])

    def new_id(self, name: str, number: int) -> str:
        return secrets.token_hex(5)[:9]  # templates refuse ids that are not of nine letters and digits

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return ["[TOOL_CALLS][", call_schema(name, "arguments", schema), "]"]


class MistralNamed(MistralList):
    """Mistral since 2025: [TOOL_CALLS]name[ARGS]{...}, once or several times."""

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [f"[TOOL_CALLS]{name}[ARGS]", schema]


class NamedCalls(CallFormat):
    """A mark, the name of a function, and its arguments, as often as there are calls.

    The mark is the last of `marks`. _NAMED: what stands between it and the arguments, the name as its group. `_arguments`
    reads the arguments of a function at the start of a text, and returns the rest.
    """

    _NAMED: re.Pattern[str]

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        while self.marks[-1] in text:
            text = text.partition(self.marks[-1])[2]
            named = self._NAMED.match(text)
            if named is None:
                raise UnreadableError
            found, text = self._arguments(named[1], text[named.end() :])
            yield named[1], found

    @abstractmethod
    def _arguments(self, name: str, text: str) -> tuple[Any, str]: ...


class DeepSeek(NamedCalls):
    """DeepSeek V3.1: calls between control tokens, name<sep>{...}; reads the format of V3 and R1 too."""

    marks = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    spelled = (*marks, "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
    _NAMED = re.compile(r"\s*(?:function<｜tool▁sep｜>)?([\w-]+)(?:<｜tool▁sep｜>)?\s*(?:```json\s*)?(?=\{)")

    def _arguments(self, name: str, text: str) -> tuple[Any, str]:
        return first_json(text)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [f"{''.join(self.marks)}{name}<｜tool▁sep｜>", schema, "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"]


class DeepSeekFenced(DeepSeek):
    """DeepSeek V3 and R1: function<sep>name, and the arguments in a Markdown code block."""

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        _, arguments, end = super().call(name, schema)
        return [f"{''.join(self.marks)}function<｜tool▁sep｜>{name}\n```json\n", arguments, f"\n```{end}"]


class KimiSection(DeepSeek):
    """Kimi K2: calls between control tokens, functions.name:number<argument begin>{...}."""

    marks = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
    spelled = (*marks, "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>")
    _NAMED = re.compile(r"\s*(?:functions\.)?([\w-]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*(?=\{)")

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

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        [of_list] = self.marks
        while text:
            listed, text = marked_json(text.removeprefix(of_list), of_list, self._END)
            for item in listed if isinstance(listed, list) else [listed]:
                if not isinstance(item, dict) or not isinstance(item.get("tool_name"), str):
                    raise UnreadableError
                yield item["tool_name"], arguments_in(item)

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


class GemmaCalls(NamedCalls):
    """Gemma 4: <|tool_call>call:name{key:value,...}<tool_call|>, strings between control tokens, keys without quotes.

    Within lists and objects the models also write JSON, so strings in quotes are read too.
    """

    _QUOTE = '<|"|>'
    marks = ("<|tool_call>",)
    spelled = ("<|tool_call>", "<tool_call|>", _QUOTE)
    _NAMED = re.compile(r"\s*call:\s*([\w-]+)\s*(?=\{)")
    _KEY = re.compile(r"([^:,{}\[\]]+):")
    _BARE = re.compile(r"[^,{}\[\]]+")

    def _arguments(self, name: str, text: str) -> tuple[Any, str]:
        try:
            return self._value(text)
        except RecursionError:
            raise UnreadableError from None

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"<|tool_call>call:{name}{{"]
        for i, (key, kind) in enumerate(constrained_arguments(schema)):
            value = tagged_form(kind)
            quoted = [self._QUOTE, value, self._QUOTE] if isinstance(value, re.Pattern) else [value]
            pieces += [f"{',' if i else ''}{key}:", *quoted]
        return [*pieces, "}<tool_call|>"]

    def _value(self, text: str) -> tuple[Any, str]:
        """The value at the start of a text, and the rest."""
        text = text.lstrip()
        if text.startswith(self._QUOTE):
            value, end, rest = text[len(self._QUOTE) :].partition(self._QUOTE)
            if not end:
                raise UnreadableError
            return value, rest
        if text.startswith('"'):
            return first_json(text)
        if text.startswith("["):
            return self._members(text[1:], "]", self._value)
        if text.startswith("{"):
            pairs, rest = self._members(text[1:], "}", self._pair)
            return dict(pairs), rest
        found = self._BARE.match(text)
        if found is None:
            raise UnreadableError
        return tagged_value(found[0].strip(), {}), text[found.end() :]

    def _members(self, text: str, closing: str, read: Callable[[str], tuple[T, str]]) -> tuple[list[T], str]:
        """What `read` finds at each member of a list or an object whose opening bracket has been read, and the text after the
        closing one."""
        found: list[T] = []
        while not (text := text.lstrip()).startswith(closing):
            if found:
                if not text.startswith(","):
                    raise UnreadableError
                text = text[1:]
            member, text = read(text)
            found.append(member)
        return found, text[1:]

    def _pair(self, text: str) -> tuple[tuple[str, Any], str]:
        """The key and the value at the start of a text, and the rest."""
        found = self._KEY.match(text)
        if found is None:
            raise UnreadableError
        value, rest = self._value(text[found.end() :])
        return (found[1].strip().replace(self._QUOTE, "").strip('"'), value), rest


class Harmony(CallFormat):
    """gpt-oss: messages in channels; a message to functions.name is a call, others in final or commentary are the answer."""

    always_marked = False
    spelled = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")
    _END = re.compile(r"<\|(?:end|call|return|start)\|>")
    _TO = re.compile(r"to=functions\.([\w-]+)")

    def plain_length(self, text: str) -> int:
        return 0  # the whole text is needed to tell calls from the answer

    def read(self, text: str) -> tuple[str, Calls]:
        messages = list(self._messages(text))
        if not messages:
            return text, []
        answers = [body for name, channel, body in messages if name is None and channel.startswith(("final", "commentary"))]
        return "\n".join(answers), [(name, body) for name, _, body in messages if name is not None]

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        return ((name, body) for name, _, body in self._messages(text) if name is not None)

    def _messages(self, text: str) -> Iterator[tuple[str | None, str, Any]]:
        """The name of the called function or None, the channel, and the arguments or the text, of each message."""
        while "<|message|>" in text.partition("<|channel|>")[2]:
            before, _, text = text.partition("<|channel|>")
            channel, _, text = text.partition("<|message|>")
            called = self._TO.search(f"{before.rpartition('<')[2]} {channel}")
            body: Any = None
            if called:
                body, text = first_json(text.lstrip())
            written = self._END.split(text, maxsplit=1)[0]
            text = text[len(written) :]
            if called and written.strip():
                raise UnreadableError
            yield called and called[1], channel, body if called else written

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", schema]


class TaggedArguments(NamedCalls):
    """GLM 4.5 to 4.7: <tool_call>name, then <arg_key>key</arg_key> <arg_value>value</arg_value> for each argument."""

    marks = ("<tool_call>",)
    _NAMED = re.compile(r"\s*([\w-]+)\s*")
    _ENDS: tuple[str, ...] = ("</tool_call>",)
    _ARGUMENT = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)

    def _arguments(self, name: str, text: str) -> tuple[Any, str]:
        arguments, types = dict[str, Any](), properties(self.functions.get(name, {}))
        while found := self._ARGUMENT.match(text):
            key, text = found[1].strip(), text[found.end() :].lstrip()
            arguments[key] = tagged_value(found[2], types.get(key, {}))
        if not text.startswith(self._ENDS):  # cut off, or between two arguments is something else
            raise UnreadableError
        return arguments, text

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"<tool_call>{name}\n"]
        for key, kind in constrained_arguments(schema):
            pieces += [f"<arg_key>{key}</arg_key>\n<arg_value>", tagged_form(kind), "</arg_value>\n"]
        return [*pieces, "</tool_call>"]


class TaggedFunctions(TaggedArguments):
    """Qwen3-Coder, Qwen3.5: <tool_call> <function=name> <parameter=key> value </parameter> ... </function> </tool_call>."""

    _NAMED = re.compile(r"\s*<function=([\w-]+)>\s*")
    _ENDS = ("</function>", "</tool_call>")
    _ARGUMENT = re.compile(r"<parameter=([^>]*)>\n?(.*?)\n?</parameter>", re.DOTALL)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"<tool_call>\n<function={name}>\n"]
        for key, kind in constrained_arguments(schema):
            pieces += [f"<parameter={key}>\n", tagged_form(kind), "\n</parameter>\n"]
        return [*pieces, "</function>\n</tool_call>"]


# A template has the first format all of whose words it contains.
_KINDS: tuple[tuple[tuple[str, ...], type[CallFormat]], ...] = (
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


def kind_of(template: str) -> type[CallFormat] | None:
    """The format of calls in a chat template; None if it is unknown."""
    return next((kind for words, kind in _KINDS if all(word in template for word in words)), None)
