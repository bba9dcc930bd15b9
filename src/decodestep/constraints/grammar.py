"""llguidance's grammar of a JSON schema, a regular expression or a grammar, tried out first if it may be costly."""

from __future__ import annotations

from functools import lru_cache

from decodestep._base.checks import Words, refuse
from decodestep.constraints.gbnf.lark import lark_of
from decodestep.constraints.gbnf.syntax import is_lark
from decodestep.constraints.json_schema import check, check_embedded, enforceable, require_whole, short
from decodestep.constraints.trial import try_out

_MOST_CHARACTERS = 2**18  # of a schema, an expression or a grammar
# Schemas with these keywords, and all grammars, are compiled on trial: they may intersect expressions, which has no limit.
_COSTLY = ("multipleOf", "allOf", "$ref", "pattern")


@lru_cache(maxsize=8)
def grammar_of(language: str, text: str) -> str:
    """The grammar of a constraint; cached for all samples of a request.

    Raises ValueError for one that is too long, wrong, not supported, or too expensive to compile.
    """
    if len(text) > _MOST_CHARACTERS:
        refuse("SamplingParams", language, f"at most {_MOST_CHARACTERS} characters", len(text))
    costly = language == "grammar"
    if language == "grammar" and is_lark(text):
        check_embedded(text)
    if language == "regex":
        require_whole(language, text)
    if language == "json_schema":
        text = check(text)
        costly = any(word in text for word in _COSTLY)  # before formats become patterns, which are cheap
        text = enforceable(text)
    grammar = _to_lark(language, text)
    if costly:
        try_out(language, grammar)
    return grammar


def _to_lark(language: str, text: str) -> str:
    from llguidance import LLMatcher

    try:
        if language == "json_schema":
            return str(LLMatcher.grammar_from_json_schema(text))
        if language == "regex":
            return str(LLMatcher.grammar_from_regex(text))
        return str(LLMatcher.grammar_from_lark(text if is_lark(text) else lark_of(text)))
    except Exception as error:  # the converter raises what it pleases
        refuse("SamplingParams", language, "one that can be compiled", Words(short(str(error))))
