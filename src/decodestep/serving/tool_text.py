"""The base class of function-call formats, and how JSON in calls is parsed and constrained."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from decodestep.sampling.constraint import JSON_FORM

Calls = list[tuple[str, Any]]  # the name and the arguments of each
Functions = Mapping[str, Mapping[str, Any]]  # the JSON schema of each function's arguments
# The parts of a constrained text: literal text, JSON that matches a schema, or a regular expression.
Pieces = list[str | dict[str, Any] | re.Pattern[str]]


class UnreadableError(ValueError):
    """The text looks like calls but cannot be parsed."""


class CallText(ABC):
    """A format of function calls. functions: those that may be called.

    marks: strings that begin a call, anywhere in the text. spelled: the names of the control tokens that calls contain.
    """

    marks: tuple[str, ...] = ()
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

    @abstractmethod
    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        """The calls of a text that begins with a mark, or is empty. Raises UnreadableError."""

    @abstractmethod
    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        """The whole text of one call."""


def grammar(texts: list[Pieces]) -> str:
    """The Lark grammar that accepts any one of the texts."""
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
    return found["name"], found.get("arguments", found.get("parameters", {}))


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
    names = [name for name in required if name in known] if isinstance(required, list) else list(known)
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
