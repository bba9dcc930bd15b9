"""The arguments of a call that may have been cut."""

from __future__ import annotations

import re
from typing import Any

from decodestep.chat.text_feed import UnreadableError
from decodestep.chat.tool_json import parse

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*("?)\\?|[{}\[\]:,]|[^\s"{}\[\]:,]+')
# Of a string, without the beginning of an escape, and half a pair of surrogates, at the end of the text.
_BEGUN = re.compile(r'"(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z)[0-9a-fA-F]{4})*')
_CLOSING = {"{": "}", "[": "]"}


def complete_part(text: str, *, begun: bool = False) -> dict[str, Any]:
    """The object that a JSON text is, or as much of one as is complete in a text that was cut; {} if that is nothing.

    A list that was cut has its complete items. A number or a word at the end is not complete: it may go on. Nor is a string.
    begun: whether what has come of it, up to its last whole character, is a value all the same.
    """
    end, quote = 0, ""  # of the last complete value, and what ends that there
    closing: list[str] = []  # what closes the text there
    is_key = False
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in _CLOSING:
            closing.append(_CLOSING[mark])
            is_key = mark == "{"
        elif mark in (",", ":"):
            is_key = mark == "," and closing[-1:] == ["}"]
            continue
        elif mark in ("}", "]"):
            if closing[-1:] != [mark]:
                break
            closing.pop()
        elif not is_key and begun and mark[0] == '"' and not token[1] and (found := _BEGUN.match(text, token.start())):
            end, quote = found.end(), '"'
            continue
        elif is_key or (not token[1] and token.end() == len(text)):
            continue
        end = token.end()
    try:
        value = parse(text[:end] + quote + "".join(reversed(closing)))
    except UnreadableError:
        return {}
    return value if isinstance(value, dict) else {}
