"""Beam search of one prompt with a model: completions from the beams."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from decodestep._base.checks import require_scores
from decodestep._base.float_environment import default_floats
from decodestep.decoding.forward import BLOCK
from decodestep.decoding.paged_tokens import count_pages
from decodestep.errors import CacheFullError
from decodestep.generation.beam_group import Beam
from decodestep.generation.beam_logits import BeamLogits
from decodestep.generation.beam_search import NextLogits, NoBeamError, SearchInterrupt, beam_search
from decodestep.generation.completion import Completion
from decodestep.ops.decode_step import TokenLogprobs
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row import Row
from decodestep.sampling.row_factory import Texts
from decodestep.sampling.text_stream import TextStream
from decodestep.stopping.stop_automaton import StopAutomaton

if TYPE_CHECKING:
    from decodestep.models import Model

ResultT = TypeVar("ResultT")


class ModelSearch:
    """The beam search of a prompt.

    params: of the search. row: holds only the prompt; its processors, seed and clock are used.
    prompt_index: of its completions. texts: the texts of tokens.
    completions: the beams, best first, at most params.num_return_sequences; none before the search has run.
    stops: the stop string that has ended each of their texts, "" if none has.
    Raises CacheFullError if the cache is too small for the search alone.
    """

    def __init__(self, model: Model, params: SamplingParams, row: Row, prompt_index: int, texts: Texts) -> None:
        self._texts = texts
        self._model, self._params, self._row, self._prompt_index = model, params, row, prompt_index
        self._prompt = list(row.history.tokens)
        self._capacity = len(self._prompt) + (row.params.max_new_tokens or 1)
        model.cache.require_total(params.num_beams * count_pages(self._capacity), "a beam search", params.num_beams)
        self._interruption = ""  # the finish_reason of beams that were still alive when something ended the search
        self.completions: list[Completion] = []
        self.stops: list[str] = []

    @property
    def prompt_length(self) -> int:
        return len(self._prompt)

    def run(self, cancelled: Callable[[], bool], report: Callable[[int], object]) -> list[Completion]:
        """Searches, and returns the completions.

        cancelled: called before every forward pass; True ends the search. report: called with the number of tokens of the
            prompt that are left, after each pass with some of them.
        """
        try:
            with default_floats():
                found = [self._of_beam(beam) for beam in self._beams(cancelled, report)]
            self.completions, self.stops = [beam for beam, _ in found], [stop for _, stop in found]
        except NoBeamError:
            self.drop("no_candidate")
        except _RowError as error:
            self._row.error = error.__cause__
            self.drop("error")
        except CacheFullError as error:  # open sequences leave no pages: the other rows of the call keep what they have
            self._row.error = error
            self.drop("error")
        if not self.completions:
            self.drop(self._interruption)
        return self.completions

    def drop(self, reason: str) -> None:
        """Ends the search without a beam."""
        logprobs: list[TokenLogprobs] | None = None if self._params.logprobs is None else []
        self.completions, self.stops = [self._completion("", [], reason, logprobs)], [""]

    def _beams(self, cancelled: Callable[[], bool], report: Callable[[int], object]) -> list[Beam]:
        params, stop = self._params, None
        if params.stop_strings or params.stop_token_ids:
            stop = _with_row_errors(_stop_rule(self._model.tokenizer.spelled_bytes, params))

        def check() -> None:
            """Checks `cancelled` and the clock, before each forward pass."""
            self._interruption = "cancelled" if cancelled() else "time" if self._row.late() else ""
            if self._interruption:
                raise SearchInterrupt

        try:
            logits = self._beam_logits(check)
        except SearchInterrupt:
            return []
        with closing(logits):
            logits.expect(len(self._prompt))
            return beam_search(
                self._in_blocks(logits, check, report),
                self._prompt,
                vocab_size=self._model.config.vocab_size,
                max_new_tokens=self._capacity - len(self._prompt),
                num_beams=params.num_beams,
                eos_token_ids=self._row.ends,
                num_beam_groups=params.num_beam_groups,
                diversity_penalty=params.diversity_penalty,
                length_penalty=params.length_penalty,
                early_stopping=params.early_stopping,
                num_return_sequences=params.num_return_sequences,
                processors=[_with_row_errors(_to_scores(processor)) for processor in self._row.plan.processors],
                do_sample=not params.greedy,
                seed=self._row.seed or 0,
                stop=stop,
                top_logprobs=params.logprobs,
            )

    def _beam_logits(self, check: Callable[[], None]) -> BeamLogits:
        """The sequences of the beams, once the cache has pages for them."""
        beams = self._params.num_beams
        while True:
            try:
                return BeamLogits(self._model, beams, self._capacity)
            except CacheFullError:
                self._model.cache.wait_for(beams * count_pages(self._capacity), beams)
            check()

    def _in_blocks(self, logits: NextLogits, check: Callable[[], None], report: Callable[[int], object]) -> NextLogits:
        """`logits`, whose first call runs the prompt in blocks, with a check before each pass and a report after it."""

        def next_logits(sequences: list[list[int]], parents: list[int]) -> np.ndarray:
            first, length = len(sequences[0]) == len(self._prompt), len(self._prompt)
            for end in range(BLOCK, length, BLOCK) if first else ():
                check()
                logits([self._prompt[:end]], [0])
                report(length - end)
            check()
            found = logits(sequences, parents)
            if first:
                report(0)
            return found

        return next_logits

    def _of_beam(self, beam: Beam) -> tuple[Completion, str]:
        """The completion of a beam, and the stop string that has ended its text."""
        ended = "eos" if beam.token_ids[-1] in self._row.ends else "stop"
        reason = ended if beam.finished else self._interruption or "length"
        params, functions = self._params, (self._texts.token_bytes, self._model.tokenizer.spelled_bytes)
        token_bytes, spelled_bytes = map(_with_row_errors, functions)
        text = TextStream(token_bytes, params.stop_strings, spelled_bytes=spelled_bytes, min_tokens=params.min_tokens)
        for token in beam.token_ids:
            text.push(token)
        text.finish()
        return self._completion(text.text, beam.token_ids, reason, beam.logprobs), text.stop

    def _completion(self, text: str, token_ids: list[int], reason: str, logprobs: list[TokenLogprobs] | None) -> Completion:
        return Completion(
            text=text,
            token_ids=token_ids,
            prompt_token_ids=self._prompt,
            finish_reason=reason,
            logprobs=logprobs,
            seed=self._row.seed,
            prompt_index=self._prompt_index,
            error=self._row.error,
        )


class _RowError(Exception):
    """Wraps an exception (its cause) raised by the row's own code rather than by the model."""


def _with_row_errors(function: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """The function, whose exceptions become `_RowError`s."""

    def call(*arguments: object) -> ResultT:
        try:
            return function(*arguments)
        except Exception as error:
            raise _RowError from error

    return call


def _to_scores(processor: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """The processor; raises if it returns no scores, or scores of another shape."""

    def call(input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        result = np.asarray(processor(input_ids, scores))
        require_scores("generate", processor, result, scores.shape)
        return result

    return call


def _stop_rule(spelled_bytes: Callable[[int], bytes], params: SamplingParams) -> Callable[[list[int]], bool]:
    """Whether a beam's last token is a stop token, or completes a stop string and is none of the first min_tokens."""
    automaton = StopAutomaton(params.stop_strings)

    def stop(tokens: list[int]) -> bool:
        if tokens[-1] in params.stop_token_ids:
            return True
        if len(tokens) <= params.min_tokens:
            return False
        last, before = spelled_bytes(tokens[-1]), b""  # before: as many bytes as a stop string may begin with
        for token in reversed(tokens[:-1]):
            if len(before) >= automaton.longest - 1:
                break
            before = spelled_bytes(token) + before
        state, _ = automaton.read(0, before)
        return bool(automaton.read(state, last)[1])

    return stop
