"""How models write the calls of functions: a class for each kind of text, and how it is read."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from decodestep.sampling.constraint import JSON_FORM

Calls = list[tuple[str, Any]]  # the name and the arguments of each
Functions = Mapping[str, Mapping[str, Any]]  # the JSON schema of each function's arguments
# A text that is forced: literally as it stands, as JSON of a schema, or by an expression.
Pieces = list[str | dict[str, Any] | re.Pattern[str]]


class UnreadableError(ValueError):
    """What looked like calls are none."""


class CallText(ABC):
    """A kind of text. functions: those that may be called.

    marks: what begins a call, wherever it stands. spelled: the control tokens of which calls are made, by their names.
    """

    marks: tuple[str, ...] = ()
    spelled: tuple[str, ...] = ()

    def __init__(self, functions: Functions) -> None:
        self.functions = functions

    def free(self, text: str) -> int:
        """How many characters of the text so far cannot belong to a call, nor to the space before one."""
        found = [at for mark in self.marks if (at := text.find(mark)) >= 0]
        if found:
            return len(text[: min(found)].rstrip())
        kept = max(n for mark in self.marks for n in range(len(mark)) if text.endswith(mark[:n]))
        return len(text[: len(text) - kept].rstrip())

    def read(self, text: str) -> tuple[str, Calls]:
        """The text for the reader, and the calls. Raises UnreadableError."""
        at = min((at for mark in self.marks if (at := text.find(mark)) >= 0), default=len(text))
        calls = list(self.calls(text[at:]))
        if at < len(text) and not calls:
            raise UnreadableError
        return text[:at].rstrip(), calls

    @abstractmethod
    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        """The calls of a text that begins with a mark, or is empty. Raises UnreadableError."""

    @abstractmethod
    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        """The whole text of one call."""


class TaggedJson(CallText):
    """Qwen, Hermes, SmolLM, Granite: <tool_call> {"name": ..., "arguments": {...}} </tool_call>, one or several."""

    marks = ("<tool_call>",)

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        for piece in text.split("<tool_call>")[1:]:
            yield _of_object(loaded(piece.partition("</tool_call>")[0]))

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return ["<tool_call>\n", _object(name, "arguments", schema), "\n</tool_call>"]


class BareJson(CallText):
    """Llama 3.1 to 3.3: the text is {"name": ..., "parameters": {...}}, maybe after <|python_tag|>, or several of them."""

    marks = ("<|python_tag|>",)
    spelled = ("<|python_tag|>",)

    def free(self, text: str) -> int:
        return 0 if not text.strip() or text.lstrip()[0] == "{" else super().free(text)

    def read(self, text: str) -> tuple[str, Calls]:
        if text.lstrip()[:1] != "{":
            return super().read(text)
        try:
            return "", list(self.calls(text))
        except UnreadableError:
            return text, []  # JSON, but no call: an answer

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        rest = text.replace("<|python_tag|>", "", 1).strip()
        while rest:
            found, rest = first_json(rest)
            yield _of_object(found)
            rest = rest.lstrip(" ;,\n")

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [_object(name, "parameters", schema)]


class MistralList(CallText):
    """Mistral up to 2024: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]; reads the later kind too."""

    marks = ("[TOOL_CALLS]",)
    spelled = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    _NAMED = re.compile(r"\s*([\w-]+)(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*(?=\{)")

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        for piece in text.split("[TOOL_CALLS]")[1:]:
            if found := self._NAMED.match(piece):
                yield found[1], _all_json(piece[found.end() :])
                continue
            listed = _all_json(piece)
            for item in listed if isinstance(listed, list) else [listed]:
                yield _of_object(item)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return ["[TOOL_CALLS][", _object(name, "arguments", schema), "]"]


class MistralNamed(MistralList):
    """Mistral since 2025: [TOOL_CALLS]name[ARGS]{...}, one after the other."""

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [f"[TOOL_CALLS]{name}[ARGS]", schema]


class DeepSeek(CallText):
    """DeepSeek V3.1: calls between control tokens, name<sep>{...}; reads the kind of V3 and R1 too."""

    marks = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    spelled = (*marks, "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
    _NAMED = re.compile(r"\s*(?:function<｜tool▁sep｜>)?([\w-]+)(?:<｜tool▁sep｜>)?\s*(?:```json)?\s*(?=\{)")

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        for piece in text.split(self.marks[1])[1:]:
            found = self._NAMED.match(piece)
            if found is None:
                raise UnreadableError
            yield found[1], first_json(piece[found.end() :])[0]

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin, end = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        return [f"{begin}{name}<｜tool▁sep｜>", schema, end]


class DeepSeekFenced(DeepSeek):
    """DeepSeek V3 and R1: function<sep>name, and the arguments in a fence of Markdown."""

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin, [_, *rest] = f"function<｜tool▁sep｜>{name}\n```json\n", super().call(name, schema)
        return ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>" + begin, rest[0], f"\n```{rest[1]}"]


class KimiSection(DeepSeek):
    """Kimi K2: calls between control tokens, functions.name:number<argument begin>{...}."""

    marks = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
    spelled = (*marks, "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>")
    _NAMED = re.compile(r"\s*(?:functions\.)?([\w-]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*(?=\{)")

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin, end = "".join(self.marks), "<|tool_call_end|><|tool_calls_section_end|>"
        return [f"{begin}functions.{name}:0<|tool_call_argument_begin|>", schema, end]


class CohereActions(CallText):
    """Command R7B: a list of {"tool_call_id": ..., "tool_name": ..., "parameters": {...}} between control tokens."""

    marks = ("<|START_ACTION|>",)
    spelled: tuple[str, ...] = ("<|START_ACTION|>", "<|END_ACTION|>")

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        for piece in text.split(self.marks[0])[1:]:
            listed, _ = first_json(piece.lstrip())
            for item in listed if isinstance(listed, list) else [listed]:
                if not isinstance(item, dict) or not isinstance(item.get("tool_name"), str):
                    raise UnreadableError
                yield item["tool_name"], item.get("parameters", {})

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin = f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "{name}", "parameters": '
        return [begin, schema, "}\n]<|END_ACTION|>"]


class CohereFenced(CohereActions):
    """Command R and R+: Action: and a list of {"tool_name": ..., "parameters": {...}} in a fence of Markdown."""

    marks = ("Action: ```json",)
    spelled = ()

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin = f'Action: ```json\n[\n    {{\n        "tool_name": "{name}",\n        "parameters": '
        return [begin, schema, "\n    }\n]\n```"]


class GemmaCalls(CallText):
    """Gemma 4: <|tool_call>call:name{key:value,...}<tool_call|>, strings between control tokens, keys without quotes.

    Inside of lists and objects its models write JSON too, so that strings in quotes are read as well.
    """

    _QUOTE = '<|"|>'
    marks = ("<|tool_call>",)
    spelled = ("<|tool_call>", "<tool_call|>", _QUOTE)
    _NAMED = re.compile(r"\s*call:\s*([\w-]+)\s*(?=\{)")
    _KEY = re.compile(r"\s*([^\s:,{}\[\]]+?)\s*:")
    _BARE = re.compile(r"[^,{}\[\]]+")

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        for piece in text.split("<|tool_call>")[1:]:
            found = self._NAMED.match(piece)
            if found is None:
                raise UnreadableError
            try:
                yield found[1], self._value(piece[found.end() :])[0]
            except RecursionError:
                raise UnreadableError from None

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"<|tool_call>call:{name}{{"]
        for i, (key, kind) in enumerate(needed(schema)):
            value = raw(kind)
            quoted = [self._QUOTE, value, self._QUOTE] if isinstance(value, re.Pattern) else [value]
            pieces += [f"{',' if i else ''}{key}:", *quoted]
        return [*pieces, "}<tool_call|>"]

    def _value(self, text: str) -> tuple[Any, str]:
        """The value that a text begins with, and the rest."""
        text = text.lstrip()
        if text.startswith(self._QUOTE):
            value, end, rest = text[len(self._QUOTE) :].partition(self._QUOTE)
            if not end:
                raise UnreadableError
            return value, rest
        if text.startswith('"'):
            return first_json(text)
        if text.startswith(("{", "[")):
            return self._members(text[1:], named=text[0] == "{")
        found = self._BARE.match(text)
        if found is None:
            raise UnreadableError
        return value_of(found[0].strip(), {}), text[found.end() :]

    def _members(self, text: str, *, named: bool) -> tuple[Any, str]:
        """The values of an object or a list, after its bracket, and the rest after the one that closes it."""
        keys: list[str] = []
        values: list[Any] = []
        closing = "}" if named else "]"
        while not (text := text.lstrip()).startswith(closing):
            if values:
                if not text.startswith(","):
                    raise UnreadableError
                text = text[1:]
            if named:
                key, text = self._key(text)
                keys.append(key)
            value, text = self._value(text)
            values.append(value)
        return dict(zip(keys, values, strict=True)) if named else values, text[1:]

    def _key(self, text: str) -> tuple[str, str]:
        found = self._KEY.match(text)
        if found is None:
            raise UnreadableError
        return found[1].replace(self._QUOTE, "").strip('"'), text[found.end() :]


class Harmony(CallText):
    """gpt-oss: messages in channels, of which one to functions.name is a call, and the final one is for the reader."""

    spelled = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")
    _MESSAGE = re.compile(r"([^<]*)<\|channel\|>(.*?)<\|message\|>(.*?)(?=<\|(?:end|call|return|start)\|>|$)", re.DOTALL)
    _TO = re.compile(r"to=functions\.([\w-]+)")

    def free(self, text: str) -> int:
        return 0  # which channel a text belongs to is known once the message has ended

    def read(self, text: str) -> tuple[str, Calls]:
        messages = self._MESSAGE.findall(text)
        if not messages:
            return text, []
        calls = list(self.calls(text))
        shown = ("final", "commentary")
        told = [body for before, head, body in messages if head.startswith(shown) and not self._TO.search(f"{before} {head}")]
        return "\n".join(told), calls

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        for before, head, body in self._MESSAGE.findall(text):
            if found := self._TO.search(f"{before} {head}"):
                yield found[1], _all_json(body)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", schema]


class TaggedArguments(CallText):
    """GLM 4.5 to 4.7: <tool_call>name, then <arg_key>key</arg_key> <arg_value>value</arg_value> for each argument."""

    marks = ("<tool_call>",)
    _HEAD = re.compile(r"\s*([\w-]+)\s*")
    _ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)

    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        for piece in text.split("<tool_call>")[1:]:
            found = self._HEAD.match(piece)
            if found is None:
                raise UnreadableError
            types = properties(self.functions.get(found[1], {}))
            arguments = self._ARGUMENT.findall(piece.partition("</tool_call>")[0])
            yield found[1], {key.strip(): value_of(value, types.get(key.strip(), {})) for key, value in arguments}

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"<tool_call>{name}\n"]
        for key, kind in needed(schema):
            pieces += [f"<arg_key>{key}</arg_key>\n<arg_value>", raw(kind), "</arg_value>\n"]
        return [*pieces, "</tool_call>"]


class TaggedFunctions(TaggedArguments):
    """Qwen3-Coder, Qwen3.5: <tool_call> <function=name> <parameter=key> value </parameter> ... </function> </tool_call>."""

    _HEAD = re.compile(r"\s*<function=([\w-]+)>\s*")
    _ARGUMENT = re.compile(r"<parameter=(.*?)>\n?(.*?)\n?</parameter>", re.DOTALL)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"<tool_call>\n<function={name}>\n"]
        for key, kind in needed(schema):
            pieces += [f"<parameter={key}>\n", raw(kind), "\n</parameter>\n"]
        return [*pieces, "</function>\n</tool_call>"]


# What a template that writes a kind of calls contains: all of the words; the first kind that fits is it.
_KINDS: tuple[tuple[tuple[str, ...], type[CallText]], ...] = (
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


def kind_of(template: str) -> type[CallText] | None:
    """The kind of calls that a chat template writes; None for one that is not known."""
    return next((kind for words, kind in _KINDS if all(word in template for word in words)), None)


def grammar(texts: list[Pieces]) -> str:
    """The Lark grammar of one of some texts."""
    rules = [f"start: {' | '.join(f'text{i}' for i in range(len(texts)))}"]
    for i, pieces in enumerate(texts):
        names = []
        for j, piece in enumerate(pieces):
            if isinstance(piece, str):
                names.append(json.dumps(piece, ensure_ascii=False))
                continue
            if isinstance(piece, re.Pattern):
                names.append(f"PIECE{i}_{j}")
                rules.append(f"{names[-1]}: /{piece.pattern}/")
            else:
                names.append(f"piece{i}_{j}")
                rules.append(f"{names[-1]}: %json {json.dumps({**piece, 'x-guidance': JSON_FORM})}")
        rules.append(f"text{i}: {' '.join(names)}")
    return "\n".join(rules) + "\n"


def loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableError from None


def first_json(text: str) -> tuple[Any, str]:
    """The JSON value that a text begins with, and the rest."""
    try:
        found, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        raise UnreadableError from None
    return found, text[end:]


def _all_json(text: str) -> Any:
    found, rest = first_json(text.strip())
    if rest.strip():
        raise UnreadableError
    return found


def _of_object(found: Any) -> tuple[str, Any]:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise UnreadableError
    return found["name"], found.get("arguments", found.get("parameters", {}))


def _object(name: str, key: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a call as an object; what the arguments' schema refers to by "#/$defs" stays in its reach."""
    inner = {k: v for k, v in schema.items() if k != "$defs"}
    whole = {"type": "object", "properties": {"name": {"const": name}, key: inner}, "required": ["name", key]}
    return {**whole, "additionalProperties": False, **({"$defs": schema["$defs"]} if "$defs" in schema else {})}


def properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def needed(schema: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The arguments that a forced call has: those that are required, or all."""
    known, required = properties(schema), schema.get("required")
    names = [name for name in required if name in known] if isinstance(required, list) else list(known)
    return [(name, known[name] if isinstance(known[name], dict) else {}) for name in names]


def raw(schema: dict[str, Any]) -> dict[str, Any] | re.Pattern[str]:
    """How a value is written between tags: a string without quotes, anything else as JSON."""
    if "enum" in schema and all(isinstance(value, str) for value in schema["enum"]):
        return re.compile("|".join(re.escape(value).replace("/", r"\/") for value in schema["enum"]))
    return re.compile(r"[^<]+") if schema.get("type") == "string" else schema


def value_of(text: str, schema: Any) -> Any:
    """The value between tags: as it stands where a string is expected, or what is no JSON."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return loaded(text)
    except UnreadableError:
        return text
