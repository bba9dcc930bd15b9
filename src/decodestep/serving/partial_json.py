"""The arguments of a call that may have been cut."""

from __future__ import annotations

import re
from typing import Any

from decodestep.chat.text_feed import UnreadableError
from decodestep.chat.tool_json import parse

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*("?)\\?|[{}\[\]:,]|[^\s"{}\[\]:,]+')
_CLOSING = {"{": "}", "[": "]"}


def complete_part(text: str) -> dict[str, Any]:
    """The object that a JSON text is, or as much of one as is complete in a text that was cut; {} if that is nothing.

    A list that was cut has its complete items. A number or a word at the end is not complete: it may go on.
    """
    found, unclosed = "", ""  # the text up to the last complete value; what closes it
    closing: list[str] = []
    is_key = False
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in _CLOSING:
            closing.append(_CLOSING[mark])
            is_key = mark == "{"
        elif mark == ",":
            is_key = closing[-1:] == ["}"]
            continue
        elif mark == ":":
            is_key = False
            continue
        elif mark in ("}", "]"):
            if not closing or closing.pop() != mark:
                break
        elif is_key or (not token[1] and token.end() == len(text)):
            continue
        found, unclosed = text[: token.end()], "".join(reversed(closing))
    try:
        value = parse(found + unclosed)
    except UnreadableError:
        return {}
    return value if isinstance(value, dict) else {}
