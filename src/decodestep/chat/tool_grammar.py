"""The grammars of responses with function calls, in llguidance's kind of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from decodestep.chat.reasoning import ReasoningFormat
from decodestep.chat.tool_call_format import Pieces

_SPACE = r"SPACE: /\s{0,2}/"  # after a call; without a limit a row at a high temperature might write nothing else


def one_call(texts: list[Pieces]) -> str:
    """The Lark grammar that accepts any one of the texts."""
    return "\n".join(["start: call", *_any_of("call", texts)]) + "\n"


def answer_or_calls(texts: list[Pieces], answer: dict[str, Any], *, several: bool) -> str:
    """The Lark grammar that accepts JSON of a schema, or one or several of the texts."""
    start = "answer | call (SPACE call)* SPACE" if several else "answer | call"
    return "\n".join([f"start: {start}", _SPACE, _json_rule("answer", answer), *_any_of("call", texts)]) + "\n"


def text_or_calls(
    texts: list[Pieces],
    marks: tuple[str, ...],
    hidden: Iterable[int],
    *,
    several: bool,
    reasoning: ReasoningFormat,
    in_reasoning: bool,
) -> str:
    """The Lark grammar of any text, and one or several calls at its end: a mark begins one of the texts, which have all marks.

    hidden: the tokens without text, which may occur before the calls. reasoning: that at the beginning, in which marks begin
    nothing. in_reasoning: whether the text begins within it.
    """
    opening, closing = _literal(reasoning.opening), _literal(reasoning.closing)
    rules = [
        r"TEXT: /(.|\n)*/",
        _SPACE,
        rf"REASONING: /\s*/ {opening} TEXT",
        f"reasoning[lazy]: {'TEXT' if in_reasoning else 'REASONING'} {closing}",
        "PLAIN: TEXT & ~REASONING",
    ]
    for i, mark in enumerate(marks):
        rules += [f"opening{i}[lazy]: PLAIN {_literal(mark)}", f"AGAIN{i}: SPACE {_literal(mark)}"]
        rules += _any_of(f"call{i}", [_after(mark, pieces) for pieces in texts])
    first, more = (" | ".join(f"{begin}{i} call{i}" for i in range(len(marks))) for begin in ("opening", "AGAIN"))
    calls = f"({first}) ({more})* SPACE" if several else first
    ids = ",".join(map(str, hidden))
    free = f"(TEXT <[{ids}]>)* " if ids else ""
    answer = f"TEXT | {calls}"
    start = f"{free}({'TEXT' if in_reasoning else answer} | reasoning {free}({answer}))"
    return "\n".join([f"start: {start}", *rules]) + "\n"


def text_at(grammar: str, error: str) -> int | None:
    """Which of the texts a compiler's error is about, by the line that it names; None if it is about none."""
    line = re.match(r"at (\d+)\(", error)
    rule = line and re.match(r"call\d*_(\d+)", grammar.split("\n")[int(line[1]) - 1])
    return int(rule[1]) if rule else None


def _any_of(name: str, texts: list[Pieces]) -> list[str]:
    """The rules of a name that stands for any one of the texts."""
    rules = [f"{name}: {' | '.join(f'{name}_{i}' for i in range(len(texts)))}"]
    for i, pieces in enumerate(texts):
        names = []
        for j, piece in enumerate(pieces):
            if isinstance(piece, re.Pattern):
                # One terminal with the literal after it: alone it would also match how the literal begins, or go beyond it.
                names.append(f"{name}_{i}_{j}")
                rules.append(f"{names[-1]}[lazy]: /{piece.pattern}/ {_literal(pieces[j + 1])}")
            elif isinstance(piece, dict):
                names.append(f"{name}_{i}_{j}")
                rules.append(_json_rule(names[-1], piece))
            elif not (j and isinstance(pieces[j - 1], re.Pattern)):
                names.append(_literal(piece))
        rules.append(f"{name}_{i}: {' '.join(names)}")
    return rules


def _json_rule(name: str, schema: dict[str, Any]) -> str:
    return f"{name}: %json {json.dumps(schema)}"


def _literal(text: object) -> str:
    return json.dumps(text, ensure_ascii=False)


def _after(mark: str, pieces: Pieces) -> Pieces:
    """What follows a mark in the text of a call."""
    first, *rest = pieces
    assert isinstance(first, str)
    return [first.partition(mark)[2], *rest]
