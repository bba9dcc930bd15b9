"""Tools: how a model is told about them, and how its calls are read from its text."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decodestep.sampling.constraint import JSON_FORM
from decodestep.serving.errors import refusal

if TYPE_CHECKING:
    from decodestep.models import Model

# How a call begins and ends in the formats that are known, by what a template that writes them contains.
_MARKS = {"<tool_call>": ("<tool_call>\n", "\n</tool_call>")}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TOLD = """\
You may call functions to help with the user's request. Their signatures:
<tools>
{tools}
</tools>
For a call, answer with its name and arguments as JSON:
<tool_call>
{{"name": <name>, "arguments": <object>}}
</tool_call>"""


@dataclass(frozen=True)
class ToolFormat:
    """How the calls of a model look: JSON objects with "name" and "arguments" between two marks.

    of_template: whether the chat template tells the model about tools; else a system message does, in the same format.
    names: the functions that may be called. definitions: as the request gave them.
    """

    begin: str
    end: str
    of_template: bool
    names: frozenset[str]
    definitions: tuple[Any, ...]

    @property
    def mark(self) -> str:
        """What a text with a call contains, and no other."""
        return self.begin.strip()

    def told(self, conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The conversation with the functions in its system message."""
        text = _TOLD.format(tools="\n".join(json.dumps(tool) for tool in self.definitions))
        usual = [self._as_text(message) for message in conversation]
        if usual and usual[0]["role"] == "system":
            return [{**usual[0], "content": f"{usual[0]['content']}\n\n{text}"}, *usual[1:]]
        return [{"role": "system", "content": text}, *usual]

    def calls(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """The text before the first call, and the calls as a response has them; all of it is text if one cannot be read."""
        before, *rest = text.split(self.mark)
        found = []
        for piece in rest:
            call = _json(piece.partition(self.end.strip())[0])
            if not isinstance(call, dict) or call.get("name") not in self.names:
                return text, []
            arguments = call.get("arguments", {})
            given = {"name": call["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
            found.append({"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": given})
        return (before.strip(), found) if found else (text, [])

    def grammar(self, only: str | None = None) -> str:
        """The Lark grammar of one call, of the function of that name if it is given."""
        choices = []
        for tool in self.definitions:
            function = tool["function"]
            if only in (None, function["name"]):
                fields = {"name": {"const": function["name"]}, "arguments": function.get("parameters") or {"type": "object"}}
                choices.append(
                    {"type": "object", "properties": fields, "required": ["name", "arguments"], "additionalProperties": False}
                )
        schema = {**(choices[0] if len(choices) == 1 else {"anyOf": choices}), "x-guidance": JSON_FORM}
        return f"start: {json.dumps(self.begin)} call {json.dumps(self.end)}\ncall: %json {json.dumps(schema)}\n"

    def _as_text(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message as a template without tools writes it."""
        if message["role"] == "tool":
            return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
        calls = message.get("tool_calls") or ()
        texts = [self.begin + json.dumps({key: call["function"].get(key) for key in ("name", "arguments")}) + self.end
                 for call in calls]  # fmt: skip
        kept = {key: value for key, value in message.items() if key != "tool_calls"}
        return {**kept, "content": "\n".join(filter(None, (message["content"], *texts)))}


def read(model: Model, body: Mapping[str, Any]) -> tuple[ToolFormat | None, dict[str, Any]]:
    """The format of a request's tools, and what tool_choice makes of the params."""
    definitions, choice = body.get("tools"), body.get("tool_choice")
    if not isinstance(body.get("parallel_tool_calls"), bool | None):
        raise refusal("parallel_tool_calls", "a bool")
    if not definitions:
        if choice not in (None, "none", "auto"):
            raise refusal("tool_choice", "none or auto without tools")
        return None, {}
    names = _names(definitions)
    if choice == "none":
        return None, {}
    template = model.template.text(tools=True)
    marks = next((marks for word, marks in _MARKS.items() if word in template), None)
    begin, end = marks or _MARKS["<tool_call>"]
    format_ = ToolFormat(begin, end, marks is not None, frozenset(names), tuple(definitions))
    if choice in (None, "auto"):
        return format_, {}
    if choice == "required":
        return format_, {"grammar": format_.grammar()}
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict) or function.get("name") not in names:
        raise refusal("tool_choice", 'none, auto, required or {"type": "function", "function": {"name": one of the tools}}')
    return format_, {"grammar": format_.grammar(function["name"])}


def _names(definitions: Any) -> list[str]:
    rule = 'a list of {"type": "function", "function": {"name", "description", "parameters"}}'
    functions = [tool.get("function") if isinstance(tool, dict) else None for tool in _as_list(definitions)]
    names = [function.get("name") if isinstance(function, dict) else None for function in functions]
    if not names or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        raise refusal("tools", rule)
    if not all(isinstance(function.get("parameters") or {}, dict) for function in functions if function):
        raise refusal("tools", rule)
    return [str(name) for name in names]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
