"""Costly questions about grammars, asked in a separate process, because llguidance's limits do not bound every cost."""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from decodestep._base.checks import Phrase, refuse
from decodestep._base.worker_python import worker_python
from decodestep.constraints import worker

# The limits for untrusted schemas: half of llguidance's default limits on work, and about 100 MB of states instead of 500.
LIMITS = {"initial_lexer_fuel": 500_000, "step_lexer_fuel": 100_000, "max_lexer_states": 50_000, "verbose_errors": False}
# Limits of a trial: bytes beyond the imports, seconds of processor time. Ordinary schemas take 1 MB and milliseconds.
_TRIAL_MEMORY, _TRIAL_SECONDS = 64 << 20, 2.0
_TRIAL_WAIT = 60.0  # seconds for the whole process, on however busy a machine
_WITHOUT_TEXT = ("Unsatisfiable", "NoExtensionBias")  # in llguidance's errors for a language without any text


def try_out(language: str, grammar: str) -> None:
    """Compiles a grammar, and the mask of its first token. Raises ValueError, about the params' `language`, if it costs too
    much."""
    _run(language, [[grammar]])


def whole_texts(grammars: list[str], texts: list[str], places: list[str]) -> list[list[bool]]:
    """Of each grammar in Lark, which of the texts are of it; none if no text is. places: what the grammars are of. Raises
    ValueError, about the params' json_schema, if that costs too much, and for a grammar that is wrong, with its place."""
    found = _run("json_schema", [[_lark(each), "texts", texts] for each in grammars])
    return [[False] * len(texts) if _is_empty(each, place) else each for each, place in zip(found, places, strict=True)]


def probe(
    grammars: list[str], objects: list[str], most: int, longest: int, places: list[str]
) -> tuple[list[bool], list[list[str] | None]]:
    """Whether grammars in Lark have no text; and the names that the first member of grammars of objects may have.

    places: what the grammars are of; the last ones also the objects. The names are None if they are more than `most`, or some
    have more than `longest` bytes in JSON. Raises ValueError as `whole_texts` does.
    """
    asked = [[_lark(each)] for each in grammars] + [[_lark(each), "names", most, longest] for each in objects]
    found = _run("json_schema", asked)
    dead = [_is_empty(error, place) for error, place in zip(found[: len(grammars)], places, strict=True)]
    named = zip(found[len(grammars) :], places[len(grammars) - len(objects) :], strict=True)
    return dead, [[] if _is_empty(names, place) else names for names, place in named]


def _lark(text: str) -> str:
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_lark(text))


def _is_empty(answer: object, place: str) -> bool:
    """Whether an answer is the error of a grammar without any text. Raises ValueError for another one's, with the place."""
    if not isinstance(answer, str) or not answer:
        return False
    if not any(sign in answer for sign in _WITHOUT_TEXT):
        what = f"one in which {place} is not supported: {reason(answer)}"
        refuse("SamplingParams", "json_schema", "one that can be compiled", Phrase(what))
    return True


def _run(language: str, questions: list[list[Any]]) -> Any:
    return _answers(language, json.dumps(questions))


@lru_cache(maxsize=32)
def _answers(language: str, data: str) -> Any:
    """The worker's answers; without a process of its own, and its limits, where DECODESTEP_PYTHON gives such processes up."""
    python = worker_python()
    if python is None:
        return worker.answers(json.loads(data), LIMITS)
    spec = find_spec("llguidance")
    assert spec is not None and spec.origin is not None
    folder = str(Path(spec.origin).absolute().parent.parent)
    limits = (str(_TRIAL_MEMORY), str(_TRIAL_SECONDS), json.dumps(LIMITS))
    # -I -S: neither the user's environment nor site packages; the worker gets the folder of what it imports.
    command = [python, "-I", "-S", worker.__file__, *limits, folder]
    root = os.path.abspath(os.sep)
    try:
        ended = subprocess.run(command, input=data.encode(), capture_output=True, timeout=_TRIAL_WAIT, cwd=root, check=False)
    except subprocess.TimeoutExpired:
        refuse("SamplingParams", language, "one that can be compiled", Phrase("one that takes too long"))
    _, ready, answer = ended.stdout.partition(worker.READY)
    if not ready:
        words = ended.stderr.decode(errors="replace")[-500:]
        raise RuntimeError(f"the process that tries out constraints did not start: {words}")
    if ended.returncode != 0:
        refuse("SamplingParams", language, "one that can be compiled", Phrase("one that costs too much"))
    return json.loads(answer)


def reason(error: str) -> str:
    """What llguidance's error says, without its rule and its excerpts of the rules that it was given."""
    if any(sign in error for sign in _WITHOUT_TEXT):
        return "no text satisfies it"
    if "regex" not in error:
        return "it costs too much"
    found = re.search(r"^error: (.*)", error, re.MULTILINE) or re.search(r"((?:lookarounds|\w+) not supported)", error)
    return short(found[1]) if found else "it is no expression that can be compiled"


def short(text: str) -> str:
    """The beginning of an error's text, on one line."""
    return " ".join(text.split())[:300]
