"""Constrained rows: only tokens that can still lead to a text of a JSON schema, regular expression or grammar."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from decodestep._base.arrays import Array
from decodestep._base.checks import Phrase, refuse, require
from decodestep._base.extras import extra
from decodestep.constraints import mask_threads
from decodestep.constraints.grammar import compile_grammar
from decodestep.constraints.trial import LIMITS, reason, short
from decodestep.constraints.vocabulary import Encode, TokenBytes, build_tokenizer
from decodestep.errors import ConstraintError as ConstraintError
from decodestep.ops.decode_step import steps as s

# Seconds of processor time for the first mask, and for a later one with its token. Ordinary masks take less than a millisecond.
# llguidance's limits count expressions, not their lengths: those of x{100000} take 0.6 s.
_FIRST_SECONDS, _STEP_SECONDS = 0.1, 0.5
_NO_TEXT = "NoExtensionBias"  # llguidance's error for a language without any text


class ConstraintLogitsProcessor:
    """Forbids tokens after which the row's text could no longer satisfy the constraint.

        s[t] = -inf if no text of the language begins with the generated text + t; end tokens are allowed after a complete text

    language: "json_schema", "regex", "grammar" or "choice", and text: its schema, expression or grammar, or the texts, as
        `SamplingParams` has it.
    closed, order: its disable_additional_properties and json_property_order.
    prompt_length: where the generated tokens begin. token_bytes, encode, vocab_size, ends: as for the sampler.

    Where only one text can follow, only the token with which `encode` writes it is allowed. But the tokens at its end which
    might be others if the text after it were known are not decided: there, each token that goes on with the text is allowed,
    also one that reaches beyond it.

    Keeps the state of one row. `begin` computes a mask on another thread, and `ahead` tells when it is known; all other methods
    that need it wait for it. A call raises ConstraintError if the text is not in the language, or if the next step would exceed
    the limits: the row then ends with the reason "error". The constructor raises ValueError for a schema, expression or
    grammar that is invalid, unsupported, or too expensive for the first token, whose mask is computed here rather than in a
    step shared with other rows, and for end tokens that have a text; ModuleNotFoundError without decodestep[generate].
    Source: llguidance.
    """

    stateful = True

    def __init__(
        self,
        language: str,
        text: str | tuple[str, ...],
        prompt_length: int,
        *,
        closed: bool = True,
        order: str = "schema",
        token_bytes: TokenBytes,
        encode: Encode | None = None,
        vocab_size: int,
        ends: frozenset[int],
    ) -> None:
        self.language = language
        if not ends:
            refuse("Sampler", language, "given to rows that have an end token", Phrase("none"))
        written = [end for end in sorted(ends) if token_bytes(end)]  # which would follow the text of the language
        require(not written, "Sampler", "eos_token_id", f"of tokens without text beside {language}", written)
        with extra("generate"):
            from llguidance import LLMatcher, LLParserLimits
        limits = LLParserLimits(**LIMITS)
        grammar = compile_grammar(language, text, closed=closed, order=order)
        # Not LLMatcher.deep_copy: copies share the lexer, whose limits would then depend on other rows.
        self._matcher = LLMatcher(build_tokenizer(token_bytes, vocab_size, ends, encode), grammar, log_level=0, limits=limits)
        texts = partial(ConstraintLogitsProcessor, token_bytes=token_bytes, encode=encode)
        self._anew = partial(texts, language, text, prompt_length, closed=closed, order=order, vocab_size=vocab_size, ends=ends)
        self._vocab = vocab_size
        self._only_ends = np.zeros(-(-vocab_size // 32), np.int32)
        for end in ends:
            self._only_ends.view(np.uint32)[end // 32] |= np.uint32(1 << end % 32)
        self._read = prompt_length  # how many tokens of the row the matcher has seen, or precede it
        self._too_slow = False  # whether the last step was
        self._forced: list[int] | None = None  # the tokens that must follow; None where that was not asked
        self.ahead: Future[None] | None = None
        began = time.thread_time()
        self._steps = self._mask()  # of the row as it was then
        if self._steps is None or self._matcher.is_error():
            what = self._reason("one that no text satisfies")
            refuse("SamplingParams", language, "one that can be compiled", Phrase(what))
        if time.thread_time() - began > _FIRST_SECONDS:
            refuse("SamplingParams", language, "one that can be compiled", Phrase("one that costs too much"))

    def begin(self, tokens: Sequence[int]) -> None:
        """Starts computing what `steps` and `forced_tokens` tell of these tokens, the whole row."""
        self._wait()
        if len(tokens) > self._read:
            self.ahead = mask_threads.submit(partial(self._read_ahead, list(tokens[self._read :])))

    def steps(self, tokens: Sequence[int]) -> tuple[s.AllowBits]:
        """The mask for the token after these, the whole row, as `AllowBits`."""
        self._wait()
        if len(tokens) < self._read:
            raise ConstraintError("a constrained row cannot go back", self.language)
        if len(tokens) > self._read:
            self._read_new(list(tokens[self._read :]))
        if self._too_slow:
            raise ConstraintError(f"{self.language}: a token costs too much", self.language)
        if self._steps is None or self._matcher.is_error():
            raise ConstraintError(f"{self.language}: {self._reason('no text of it begins so')}", self.language)
        return self._steps

    @property
    def complete(self) -> bool:
        """Whether the text that `steps` has seen is one of the language."""
        self._wait()
        return bool(self._matcher.is_accepting())

    def forced_tokens(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that must follow these, as far as they are known; none while their mask is computed. Raises as `steps`
        does."""
        if self.ahead is not None and not self.ahead.done():
            return []
        self.steps(tokens)
        if self._forced is None:
            self._forced = self._find_forced()
        return self._forced

    def __call__(self, input_ids: Array, scores: Array) -> Array:
        result = np.array(scores)
        (mask,) = self.steps([int(token) for token in input_ids[0]])
        result[:, ~s.unpack_bits(mask.bits, result.shape[-1])] = -np.inf
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> ConstraintLogitsProcessor:
        """One at the beginning of the row: its next call reads all tokens, which leads to the same state."""
        return self._anew()

    def _wait(self) -> None:
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            ahead.result()

    def _read_ahead(self, new: list[int]) -> None:
        self._read_new(new)
        if self._steps is not None and not self._too_slow:
            self._forced = self._find_forced()

    def _read_new(self, new: list[int]) -> None:
        """Makes the mask that of the token after these, which follow those that the matcher has seen."""
        self._read += len(new)
        self._forced = None
        began = time.thread_time()
        self._steps = self._mask() if self._matcher.consume_tokens(new) else None
        self._too_slow = time.thread_time() - began > _STEP_SECONDS * len(new)

    def _find_forced(self) -> list[int]:
        return [] if self._matcher.is_stopped() else list(self._matcher.compute_ff_tokens())

    def _reason(self, no_text: str) -> str:
        """Why there is no mask; no_text: if it is that no text goes on."""
        error = self._matcher.get_error()
        if not error or _NO_TEXT in error:
            return no_text
        return short(error) if self.language in ("grammar", "regex") else reason(error)

    def _mask(self) -> tuple[s.AllowBits] | None:
        if self._matcher.is_stopped():
            return (s.AllowBits(self._only_ends),)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.int32)[: len(self._only_ends)]  # which may have more words
        if self._matcher.is_stopped() and not self._matcher.is_accepting():
            return None  # a rule that has no text was begun: the end tokens that the bits allow would end an incomplete text
        return (s.AllowBits(bits),)
