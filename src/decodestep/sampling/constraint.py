"""Constrained rows: only tokens that can still lead to a text of a JSON schema, regular expression or grammar."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from decodestep._base.arrays import Array
from decodestep._base.checks import refuse
from decodestep._base.extras import extra
from decodestep.ops.decode_step import steps as s
from decodestep.ops.decode_step.rows import Part
from decodestep.sampling import constraint_worker
from decodestep.sampling.fusion_rules import rule
from decodestep.sampling.json_schema import checked, enforceable, short
from decodestep.sampling.params import SamplingParams, languages_of
from decodestep.sampling.token_history import History

# The limits for untrusted schemas: half of llguidance's default limits on work, and about 100 MB of states instead of 500.
_LIMITS = {"initial_lexer_fuel": 500_000, "step_lexer_fuel": 100_000, "max_lexer_states": 50_000, "verbose_errors": False}
# JSON in the format of json.dumps. With free whitespace a row at a high temperature might write nothing else. Where further
# properties are allowed, llguidance takes "\u0061" for one and not for "a": so there are no escapes with u.
JSON_FORM = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
}
_MOST_CHARACTERS = 2**18  # of a schema, an expression or a grammar
# Schemas with these keywords, and all grammars, are compiled on trial: they may intersect expressions, which has no limit.
_COSTLY = ("multipleOf", "allOf", "$ref", "pattern")
# Limits of a trial: bytes beyond the imports, seconds of processor time. Ordinary schemas take 1 MB and milliseconds.
_TRIAL_MEMORY, _TRIAL_SECONDS = 64 << 20, 2.0
_TRIAL_WAIT = 60.0  # seconds for the whole process, on however busy a machine

TokenBytes = Callable[[int], bytes]


class ConstraintError(RuntimeError):
    """The next token of a row cannot be constrained, or would cost more than the limits allow.

    language: of the constraint, "json_schema", "regex" or "grammar".
    """

    def __init__(self, message: str, language: str = "") -> None:
        super().__init__(message)
        self.language = language


class ConstraintLogitsProcessor:
    """Forbids tokens after which the row's text could no longer satisfy the constraint.

        s[t] = -inf if no text of the language begins with the generated text + t; end tokens are allowed after a complete text

    params: with one of json_schema, regex and grammar. prompt_length: where the generated tokens begin.
    token_bytes, vocab_size, ends: as of the sampler.

    Keeps the state of one row. A call raises ConstraintError if the text is not in the language, or if the next step would
    exceed the limits: the row then ends with the reason "error". The constructor raises ValueError for a schema, expression or
    grammar that is invalid, unsupported, or too expensive for the first token, whose mask is computed here rather than in a
    step shared with other rows; ModuleNotFoundError without decodestep[generate].
    Source: llguidance.
    """

    stateful = True

    def __init__(
        self, params: SamplingParams, prompt_length: int, *, token_bytes: TokenBytes, vocab_size: int, ends: frozenset[int]
    ) -> None:
        [self.language] = languages_of(params)
        if not ends:
            refuse("Sampler", self.language, "given to rows that have an end token", "none")
        with extra("generate"):
            from llguidance import LLMatcher, LLParserLimits
        limits = LLParserLimits(**_LIMITS)
        grammar = _compiled(self.language, getattr(params, self.language))
        # Not LLMatcher.deep_copy: copies share the lexer, whose limits would then depend on other rows.
        self._matcher = LLMatcher(_tokenizer(token_bytes, vocab_size, ends), grammar, log_level=0, limits=limits)
        self._anew = partial(
            ConstraintLogitsProcessor, params, prompt_length, token_bytes=token_bytes, vocab_size=vocab_size, ends=ends
        )
        self._vocab = vocab_size
        self._ends = np.array(sorted(ends), np.int64)
        self._read = prompt_length  # how many tokens of the row the matcher has seen, or precede it
        self._steps = None if self._matcher.is_error() else self._mask()  # of the row as it was then
        if self._matcher.is_error():
            refuse("SamplingParams", self.language, "one that can be compiled", short(self._matcher.get_error()))

    def steps(self, tokens: Sequence[int]) -> tuple[s.Step, ...]:
        """The mask for the token after these, the whole row: as `Allow` or as `Ban`, whichever names fewer."""
        if len(tokens) < self._read:
            raise ConstraintError("a constrained row cannot go back", self.language)
        if len(tokens) > self._read:
            new = list(tokens[self._read :])
            self._read = len(tokens)
            self._steps = self._mask() if self._matcher.consume_tokens(new) else None
        if self._steps is None or self._matcher.is_error():
            what = short(self._matcher.get_error()) or "the text does not belong to it"
            raise ConstraintError(f"{self.language}: {what}", self.language)
        return self._steps

    def forces(self, tokens: Sequence[int]) -> bool:
        """Whether one token alone may follow these. Raises as `steps` does."""
        steps = self.steps(tokens)
        return bool(steps) and isinstance(steps[0], s.Allow) and len(steps[0].ids) == 1

    def __call__(self, input_ids: Array, scores: Array) -> Array:
        result = np.array(scores)
        for step in self.steps([int(token) for token in input_ids[0]]):
            others = np.ones(result.shape[-1], np.bool_)
            others[step.ids] = False  # type: ignore[union-attr]
            result[:, others if isinstance(step, s.Allow) else ~others] = -np.inf
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> ConstraintLogitsProcessor:
        """One at the beginning of the row: its next call reads all tokens, which leads to the same state."""
        return self._anew()

    def _mask(self) -> tuple[s.Step, ...] | None:
        if self._matcher.is_stopped():
            return (s.Allow(self._ends),)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, count=self._vocab, bitorder="little").view(np.bool_)  # whose indices are found fastest
        count = int(np.count_nonzero(allowed))
        if 2 * count <= self._vocab:
            return (s.Allow(np.flatnonzero(allowed)),)
        return (s.Ban(np.flatnonzero(~allowed)),) if count < self._vocab else ()


@rule(ConstraintLogitsProcessor, "mask")
def _constraint(processor: ConstraintLogitsProcessor, vocab: int) -> Part:
    def steps(history: History) -> tuple[s.Step, ...]:
        return processor.steps(history.tokens)

    return steps


def constraint_of(
    params: SamplingParams, prompt_length: int, *, token_bytes: TokenBytes | None, vocab_size: int, ends: frozenset[int]
) -> list[ConstraintLogitsProcessor]:
    """The constraint of a row, or none."""
    asked = languages_of(params)
    if not asked:
        return []
    if token_bytes is None:
        refuse("Sampler", "token_bytes", f"given where a row has {asked[0]}", "None")
    return [ConstraintLogitsProcessor(params, prompt_length, token_bytes=token_bytes, vocab_size=vocab_size, ends=ends)]


@lru_cache(maxsize=8)
def _compiled(language: str, text: str) -> str:
    """The compiled constraint, after a trial if it may be expensive; cached for all samples of a request."""
    if len(text) > _MOST_CHARACTERS:
        refuse("SamplingParams", language, f"at most {_MOST_CHARACTERS} characters", f"{len(text)}")
    costly = language == "grammar"
    if language == "json_schema":
        text = checked(text)
        costly = any(word in text for word in _COSTLY)  # before formats become patterns, which are cheap
        text = enforceable(text)
    grammar = _converted(language, text)
    if costly:
        _try_out(language, grammar)
    return grammar


def _converted(language: str, text: str) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        if language == "json_schema":
            return str(LLMatcher.grammar_from_json_schema(text, defaults=JSON_FORM))
        if language == "regex":
            return str(LLMatcher.grammar_from_regex(text))
        return str(LLMatcher.grammar_from_lark(any_to_lark(text)))
    except Exception as error:  # the converter raises what it pleases
        refuse("SamplingParams", language, "one that can be compiled", short(str(error)))


def _try_out(language: str, grammar: str) -> None:
    """Compiles a constraint in a separate process first, because llguidance's limits do not bound every cost."""
    spec = find_spec("llguidance")
    assert spec is not None and spec.origin is not None
    folder = str(Path(spec.origin).absolute().parent.parent)
    limits = (str(_TRIAL_MEMORY), str(_TRIAL_SECONDS), json.dumps(_LIMITS))
    # -I -S: neither the user's environment nor site packages; the worker gets the folder of what it imports.
    command = [sys.executable, "-I", "-S", constraint_worker.__file__, *limits, folder]
    data, root = grammar.encode("utf-8", "replace"), os.path.abspath(os.sep)
    try:
        ended = subprocess.run(command, input=data, capture_output=True, timeout=_TRIAL_WAIT, cwd=root, check=False)
    except subprocess.TimeoutExpired:
        refuse("SamplingParams", language, "one that can be compiled", "one that takes too long")
    if constraint_worker.READY not in ended.stdout:
        words = ended.stderr.decode(errors="replace")[-500:]
        raise RuntimeError(f"the process that tries out constraints did not start: {words}")
    if ended.returncode != 0:
        refuse("SamplingParams", language, "one that can be compiled", "one that costs too much")


