"""Row: one sequence of a sampler, from its parameters to its end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from decodestep._base.checks import require
from decodestep.constraints.processor import ConstraintLogitsProcessor
from decodestep.ops.decode_step import TokenLogprobs
from decodestep.ops.decode_step.rows import NativeRow
from decodestep.sampling.packed_logprobs import PackedLogprobs
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.plan import Plan
from decodestep.sampling.text_stream import TextStream
from decodestep.sampling.token_history import TokenHistory


@dataclass(slots=True)
class Row:
    """One sequence: its parameters, its tokens, and why it has ended (`reason`, empty while it is running).

    params: those given, with the row's actual seed, and max_length merged into max_new_tokens. native: the core's row object.
    text: None without token_bytes. ends: the tokens that end the row with "eos". started: time.monotonic() when it was added.
    prompt_logprobs, cached_tokens: filled by the code that runs the prompt, the first if params.prompt_logprobs is set.
    logprobs: of every token so far, if params.logprobs is set. error: the exception of the reason "error".
    """

    params: SamplingParams
    history: TokenHistory
    plan: Plan
    native: NativeRow
    text: TextStream | None
    ends: frozenset[int]
    started: float
    reason: str = ""
    error: BaseException | None = None
    logprobs: PackedLogprobs = field(default_factory=PackedLogprobs)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    cached_tokens: int = 0  # of the prompt, which did not run

    @property
    def seed(self) -> int | None:
        """The seed of the row's draws, given or new; None for a greedy row without a given seed."""
        return None if self.params.seed is None else int(self.params.seed)

    @property
    def watched(self) -> bool:
        """Whether Python must look at the row after each step: for its text, its log-probabilities or its deadline."""
        return bool(self.text or self.params.logprobs is not None or self.params.max_time)

    @property
    def constraint(self) -> ConstraintLogitsProcessor | None:
        return next((p for p in self.plan.processors if isinstance(p, ConstraintLogitsProcessor)), None)

    def explain(self) -> str:
        """The row's plan as text: one line for each processor, and one for how it chooses its token."""
        ending = "argmax of the scores" if self.params.greedy else "draw: first argmax of score + gumbel(seed, position, token)"
        return "\n".join(filter(None, (self.plan.explain(), f"{len(self.plan.processors) + 1:>3}. {ending}")))

    def late(self) -> bool:
        return self.params.max_time is not None and time.monotonic() - self.started > self.params.max_time

    def accept(self, token: int, reason: str) -> str:
        """Adds a token to the text and ends the row if it is due; returns the text that becomes final.

        token: drawn by the core and appended to the history, or -1. reason: why that ends the row, or ""; what the core does
        not know is checked here: stop strings, the deadline, and whether a row whose end is forbidden is at its end.
        """
        if reason == "no_candidate" and (constraint := self.constraint) is not None and constraint.complete:
            reason = "eos"
        piece = self.text.push(token) if self.text and token >= 0 else ""
        if self.text and self.text.stopped and reason != "eos":
            reason = "stop"
        elif not reason and self.late():
            reason = "time"
        return piece + self.end(reason) if reason else piece

    def end(self, reason: str) -> str:
        """Ends the row; returns the text that it had held back."""
        self.reason = reason
        self.native.ended = True
        return self.text.finish() if self.text else ""

    def fail(self, error: BaseException) -> str:
        """Ends the row with an exception; returns the text that it had held back."""
        self.error = error
        return self.end("error")


def within_length(params: SamplingParams, prompt_length: int) -> SamplingParams:
    """The params with max_length as a max_new_tokens."""
    if params.max_length is None:
        return params
    room = params.max_length - prompt_length
    require(room >= 1, "Sampler", "max_length", f"above the {prompt_length} tokens of the prompt", params.max_length)
    return within_room(replace(params, max_length=None), room)


def within_room(params: SamplingParams, room: int) -> SamplingParams:
    """The params with max_new_tokens limited to a number of tokens, >= 1, which is also the meaning of None."""
    return replace(params, max_new_tokens=min(room, params.max_new_tokens or room))
