"""llguidance's grammar of a JSON schema, a regular expression or a grammar, tried out first if it may be costly."""

from __future__ import annotations

import json
import re
from functools import lru_cache

from decodestep._base.checks import Phrase, refuse
from decodestep.constraints.gbnf.lark import gbnf_to_lark
from decodestep.constraints.gbnf.syntax import is_lark
from decodestep.constraints.json_schema import require_whole, schema_rules
from decodestep.constraints.schemas.leaves import literal
from decodestep.constraints.trial import short, try_out
from decodestep.errors import RequestError

ORDERS = ("schema", "any")  # of the properties of an object
_MOST_CHARACTERS = 2**18  # of a schema, an expression or a grammar
# A schema's place in Lark; before it, what may have the same characters: a string, an expression, a comment.
_EMBEDDED = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/|%json\s*')


@lru_cache(maxsize=8)
def compile_grammar(language: str, text: str | tuple[str, ...], *, closed: bool = True, order: str = "schema") -> str:
    """The grammar of a constraint; cached for all samples of a request.

    closed, order: how schemas are read, also those within a grammar: as in `schema_rules`.
    Raises ValueError for one that is too long, wrong, not supported, or too expensive to compile.
    """
    if (length := sum(map(len, text))) > _MOST_CHARACTERS:
        refuse("SamplingParams", language, f"at most {_MOST_CHARACTERS} characters", length)
    if not isinstance(text, str):
        lark = f"start: CHOICE\nCHOICE: {' | '.join(map(literal, text))}"
    elif language == "json_schema":
        lark = "\n".join(["start: json", *schema_rules(text, "json", closed=closed, order=order)])
    elif language == "grammar":
        lark = _with_schemas_as_rules(text, closed=closed, order=order)[0] if is_lark(text) else text
    else:
        require_whole(language, text)
        lark = text
    grammar = _compiled(language, lark)
    if language == "grammar":  # which may intersect expressions, at a cost without limit; parts of schemas were tried out alone
        try_out(language, grammar)
    return grammar


def line_of(grammar: str, number: int, *, closed: bool = True, order: str = "schema") -> int:
    """The line of a grammar in Lark that a line of what is compiled is about: a schema's rules are about the schema's place."""
    written = grammar.count("\n") + 1
    return number if number <= written else _with_schemas_as_rules(grammar, closed=closed, order=order)[1][number - written - 1]


def _with_schemas_as_rules(lark: str, *, closed: bool, order: str) -> tuple[str, list[int]]:
    """A grammar whose schemas are rules of it, at its end, so that the lines before keep their numbers; and of each line of the
    rules, the line in which its schema begins."""
    prefix = "json"
    while prefix in lark.lower().replace("%json", ""):
        prefix += "x"
    pieces, rules, last, places = list[str](), list[str](), 0, list[int]()
    for place in _EMBEDDED.finditer(lark):
        if not place[0].startswith("%json"):
            continue
        try:
            schema, end = json.JSONDecoder().raw_decode(lark, place.end())
        except (ValueError, RecursionError):  # which llguidance refuses, with its line
            continue
        name = f"{prefix}{len(pieces)}"
        try:
            written = schema_rules(json.dumps(schema), name, closed=closed, order=order)
        except RequestError as error:
            refuse("SamplingParams", "grammar", error.rule, Phrase(error.got))
        rules += written
        places += [lark.count("\n", 0, place.start()) + 1] * ("\n".join(written).count("\n") + 1)
        pieces += [lark[last : place.start()], name, "\n" * lark.count("\n", place.start(), end)]
        last = end
    return "\n".join(["".join([*pieces, lark[last:]]), *rules]), places


def _compiled(language: str, text: str) -> str:
    from llguidance import LLMatcher

    try:
        if language == "regex":
            return str(LLMatcher.grammar_from_regex(text))
        return str(LLMatcher.grammar_from_lark(gbnf_to_lark(text) if language == "grammar" and not is_lark(text) else text))
    except Exception as error:  # the converter raises what it pleases
        refuse("SamplingParams", language, "one that can be compiled", Phrase(short(str(error))))