@lru_cache(maxsize=4)
def _tokenizer(token_bytes: TokenBytes, vocab_size: int, ends: frozenset[int]) -> Any:
    """The vocabulary in llguidance's form; takes some tenths of a second, cached for all rows of a model."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Vocabulary(token_bytes, vocab_size, ends)), n_vocab=vocab_size, eos_token=sorted(ends))


class _Vocabulary:
    """The tokenizer interface of llguidance: the bytes of every token, and some division of a text into tokens."""

    bos_token_id = None

    def __init__(self, token_bytes: TokenBytes, vocab_size: int, ends: frozenset[int]) -> None:
        self.eos_token_id = min(ends)
        # Tokens without text can only be ends: \xff begins what is no text.
        self.tokens = [b"\xff<%d>" % i if i in ends else token_bytes(i) or b"\xff<%d>" % i for i in range(vocab_size)]
        self.special_token_ids = [i for i, data in enumerate(self.tokens) if data[:1] == b"\xff"]
        self._ids = {data: i for i, data in reversed(list(enumerate(self.tokens)))}
        self._longest = max(map(len, self.tokens))

    def __call__(self, text: bytes) -> list[int]:
        """The longest token that the rest begins with, again and again; bytes without one are left out."""
        ids = []
        at = 0
        while at < len(text):
            sizes = range(min(self._longest, len(text) - at), 0, -1)
            size = next((size for size in sizes if text[at : at + size] in self._ids), 0)
            ids += [self._ids[text[at : at + size]]] if size else []
            at += size or 1
        return ids
