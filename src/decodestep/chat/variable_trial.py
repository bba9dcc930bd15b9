"""Which variable a chat template refuses for its value, found by rendering a small conversation with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from decodestep.errors import ModelError, TemplateProcessError

if TYPE_CHECKING:
    from decodestep.chat.template import ChatModel

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # those of OpenAI's API
_MOST_WORDS = 32  # of a template that are tried
_HELLO = [{"role": "user", "content": "Hello"}]


class RefusedVariable(NamedTuple):
    """A variable whose value a template refuses. known: the values that it takes, of those that it compares the variable with
    and, for an effort, those of OpenAI's API."""

    name: str
    known: tuple[str, ...]


def refused_variable(model: ChatModel, variables: Mapping[str, Any]) -> RefusedVariable | None:
    """The first of the variables without which the model's template writes a conversation that it refuses with all of them."""
    if not variables or _renders(model, variables):
        return None
    for name in variables:
        others = {key: value for key, value in variables.items() if key != name}
        if _renders(model, others):
            known = (word for word in _words(model.template.text(), name) if _renders(model, {**others, name: word}))
            return RefusedVariable(name, tuple(known))
    return None


def _words(template: str, name: str) -> list[str]:
    """The words in quotes in the lines of a template that name a variable; before them, those that many know."""
    lines = (line for line in template.splitlines() if name in line)
    found = dict.fromkeys(word for line in lines for word in re.findall(r"""(?:'|")(\w{1,32})(?:'|")""", line))
    return list(dict.fromkeys((*(_EFFORTS if name.endswith("effort") else ()), *found)))[:_MOST_WORDS]


def _renders(model: ChatModel, variables: Mapping[str, Any]) -> bool:
    try:
        return bool(model.chat_prompt(_HELLO, **variables))
    except TemplateProcessError:  # which says nothing of the template
        raise
    except ModelError:
        return False
