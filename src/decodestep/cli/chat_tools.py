"""The tools of ``decodestep chat``: functions of a file, called after a question to the user."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Callable, Mapping
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


def answer_call(functions: Functions, call: Mapping[str, Any]) -> dict[str, Any]:
    """The message that answers a call: the result of its function, if the user allows it; or what it has raised."""
    result = _result(functions[call["function"]["name"]], call) if _is_allowed(call) else _REFUSED
    return {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": result}


def _is_allowed(call: Mapping[str, Any]) -> bool:
    try:
        return input(f"call {show_call(call)}? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()
        return False


def _result(function: Callable[..., Any], call: Mapping[str, Any]) -> str:
    try:
        result = call_function(function, call["function"]["arguments"])
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    except KeyboardInterrupt:
        return "The user has interrupted this call."
    except Exception as error:  # the model is told, and may call it in another way
        return f"{type(error).__name__}: {error}"
