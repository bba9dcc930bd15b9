"""The base class of function-call formats, and how JSON in calls is parsed and constrained."""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from decodestep.sampling.constraint import JSON_FORM
from decodestep.sampling.json_schema import checked, enforceable

Calls = list[tuple[str, Any]]  # the name and the arguments of each
Functions = Mapping[str, Mapping[str, Any]]  # the JSON schema of each function's arguments
# The parts of a constrained text: literal text, JSON that matches a schema, or a regular expression with literal text after it.
Pieces = list[str | dict[str, Any] | re.Pattern[str]]
_SPACE = r"SPACE: /\s{0,2}/"  # after a call; without a limit a row at a high temperature might write nothing else


class UnreadableError(ValueError):
    """The text looks like calls but cannot be parsed."""


class CallText(ABC):
    """A format of function calls. functions: those that may be called.

    marks: strings that begin a call, anywhere in the text. always_marked: whether nothing else begins one, and `call` contains
    all of them. spelled: the names of the control tokens that calls contain.
    """

    marks: tuple[str, ...] = ()
    always_marked: bool = True
    spelled: tuple[str, ...] = ()

    def __init__(self, functions: Functions) -> None:
        self.functions = functions

    def free(self, text: str) -> int:
        """How many characters of the text so far cannot belong to a call or to the whitespace before one."""
        found = [at for mark in self.marks if (at := text.find(mark)) >= 0]
        if found:
            return len(text[: min(found)].rstrip())
        kept = max(n for mark in self.marks for n in range(len(mark)) if text.endswith(mark[:n]))
        return len(text[: len(text) - kept].rstrip())

    def read(self, text: str) -> tuple[str, Calls]:
        """The visible text and the calls. Raises UnreadableError."""
        at = min((at for mark in self.marks if (at := text.find(mark)) >= 0), default=len(text))
        calls = list(self.calls(text[at:]))
        if at < len(text) and not calls:
            raise UnreadableError
        return text[:at].rstrip(), calls

    def new_id(self, name: str, number: int) -> str:
        """An id that the chat template accepts when the call comes back. number: of the calls before it in the conversation."""
        return f"call_{secrets.token_hex(12)}"

    @abstractmethod
    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        """The calls of a text that begins with a mark, or is empty. Raises UnreadableError."""

    @abstractmethod
    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        """The whole text of one call."""


def one_call(texts: list[Pieces]) -> str:
    """The Lark grammar that accepts any one of the texts."""
    return "\n".join(["start: call", *_any_of("call", texts)]) + "\n"


def answer_or_calls(texts: list[Pieces], answer: dict[str, Any], *, several: bool) -> str:
    """The Lark grammar that accepts JSON of a schema, or one or several of the texts."""
    start = "answer | call (SPACE call)* SPACE" if several else "answer | call"
    return "\n".join([f"start: {start}", _SPACE, _json_rule("answer", answer), *_any_of("call", texts)]) + "\n"


def text_or_calls(texts: list[Pieces], marks: tuple[str, ...], hidden: Iterable[int], *, several: bool) -> str:
    """The Lark grammar of any text, and one or several calls at its end: a mark begins one of the texts, which have all marks.

    hidden: the tokens without text, which may occur before the calls.
    """
    rules = [r"TEXT: /(.|\n)*/", _SPACE]
    for i, mark in enumerate(marks):
        rules += [f"opening{i}[lazy]: TEXT {_quoted(mark)}", f"AGAIN{i}: SPACE {_quoted(mark)}"]
        rules += _any_of(f"call{i}", [_after(mark, pieces) for pieces in texts])
    first, more = (" | ".join(f"{begin}{i} call{i}" for i in range(len(marks))) for begin in ("opening", "AGAIN"))
    calls = f"({first}) ({more})* SPACE" if several else first
    ids = ",".join(map(str, hidden))
    free = f"(TEXT <[{ids}]>)* " if ids else ""
    return "\n".join([f"start: {free}(TEXT | {calls})", *rules]) + "\n"


def _any_of(name: str, texts: list[Pieces]) -> list[str]:
    """The rules of a name that stands for any one of the texts."""
    rules = [f"{name}: {' | '.join(f'{name}_{i}' for i in range(len(texts)))}"]
    for i, pieces in enumerate(texts):
        names = []
        for j, piece in enumerate(pieces):
            if isinstance(piece, re.Pattern):
                # One terminal with the literal after it: alone it would also match how the literal begins.
                names.append(f"{name}_{i}_{j}".upper())
                rules.append(f"{names[-1]}: /{piece.pattern}/ {_quoted(pieces[j + 1])}")
            elif isinstance(piece, dict):
                names.append(f"{name}_{i}_{j}")
                rules.append(_json_rule(names[-1], piece))
            elif not (j and isinstance(pieces[j - 1], re.Pattern)):
                names.append(_quoted(piece))
        rules.append(f"{name}_{i}: {' '.join(names)}")
    return rules


def _json_rule(name: str, schema: dict[str, Any]) -> str:
    return f"{name}: %json {enforceable(checked(json.dumps({**schema, 'x-guidance': JSON_FORM})))}"


def _quoted(text: Any) -> str:
    return json.dumps(text, ensure_ascii=False)


def _after(mark: str, pieces: Pieces) -> Pieces:
    """What follows a mark in the text of a call."""
    first, *rest = pieces
    assert isinstance(first, str)
    return [first.partition(mark)[2], *rest]


def loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableError from None


def first_json(text: str) -> tuple[Any, str]:
    """The JSON value at the start of a text, and the rest."""
    try:
        found, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        raise UnreadableError from None
    return found, text[end:]


def all_json(text: str) -> Any:
    found, rest = first_json(text.strip())
    if rest.strip():
        raise UnreadableError
    return found


def of_object(found: Any) -> tuple[str, Any]:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise UnreadableError
    return found["name"], arguments_in(found)


def arguments_in(found: Mapping[str, Any]) -> Any:
    arguments = found.get("arguments", found.get("parameters"))
    if isinstance(arguments, str) and arguments:  # some models write them as in OpenAI's responses
        arguments = loaded(arguments)
    return {} if arguments in (None, "") else arguments


def object_of(name: str, key: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a call as an object; the arguments' schema gets an $id, so that "#" in it still refers to its own root."""
    inner = {"$id": f"tool:{name}", **schema}
    whole = {"type": "object", "properties": {"name": {"const": name}, key: inner}, "required": ["name", key]}
    return {**whole, "additionalProperties": False}


def properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def needed(schema: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The arguments of a constrained call: the required ones, or all if the schema does not say."""
    known, required = properties(schema), schema.get("required")
    names = [name for name in known if name in required] if isinstance(required, list) else list(known)
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return [(name, {**known[name], **shared} if isinstance(known[name], dict) else {}) for name in names]


def raw(schema: dict[str, Any]) -> dict[str, Any] | re.Pattern[str]:
    """The form of a value between tags: a string without quotes, anything else as JSON."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return re.compile("|".join(re.escape(value).replace("/", r"\/").replace("\n", "n") for value in values))
    return re.compile(r"[^<]+") if schema.get("type") == "string" else schema


def value_of(text: str, schema: Any) -> Any:
    """The value between tags: verbatim if a string is expected or it is not JSON, else parsed."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return loaded(text)
    except UnreadableError:
        return text
