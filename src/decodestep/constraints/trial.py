"""Costly questions about grammars, asked in a separate process, because llguidance's limits do not bound every cost."""

from __future__ import annotations

import json
import os
import subprocess
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from decodestep._base.checks import Words, refuse
from decodestep._base.worker_python import worker_python
from decodestep.constraints import worker

# The limits for untrusted schemas: half of llguidance's default limits on work, and about 100 MB of states instead of 500.
LIMITS = {"initial_lexer_fuel": 500_000, "step_lexer_fuel": 100_000, "max_lexer_states": 50_000, "verbose_errors": False}
# Limits of a trial: bytes beyond the imports, seconds of processor time. Ordinary schemas take 1 MB and milliseconds.
_TRIAL_MEMORY, _TRIAL_SECONDS = 64 << 20, 2.0
_TRIAL_WAIT = 60.0  # seconds for the whole process, on however busy a machine


def try_out(language: str, grammar: str) -> None:
    """Compiles a grammar, and the mask of its first token. Raises ValueError, about the params' `language`, if it costs too
    much."""
    _run(language, {"grammars": [grammar]})


@lru_cache(maxsize=16)
def first_names(schemas: tuple[str, ...], most: int, longest: int) -> list[list[str] | None]:
    """The names that the first property of the objects of each schema may have; None if they are more than `most`, or some have
    more than `longest` bytes in JSON, and for a schema that is wrong.

    Raises ValueError, about the params' json_schema, if that costs too much.
    """
    from llguidance import LLMatcher

    grammars = [str(LLMatcher.grammar_from_json_schema(schema)) for schema in schemas]
    names: list[list[str] | None] = _run("json_schema", {"grammars": grammars, "names": [most, longest]})
    return names


def _run(language: str, task: dict[str, Any]) -> Any:
    """The worker's answers; without a process of its own, and its limits, where DECODESTEP_PYTHON gives such processes up."""
    python = worker_python()
    if python is None:
        return worker.answers(task, LIMITS)
    spec = find_spec("llguidance")
    assert spec is not None and spec.origin is not None
    folder = str(Path(spec.origin).absolute().parent.parent)
    limits = (str(_TRIAL_MEMORY), str(_TRIAL_SECONDS), json.dumps(LIMITS))
    # -I -S: neither the user's environment nor site packages; the worker gets the folder of what it imports.
    command = [python, "-I", "-S", worker.__file__, *limits, folder]
    data, root = json.dumps(task).encode(), os.path.abspath(os.sep)
    try:
        ended = subprocess.run(command, input=data, capture_output=True, timeout=_TRIAL_WAIT, cwd=root, check=False)
    except subprocess.TimeoutExpired:
        refuse("SamplingParams", language, "one that can be compiled", Words("one that takes too long"))
    _, ready, answer = ended.stdout.partition(worker.READY)
    if not ready:
        words = ended.stderr.decode(errors="replace")[-500:]
        raise RuntimeError(f"the process that tries out constraints did not start: {words}")
    if ended.returncode != 0:
        refuse("SamplingParams", language, "one that can be compiled", Words("one that costs too much"))
    return json.loads(answer)
