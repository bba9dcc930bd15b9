"""The tools of ``decodestep chat``: functions of a file, called after a question to the user."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from decodestep._base.checks import Phrase, refuse
from decodestep.chat import call_function, describe_function

Functions = dict[str, Callable[..., Any]]

_REFUSED = "The user has not allowed this call."


def load_functions(path: str) -> Functions:
    """The functions of a file, by their names: those in its ``__all__``, or else its own whose names begin with no underscore.

    Runs the file. Raises what that raises, and RequestError if it has none that can be tools.
    """
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        refuse("chat", "tools", "a file of Python, FILE.py", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    named = getattr(module, "__all__", None)
    own = [name for name, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module.__name__]
    names = [name for name in own if not name.startswith("_")] if named is None else list(named)
    found = {name: getattr(module, name) for name in names}
    if not found:
        refuse("chat", "tools", "a file with functions", Phrase(f"none in {path}"))
    for function in found.values():
        describe_function(function)  # what cannot be a tool is refused now
    return found


def show_call(call: Mapping[str, Any]) -> str:
    """A call as Python writes it; as the model has written it if its arguments are no JSON object."""
    name, text = call["function"]["name"], call["function"]["arguments"]
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return f"{name}({text})"
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def answer_calls(functions: Functions, calls: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """The messages that answer calls: the results of their functions, as far as the user allows them, or what they have raised;
    and whether the conversation goes on: Ctrl-C and Ctrl-D at a question refuse the rest, and end it."""
    messages: list[dict[str, Any]] = []
    goes_on = True
    for call in calls:
        result = _REFUSED
        try:
            if goes_on and input(f"call {show_call(call)}? [y/N] ").strip().lower() in ("y", "yes"):
                result = _result(functions[call["function"]["name"]], call)
        except (EOFError, KeyboardInterrupt):
            goes_on = False
            print()
        print(f"= {result}")
        messages.append({"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": result})
    return messages, goes_on


def _result(function: Callable[..., Any], call: Mapping[str, Any]) -> str:
    try:
        result = call_function(function, call["function"]["arguments"])
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    except Exception as error:  # the model is told, and may call it in another way
        return f"{type(error).__name__}: {error}"
