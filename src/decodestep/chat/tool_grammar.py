"""The grammars of responses with function calls, in llguidance's kind of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from decodestep.chat.reasoning import THINK, ReasoningFormat
from decodestep.chat.tool_call_format import Pieces
from decodestep.constraints.grammar import line_of

# Of JSON, after reasoning or a call; without a limit a row at a high temperature might write nothing else.
_SPACE = r"SPACE: /[ \t\r\n]{0,2}/"


class Thought(NamedTuple):
    """The reasoning with which an answer begins.

    format: its marks, and those of the answer after it. begun: whether the prompt has the opening one; otherwise it may be left
    out. off: whether nothing stands before a constrained text.
    """

    format: ReasoningFormat = THINK
    begun: bool = False
    off: bool = True


def one_call(texts: list[Pieces], thought: Thought | None = None) -> str:
    """The Lark grammar that accepts any one of the texts, after the reasoning."""
    before, rules = _before(thought or Thought())
    return "\n".join([f"start: {before}call", *rules, *_any_of("call", texts)]) + "\n"


def answer_or_calls(
    texts: list[Pieces], answer: dict[str, Any], thought: Thought | None = None, *, begin: str = "", several: bool = False
) -> str:
    """The Lark grammar that accepts JSON of a schema, or one or several of the texts, after the reasoning.

    begin: what the format of the texts has before an answer.
    """
    thought = thought or Thought()
    before, rules = _before(thought)
    around = (thought.format.answer, thought.format.answer_ends)
    marks, ends = (" ".join(f"{_literal(mark)}?" for mark in each) for each in around)
    told = " ".join(filter(None, [marks, begin and _literal(begin), "answer", ends]))
    calls = " | call (SPACE call)* SPACE" if texts and several else " | call" if texts else ""
    rules = [*(rules or [_SPACE]), _json_rule("answer", answer), *(_any_of("call", texts) if texts else ())]
    return "\n".join([f"start: {before}({told}{calls})", *rules]) + "\n"


def text_or_calls(
    texts: list[Pieces], marks: tuple[str, ...], hidden: Iterable[int], thought: Thought | None = None, *, several: bool
) -> str:
    """The Lark grammar of any text, and one or several calls at its end: a mark begins one of the texts, which have all marks.

    hidden: the tokens without text, which may occur before the calls. thought: in which marks begin nothing; it may stand there
    also where it is off.
    """
    thought = thought or Thought()
    rules = [*_thought_rules(thought), "PLAIN: TEXT & ~OPENED"]
    for i, mark in enumerate(marks):
        rules += [f"opening{i}[lazy]: PLAIN {_literal(mark)}", f"AGAIN{i}: SPACE {_literal(mark)}"]
        rules += _any_of(f"call{i}", [_after(mark, pieces) for pieces in texts])
    first, more = (" | ".join(f"{begin}{i} call{i}" for i in range(len(marks))) for begin in ("opening", "AGAIN"))
    calls = f"({first}) ({more})* SPACE" if several else first
    ids = ",".join(map(str, hidden))
    free = f"(TEXT <[{ids}]>)* " if ids else ""
    answer = f"TEXT | {calls}"
    start = f"{free}({'TEXT' if thought.begun else answer} | thought {free}({answer}))"
    return "\n".join([f"start: {start}", *rules]) + "\n"


def _before(thought: Thought) -> tuple[str, list[str]]:
    """What stands before a constrained text, with its rules. Reasoning that has begun must be closed."""
    if thought.off:
        return "", []
    joint = _literal("<|start|>assistant") if thought.format.in_messages else "SPACE"
    times = "" if thought.begun else "*" if thought.format.repeats else "?"
    return f"(thought {joint}){times} ", _thought_rules(thought)


def _thought_rules(thought: Thought) -> list[str]:
    """The rules of reasoning with its marks; its first closing mark ends it."""
    # All of the space that readers allow there.
    opened = rf"OPENED: /[\s\x1c-\x1f]*/ {_literal(thought.format.opening)} TEXT"
    closed = f"thought[lazy]: {'TEXT' if thought.begun else 'OPENED'} {_literal(thought.format.closing)}"
    return [r"TEXT: /(.|\n)*/", _SPACE, opened, closed]


def text_at(grammar: str, error: str) -> int | None:
    """Which of the texts a compiler's error is about, by the line that it names; None if it is about none."""
    line = re.match(r"at (\d+)\(", error)
    rule = line and re.match(r"call\d*_(\d+)", grammar.split("\n")[line_of(grammar, int(line[1])) - 1])
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
