"""Row: one sequence, from its parameters to its end; and the step that several rows take together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from decodestep._base.arrays import Array
from decodestep._base.checks import require, require_dtype
from decodestep.constraints.processor import ConstraintLogitsProcessor
from decodestep.ops.decode_step import TokenLogprobs, reference
from decodestep.ops.decode_step.rows import DTYPES, END_REASONS, NativeRow, step_rows
from decodestep.sampling.packed_logprobs import PackedLogprobs
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.plan import Plan
from decodestep.sampling.row_processors import stateful_names
from decodestep.sampling.text_stream import TextStream
from decodestep.sampling.thinking_budget import ThinkingBudget
from decodestep.sampling.token_history import TokenHistory
from decodestep.sampling.trace import Trace

_OP = "Sampler"
Drawn = tuple[np.ndarray, bytes | None, Sequence[Any] | None]  # what `step_rows` returns


class Taken(NamedTuple):
    """What one step adds to a row: the token, -1 for none; the text that became final; log-probabilities, if wanted."""

    token: int
    text: str
    logprobs: TokenLogprobs | None


@dataclass(slots=True)
class Row:
    """One sequence: its parameters, its tokens, and why it has ended (`reason`, empty while it is running).

    Attributes:
        params: those given, with the row's actual seed, and max_length merged into max_new_tokens.
        native: the core's row object.
        text: None without token_bytes.
        ends: the tokens that end the row with "eos".
        started: time.monotonic() when it was added.
        constraint: of the row's text, or None.
        budget: of its reasoning, or None.
        error: the exception of the reason "error".
        logprobs: of every token so far, if params.logprobs is set.
        prompt_logprobs: filled by the code that runs the prompt, if params.prompt_logprobs is set.
        cached_tokens: of the prompt, which did not run; filled likewise.
        drafted: how many tokens have been drafted for it, by kind ("prediction" for those of params.prediction); filled by the
            code that drafts.
        accepted: the kinds of those of them that were drawn, by their places in the history; filled likewise.
    """

    params: SamplingParams
    history: TokenHistory
    plan: Plan
    native: NativeRow
    text: TextStream | None
    ends: frozenset[int]
    started: float
    constraint: ConstraintLogitsProcessor | None = None
    reason: str = ""
    error: BaseException | None = None
    logprobs: PackedLogprobs = field(default_factory=PackedLogprobs)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    cached_tokens: int = 0
    drafted: dict[str, int] = field(default_factory=dict)
    accepted: dict[int, str] = field(default_factory=dict)
    budget: ThinkingBudget | None = None

    @property
    def seed(self) -> int | None:
        """The seed of the row's draws, given or new; None for a greedy row without a given seed."""
        return None if self.params.seed is None else int(self.params.seed)

    @property
    def watched(self) -> bool:
        """Whether Python must look at the row after each step: for its text, its log-probabilities or its deadline."""
        return bool(self.text or self.params.logprobs is not None or self.params.max_time)

    def explain(self) -> str:
        """The row's plan as text: one line for each processor, and one for how it chooses its token."""
        ending = "argmax of the scores" if self.params.greedy else "draw: first argmax of score + gumbel(seed, position, token)"
        return "\n".join(filter(None, (self.plan.explain(), f"{len(self.plan.stages) + 1:>3}. {ending}")))

    def trace(self, logits: Array, spell: Callable[[int], str] | None = None) -> Trace:
        """What the row's processors do to logits (V,), and the token that a step would draw: see `Plan.trace`."""
        return self.plan.trace(logits, self.history, seed=self.seed or 0, greedy=self.params.greedy, spell=spell)

    def step(self, logits: np.ndarray, draft: Sequence[int] = ()) -> list[Taken]:
        """`Sampler.steps` of this row alone.

        Args:
            logits: (len(draft) + 1, V), those after the row's last token, and after each token of the draft.

        Returns:
            What each token drawn adds: at least one, and at most one more than the draft has.
        """
        alone, taken = RowBatch([self]), list[Taken]()
        for place in range(len(draft) + 1):
            here = logits[place : place + 1]
            (tokens, end_codes, logprobs), held = alone.draw(here)
            token = int(tokens[0])
            if self.reason:
                taken.append(Taken(token, held.get(0, ""), None))
            else:
                code, fields = end_codes[0] if end_codes else 0, logprobs and logprobs[0]
                taken.append(Taken(token, *self.take(token, code, fields, here[0])))
            if self.reason or place == len(draft) or token != draft[place]:
                break
        return taken

    def take(
        self, token: int, end_code: int, logprobs: Sequence[Any] | None, logits: np.ndarray
    ) -> tuple[str, TokenLogprobs | None]:
        """Takes what a step has drawn for the row, which was running; returns the text that became final, log-probabilities.

        What the core does not know ends the row here: stop strings, the deadline, and an end that is forbidden although the
        constraint's text is complete. A row whose text fails ends with the error.

        Args:
            token: as of `step_rows`, for this row.
            end_code: likewise.
            logprobs: likewise.
            logits: (V,), the model's.
        """
        reason, found, text = END_REASONS[end_code], None, self.text
        if logprobs is not None:
            found = TokenLogprobs(*logprobs)
            if self.plan.unfused:  # the core was given what those processors left
                unprocessed = reference.candidates(logits, (), 0)
                raw, top_raw = reference.logprobs_of(unprocessed, token, self.params.logprobs or 0)
                found = found._replace(raw=raw, top_raw=top_raw)
            self.logprobs.append(found)
        try:
            if reason == "no_candidate" and self.constraint is not None and self.constraint.complete:
                reason = "eos"
            piece = text.push(token) if text and token >= 0 else ""
            if text and text.stop and reason != "eos":
                reason = "stop"
            elif not reason and self.late():
                reason = "time"
            return piece + self.end(reason) if reason else piece, found
        except Exception as error:
            return self.fail(error), found

    @property
    def can_go_back(self) -> bool:
        """Whether `truncate` may be called: nothing that the row keeps, but for its history, depends on its tokens."""
        stateful = stateful_names([processor for _, processor in self.plan.unfused])
        return not (self.text or self.constraint or self.budget or stateful or self.params.logprobs is not None)

    def truncate(self, length: int) -> None:
        """Takes back all but the first `length` tokens, the prompt at least; if the row has ended, it runs again.

        Raises ValueError, and nothing has changed, for a row that cannot go back, and as `TokenHistory.truncate` does.
        """
        require(
            self.can_go_back, _OP, "row", "without text, constraint, log-probabilities and processors with state", self.params
        )
        self.history.truncate(length)
        self.reason, self.error = "", None
        self.native.ended = False

    def late(self) -> bool:
        return self.params.max_time is not None and time.monotonic() - self.started > self.params.max_time

    def end(self, reason: str) -> str:
        """Ends the row; returns the text that it had held back."""
        self.reason = reason
        self.native.ended = True
        return self.text.finish() if self.text else ""

    def fail(self, error: BaseException) -> str:
        """Ends the row with an exception; returns the text that it had held back."""
        self.error = error
        return self.end("error")


