"""llguidance's grammar of a JSON schema, a regular expression or a grammar, tried out first if it may be costly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from decodestep._base.checks import Words, refuse
from decodestep.sampling import constraint_worker
from decodestep.sampling.gbnf.lark import lark_of
from decodestep.sampling.gbnf.syntax import is_lark
from decodestep.sampling.json_schema import JSON_FORM, check, enforceable, require_whole, short

# The limits for untrusted schemas: half of llguidance's default limits on work, and about 100 MB of states instead of 500.
LIMITS = {"initial_lexer_fuel": 500_000, "step_lexer_fuel": 100_000, "max_lexer_states": 50_000, "verbose_errors": False}
_MOST_CHARACTERS = 2**18  # of a schema, an expression or a grammar
# Schemas with these keywords, and all grammars, are compiled on trial: they may intersect expressions, which has no limit.
_COSTLY = ("multipleOf", "allOf", "$ref", "pattern")
# Limits of a trial: bytes beyond the imports, seconds of processor time. Ordinary schemas take 1 MB and milliseconds.
_TRIAL_MEMORY, _TRIAL_SECONDS = 64 << 20, 2.0
_TRIAL_WAIT = 60.0  # seconds for the whole process, on however busy a machine


@lru_cache(maxsize=8)
def grammar_of(language: str, text: str) -> str:
    """The grammar of a constraint; cached for all samples of a request.

    Raises ValueError for one that is too long, wrong, not supported, or too expensive to compile.
    """
    if len(text) > _MOST_CHARACTERS:
        refuse("SamplingParams", language, f"at most {_MOST_CHARACTERS} characters", len(text))
    costly = language == "grammar"
    if language == "regex":
        require_whole(language, text)
    if language == "json_schema":
        text = check(text)
        costly = any(word in text for word in _COSTLY)  # before formats become patterns, which are cheap
        text = enforceable(text)
    grammar = _to_lark(language, text)
    if costly:
        _try_out(language, grammar)
    return grammar


def _to_lark(language: str, text: str) -> str:
    from llguidance import LLMatcher

    try:
        if language == "json_schema":
            return str(LLMatcher.grammar_from_json_schema(text, defaults=JSON_FORM))
        if language == "regex":
            return str(LLMatcher.grammar_from_regex(text))
        return str(LLMatcher.grammar_from_lark(text if is_lark(text) else lark_of(text)))
    except Exception as error:  # the converter raises what it pleases
        refuse("SamplingParams", language, "one that can be compiled", Words(short(str(error))))


def _try_out(language: str, grammar: str) -> None:
    """Compiles a constraint in a separate process first, because llguidance's limits do not bound every cost."""
    spec = find_spec("llguidance")
    assert spec is not None and spec.origin is not None
    folder = str(Path(spec.origin).absolute().parent.parent)
    limits = (str(_TRIAL_MEMORY), str(_TRIAL_SECONDS), json.dumps(LIMITS))
    # -I -S: neither the user's environment nor site packages; the worker gets the folder of what it imports.
    command = [sys.executable, "-I", "-S", constraint_worker.__file__, *limits, folder]
    data, root = grammar.encode("utf-8", "replace"), os.path.abspath(os.sep)
    try:
        ended = subprocess.run(command, input=data, capture_output=True, timeout=_TRIAL_WAIT, cwd=root, check=False)
    except subprocess.TimeoutExpired:
        refuse("SamplingParams", language, "one that can be compiled", Words("one that takes too long"))
    if constraint_worker.READY not in ended.stdout:
        words = ended.stderr.decode(errors="replace")[-500:]
        raise RuntimeError(f"the process that tries out constraints did not start: {words}")
    if ended.returncode != 0:
        refuse("SamplingParams", language, "one that can be compiled", Words("one that costs too much"))
