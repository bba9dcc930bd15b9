"""Sampler: the decode step of a batch in which every row has its own parameters, history and end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.checks import is_int, refuse, require
from decodestep.ops.decode_step import TokenLogprobs, decode_step
from decodestep.ops.decode_step.rows import ENDS, kept_row, step_rows
from decodestep.sampling.build_processors import processors_of
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.plan import Plan, plan
from decodestep.sampling.text_stream import TextStream
from decodestep.sampling.token_history import History

_OP = "Sampler"
_new = tuple.__new__

# Fields of SamplingParams that name tokens, one or several.
_NAMING_TOKENS = (
    "stop_token_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "allowed_token_ids",
    "logit_bias",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "dry_sequence_breakers",
)


class StepResult(NamedTuple):
    """One step of every row. tokens: int64 (B,), in the kind of the logits; -1 for a row that had ended before, and for one
    that had no candidate. logprobs: a `TokenLogprobs`, or None. done: bool (B,). reason: "" while the row goes on, else
    "eos", "stop", "length", "time", "no_candidate" or "cancelled". text: the whole characters that the token adds."""

    tokens: Any
    logprobs: tuple[TokenLogprobs | None, ...]
    done: np.ndarray
    reason: tuple[str, ...]
    text: tuple[str, ...]


@dataclass(slots=True)
class Row:
    """One sequence: what it was asked, what it has seen, and how it ended (`reason`, empty while it goes on)."""

    params: SamplingParams
    history: History
    plan: Plan
    core: _native.Row
    text: TextStream | None
    started: float
    reason: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def late(self) -> bool:
        return self.params.max_time is not None and time.monotonic() - self.started > self.params.max_time

    def accept(self, token: int, reason: str) -> str:
        """Takes a token that the core has drawn and noted, or -1, and why it ends the row; returns the text that it adds.

        The core knows nothing of stop strings and of time.
        """
        piece = self.text.push(token) if self.text and token >= 0 else ""
        if self.text and self.text.stopped and reason != "eos":
            reason = "stop"
        elif not reason and self.late():
            reason = "time"
        return piece + self.end(reason) if reason else piece

    def end(self, reason: str) -> str:
        """Ends the row, and returns the text that was held back."""
        self.reason = reason
        self.core.ended = True
        return self.text.finish() if self.text else ""


class _Arranged(NamedTuple):
    """What every step of the rows needs: the core's rows; whether any row has callables of its own; whether any has something
    at each step that the core does not see to, which is text, log-probabilities and time."""

    cores: list[_native.Row]
    own: bool
    watched: bool


class Sampler:
    """Turns the logits of a batch into tokens, each row by its own `SamplingParams`.

        for every row b that goes on:
            steps = the processors of params[b], in order, on the history of b           # see `explain`
            token = decode_step(logits[b], steps, seed of b, position = length of the history of b)
            append it to the history; the row ends on an end token, a stop token or string, its length or its time

    params: one `SamplingParams`, or one for each row.
    vocab_size: V, the width of the logits.
    eos_token_id: an id, several, or None for no end token.
    prompt_ids: the prompt of each row, a list of lists of ids; None for one row without a prompt for each of params.
    processors: further callables (input_ids, scores) -> scores for all rows, where transformers puts a user's own: before the
        temperature. Of those that run fused the attributes are read when a row is added (`explain` says which).
    token_bytes: the bytes of a token; needed for stop strings and for text.

    Rows are added and removed between steps; a row's tokens depend on its own logits, params and prompt alone.
    Raises ValueError for arguments that do not fit each other, ids outside the vocabulary, or an order of processors that makes
    no sense.
    """

    def __init__(
        self,
        params: SamplingParams | Sequence[SamplingParams],
        *,
        vocab_size: int,
        eos_token_id: int | Collection[int] | None = None,
        prompt_ids: Sequence[Sequence[int]] | None = None,
        processors: Sequence[Callable[..., Any]] = (),
        token_bytes: Callable[[int], bytes] | None = None,
    ) -> None:
        require(is_int(vocab_size) and vocab_size >= 1, _OP, "vocab_size", "an integer >= 1", vocab_size)
        self.vocab_size = int(vocab_size)
        self._ends = frozenset(self._ids("eos_token_id", () if eos_token_id is None else _several(eos_token_id)))
        self._processors = tuple(processors)
        self._token_bytes = token_bytes
        self.rows: list[Row] = []
        self._arranged: _Arranged | None = None  # made anew when rows come and go
        ok = isinstance(params, (SamplingParams, Sequence))
        require(ok, _OP, "params", "a SamplingParams, or one for each prompt", params)
        each = [params] if isinstance(params, SamplingParams) else list(params)
        prompts: list[Sequence[int]] = [()] * len(each) if prompt_ids is None else list(prompt_ids)
        if isinstance(params, SamplingParams):
            each *= len(prompts)
        require(len(each) == len(prompts), _OP, "params", f"one, or one for each of {len(prompts)} prompts", f"{len(each)}")
        for row_params, ids in zip(each, prompts, strict=True):
            self.add(row_params, ids)

    def add(self, params: SamplingParams, prompt_ids: Sequence[int] = ()) -> int:
        """Adds a row behind the others and returns its index."""
        require(isinstance(params, SamplingParams), _OP, "params", "a SamplingParams", params)
        require(params.num_beams == 1, _OP, "params", "of one beam: `generate` searches with several", params.num_beams)
        prompt = self._ids("prompt_ids", prompt_ids)
        require(
            not params.stop_strings or self._token_bytes is not None,
            _OP,
            "token_bytes",
            "given where a row has stop strings",
            "None",
        )
        for name in _NAMING_TOKENS:
            given = getattr(params, name)
            self._ids(name, () if given is None else _several(given))
        for name in ("bad_words_ids", "sequence_bias"):
            for ids in getattr(params, name) or ():
                self._ids(name, ids)
        chain = processors_of(params, prompt_length=len(prompt), vocab_size=self.vocab_size, eos_token_ids=self._ends)
        scale = next((i for i, c in enumerate(chain) if type(c).__name__.endswith("Warper")), len(chain))
        chain[scale:scale] = self._processors
        history, made = History(prompt), plan(chain, self.vocab_size)
        core = kept_row(
            self.vocab_size,
            history,
            made.last.parts,
            greedy=params.greedy,
            seed=params.seed,
            top_logprobs=params.logprobs,
            ends=() if params.ignore_eos else self._ends,
            stops=params.stop_token_ids,
            limit=params.max_new_tokens,
        )
        text = TextStream(self._token_bytes, params.stop_strings) if self._token_bytes else None
        self.rows.append(Row(params, history, made, core, text, time.monotonic()))
        self._arranged = None
        return len(self.rows) - 1

    def remove(self, index: int) -> None:
        """Takes a row out; those behind it move up by one."""
        require(is_int(index) and 0 <= index < len(self.rows), _OP, "index", f"in [0, {len(self.rows)})", index)
        del self.rows[index]
        self._arranged = None

    def processed(self, logits: Any) -> Any:
        """What each row's processors make of its logits, float32 (B, V): what transformers' chain would hand to softmax."""
        prepared = self._worked_out(self._viewed(logits), ended=True)
        steps, positions = [row.plan.last.steps(row.history) for row in self.rows], [len(row.history) for row in self.rows]
        return arrays.like(logits, decode_step(prepared, steps, position=positions, need_processed=True).processed)

    def step(self, logits: Any) -> StepResult:
        """Draws the next token of every row that goes on, and advances its history."""
        rows, batch = self.rows, len(self.rows)
        cores, own, watched = self._arranged or self._arrange()
        array = self._viewed(logits)
        if own:
            array = self._worked_out(array, ended=False)
        tokens, ends, reported = self._in_float64(array) if array.dtype.char == "d" else step_rows(array, cores)
        drawn = tokens if type(logits) is np.ndarray else arrays.like(logits, tokens)
        if ends is None and not watched:
            return _new(StepResult, (drawn, (None,) * batch, np.zeros(batch, np.bool_), ("",) * batch, ("",) * batch))
        pieces = [""] * batch
        logprobs: list[TokenLogprobs | None] = [None] * batch
        for i, (row, token, end) in enumerate(zip(rows, tokens.tolist(), ends or bytes(batch), strict=True)):
            if row.reason:
                continue
            if reported is not None and reported[i] is not None:
                logprob = logprobs[i] = TokenLogprobs(*reported[i])
                row.logprobs.append(logprob)
            pieces[i] = row.accept(token, ENDS[end])
        reasons = tuple([row.reason for row in rows])
        done = np.array([reason != "" for reason in reasons], np.bool_)
        return StepResult(drawn, tuple(logprobs), done, reasons, tuple(pieces))

    def explain(self) -> str:
        """The plan of each row in words; rows with the same plan are told together."""
        plans: dict[str, list[int]] = {}
        for i, row in enumerate(self.rows):
            end = "argmax of the scores" if row.params.greedy else "draw: first argmax of score + gumbel(seed, position, token)"
            text = "\n".join(filter(None, (row.plan.explain(), f"{len(row.plan.processors) + 1:>3}. {end}")))
            plans.setdefault(text, []).append(i)
        return "\n".join(f"row {', '.join(map(str, rows))}\n{text}" for text, rows in plans.items())

    def _viewed(self, logits: Any) -> np.ndarray:
        array = arrays.view(_OP, "logits", logits)
        if array.shape != (len(self.rows), self.vocab_size):
            refuse(_OP, "logits", f"of shape {len(self.rows)}x{self.vocab_size}", array)
        return array

    def _arrange(self) -> _Arranged:
        own = any(row.plan.own for row in self.rows)
        watched = any(row.text or row.params.logprobs is not None or row.params.max_time for row in self.rows)
        self._arranged = _Arranged([row.core for row in self.rows], own, watched)
        return self._arranged

    def _worked_out(self, logits: np.ndarray, *, ended: bool) -> np.ndarray:
        """The logits, those of rows with callables of their own worked out up to the last fused run; of ended rows if asked."""
        own = [(i, row) for i, row in enumerate(self.rows) if row.plan.own and (ended or not row.reason)]
        if not own:
            return logits
        made = logits.astype(np.float64 if logits.dtype == np.float64 else np.float32)
        for i, row in own:
            made[i] = row.plan.worked_out(logits[i], row.history)
        return made

    def _in_float64(self, logits: np.ndarray) -> tuple[np.ndarray, bytes, Sequence[Any]]:
        """As `step_rows`, of logits that the reference alone reads."""
        going = [i for i, row in enumerate(self.rows) if not row.reason]
        rows = [self.rows[i] for i in going]
        drawn = decode_step(
            logits[going],
            [row.plan.last.steps(row.history) for row in rows],
            greedy=[row.params.greedy for row in rows],
            seed=[int(row.params.seed) for row in rows],
            position=[len(row.history) for row in rows],
            top_logprobs=[row.params.logprobs for row in rows],
        )
        tokens, ends = np.full(len(self.rows), -1, np.int64), bytearray(len(self.rows))
        logprobs: list[TokenLogprobs | None] = [None] * len(self.rows)
        tokens[going] = drawn.tokens
        for i, row, token, logprob in zip(going, rows, drawn.tokens.tolist(), drawn.logprobs, strict=True):
            ends[i], logprobs[i] = _native.accept_token(row.core, token if token >= 0 else None), logprob
        return tokens, bytes(ends), logprobs

    def _ids(self, name: str, ids: Any) -> list[int]:
        plain = ids.tolist() if hasattr(ids, "tolist") else ids
        column: list[Any] = list(plain) if isinstance(plain, Iterable) else [None]
        if not all(is_int(i) and 0 <= i < self.vocab_size for i in column):
            refuse(_OP, name, f"token ids in [0, {self.vocab_size})", plain)
        return [int(i) for i in column]


def _several(ids: Any) -> Any:
    return [ids] if is_int(ids) else ids