class RowBatch:
    """Rows that step together, and what a step needs to know of them all: gathered once, because a step of one row takes less
    than ten microseconds.

    native: the core's rows. no_texts, no_logprobs: what a step reports of rows that nobody watches.
    """

    __slots__ = ("any_unfused", "any_watched", "native", "no_logprobs", "no_texts", "rows")

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.native = [row.native for row in rows]
        self.any_unfused = any(row.plan.unfused for row in rows)
        self.any_watched = any(row.watched for row in rows)
        self.no_texts: tuple[str, ...] = ("",) * len(rows)
        self.no_logprobs: tuple[TokenLogprobs | None, ...] = (None,) * len(rows)

    def draw(self, logits: np.ndarray, places: list[int] | None = None) -> tuple[Drawn, dict[int, str]]:
        """Draws a token for every running row, and appends it to the row's history, in one call of the core.

        logits: (rows, V). places: for each row, which row of the logits it draws from; None: the one of its own index.

        Returns what `step_rows` does, and the text that rows held back whose processors failed, by their index: these rows end
        with their error. Raises ValueError for other logits; then no row has changed.
        """
        scores = logits
        held: dict[int, str] = {}
        if self.any_unfused:
            scores = self.apply_unfused(logits if places is None else logits[places], held)
            places = None
        try:
            return step_rows(scores, self.native, places), held
        except Exception as error:  # no row has changed
            held |= self._fail_those_to_blame(error)
            return step_rows(scores, self.native, places), held

    def apply_unfused(self, logits: np.ndarray, held: dict[int, str] | None = None) -> np.ndarray:
        """The logits, or a copy in which the rows' unfused processors have run, up to the fused tail of their plans.

        held: where a processor raises, its row ends, and what it had held back is put here; rows that have ended are left out.
            None: nothing ends, and all rows are processed.
        """
        rows = [(i, row) for i, row in enumerate(self.rows) if row.plan.unfused and (held is None or not row.reason)]
        if not rows:
            return logits
        require_dtype(_OP, "logits", logits, DTYPES if held is not None else (*DTYPES, np.dtype(np.float64)))
        scores = logits.astype(np.float64 if logits.dtype == np.float64 else np.float32)
        for i, row in rows:
            try:
                scores[i] = row.plan.apply_unfused(logits[i], row.history)
            except Exception as error:
                if held is None:
                    raise
                held[i] = row.fail(error)
        return scores

    def _fail_those_to_blame(self, error: Exception) -> dict[int, str]:
        """Ends the rows whose fused processors cannot compute their steps; raises `error` if there is none."""
        held: dict[int, str] = {}
        for i, row in enumerate(self.rows):
            if not row.reason:
                try:
                    row.plan.tail.steps(row.history)
                except Exception as own:
                    held[i] = row.fail(own)
        if not held:
            raise error
        return held


def within_length(params: SamplingParams, prompt_length: int) -> SamplingParams:
    """The params with max_length as a max_new_tokens."""
    if params.max_length is None:
        return params
    room = params.max_length - prompt_length
    require(room >= 1, "Sampler", "max_length", f"above the {prompt_length} tokens of the prompt", params.max_length)
    return within_room(params.replace(max_length=None), room)


def within_room(params: SamplingParams, room: int) -> SamplingParams:
    """The params with max_new_tokens limited to a number of tokens, >= 1, which is also the meaning of None."""
    return params.replace(max_new_tokens=min(room, params.max_new_tokens or room))
