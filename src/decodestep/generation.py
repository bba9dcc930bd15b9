"""The loop: forward, decode_step, stop, stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decodestep.checks import is_int, refuse, require
from decodestep.dispatch import use_threads
from decodestep.models import PREFILL_BLOCK, Model
from decodestep.ops.decode_step import decode_step
from decodestep.params import SamplingParams
from decodestep.text import TextStream

_OP = "generate"

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
Stream = Callable[[int, str], bool | None]


@dataclass(frozen=True)
class Completion:
    """What one row came to.

    text: the generated text, cut where a stop string begins; control tokens add nothing to it.
    token_ids: every generated token, the ending one included. prompt_token_ids: what the model was given.
    finish_reason: "eos" (an end token), "stop" (a stop string), "length" (max_new_tokens or the context is full), "time"
        (max_time has passed) or "cancelled" (the stream callback returned False).
    logprobs: None; log-probabilities are not recorded yet.
    """

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: str
    logprobs: None = None


def generate(
    model: Model,
    prompts: str | Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    stream: Stream | None = None,
) -> list[Completion]:
    """Continues every prompt until its row stops; the rows share each forward pass and nothing else.

        run the prompts through the model in blocks
        while a row is unfinished:
            token = decode_step(logits of the row's last token, its params, its seed, its position)
            append it; finish the row on an end token, a stop string, its length or its time
            run the unfinished rows' tokens through the model together

    prompts: one string or a sequence of prompts, each of any length: a string is tokenized as it stands, a sequence of ints
        is token ids, a sequence of {"role", "content"} mappings is rendered with the model's chat template.
    params: `SamplingParams` for all rows, or one for each; None for `SamplingParams()`.
    stream: called as stream(row, piece) for every token, on the calling thread, with the whole characters that it adds
        to the row's text (often ""). Returning False ends the row.

    Returns a `Completion` for each prompt, in order. A row's tokens depend on its prompt and its params alone: the same
    seed gives the same text in any batch, on any number of threads.
    Raises ValueError, before any work, for an empty prompt, one longer than the context, or an id outside the vocabulary.
    """
    given: Sequence[Prompt] = [prompts] if isinstance(prompts, str) else prompts
    each = [params or SamplingParams()] * len(given) if isinstance(params, SamplingParams | None) else list(params)
    require(len(each) == len(given), _OP, "params", f"one or {len(given)}", f"{len(each)}")
    started = time.monotonic()
    rows = [
        _Row(i, ids, p, TextStream(model.tokenizer.token_bytes, p.stop_strings), _budget(model, ids, p))
        for i, (ids, p) in enumerate(zip([_token_ids(model, prompt) for prompt in given], each, strict=True))
    ]
    with use_threads(model.threads):
        _run(model, rows, started, stream)
    return [Completion(r.text.text, r.tokens[len(r.prompt):], r.prompt, r.finish_reason) for r in rows]


@dataclass
class _Row:
    index: int
    prompt: list[int]
    params: SamplingParams
    text: TextStream
    budget: int  # tokens that may still be generated
    finish_reason: str = ""
    tokens: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    def accept(self, token: int, ends: frozenset[int], started: float, stream: Stream | None) -> None:
        """Appends a token and finds out whether it is the row's last."""
        self.tokens.append(token)
        self.budget -= 1
        piece = self.text.push(token)
        if token in ends and not self.params.ignore_eos:
            self.finish_reason = "eos"
        elif self.text.stopped:
            self.finish_reason = "stop"
        elif self.budget == 0:
            self.finish_reason = "length"
        elif self.late(started):
            self.finish_reason = "time"
        if self.finish_reason:
            piece += self.text.finish()
        if stream is not None and stream(self.index, piece) is False and not self.finish_reason:
            self.finish_reason = "cancelled"
            self.text.finish()

    def late(self, started: float) -> bool:
        return self.params.max_time is not None and time.monotonic() - started > self.params.max_time


def _token_ids(model: Model, prompt: Prompt) -> list[int]:
    """A prompt as token ids, checked."""
    vocab, context = model.config.vocab_size, model.config.context
    items: list[Any] = [] if isinstance(prompt, str) else list(prompt)
    if isinstance(prompt, str):
        ids = _encode(model, prompt)
    elif items and all(isinstance(item, Mapping) for item in items):
        ids = _encode(model, model.chat_prompt(items))
    else:
        if not all(is_int(i) and 0 <= i < vocab for i in items):
            refuse(_OP, "prompt", f"text, messages or token ids in [0, {vocab})", prompt)
        ids = [int(i) for i in items]
    require(len(ids) > 0, _OP, "prompt", "at least one token long", "an empty prompt")
    require(len(ids) < context, _OP, "prompt", f"shorter than the context of {context} tokens", f"{len(ids)} tokens")
    return ids


def _encode(model: Model, text: str) -> list[int]:
    try:
        return model.tokenizer.encode(text)
    except UnicodeEncodeError:
        refuse(_OP, "prompt", "text that UTF-8 can hold", text)


def _budget(model: Model, ids: list[int], params: SamplingParams) -> int:
    room = model.config.context - len(ids)
    return room if params.max_new_tokens is None else min(room, params.max_new_tokens)


def _run(model: Model, rows: list[_Row], started: float, stream: Stream | None) -> None:
    cache = model.decoder.new_cache([len(row.prompt) + row.budget for row in rows])
    ends = model.tokenizer.end_token_ids
    hidden = _prefill(model, rows, cache, started)
    active = [row for row in rows if not row.finish_reason]
    hidden = hidden[[row.index for row in active]]
    while active:
        tokens = _next_tokens(model, active, hidden)
        for row, token in zip(active, tokens, strict=True):
            row.accept(token, ends, started, stream)
        active = [row for row in active if not row.finish_reason]
        if active:
            last = np.array([row.tokens[-1] for row in active])
            positions = np.array([len(row.tokens) - 1 for row in active])
            hidden = model.decoder.forward(last, np.array([row.index for row in active]), positions, cache)


def _prefill(model: Model, rows: list[_Row], cache: Any, started: float) -> np.ndarray:
    """Runs every prompt, block by block over all rows; returns the hidden state of each row's last token."""
    tokens = np.concatenate([np.array(row.prompt) for row in rows]) if rows else np.zeros(0, np.int64)
    sequence = np.repeat([row.index for row in rows], [len(row.prompt) for row in rows]).astype(np.int64)
    ends = np.cumsum([len(row.prompt) for row in rows], dtype=np.int64)
    positions = np.arange(len(tokens)) - (ends - [len(row.prompt) for row in rows])[sequence] if rows else tokens
    hidden = np.zeros((len(rows), model.config.hidden), np.float32)
    for start in range(0, len(tokens), PREFILL_BLOCK):
        block = slice(start, start + PREFILL_BLOCK)
        states = model.decoder.forward(tokens[block], sequence[block], positions[block], cache)
        last = np.flatnonzero((ends > start) & (ends <= start + PREFILL_BLOCK))
        hidden[last] = states[ends[last] - 1 - start]
        for row in rows:
            if row.late(started):
                row.finish_reason = "time"
    return hidden


def _next_tokens(model: Model, rows: list[_Row], hidden: np.ndarray) -> list[int]:
    params = [row.params for row in rows]
    penalised = any(p.repetition_penalty != 1 for p in params)
    tokens = decode_step(
        model.decoder.logits(hidden),
        temperature=[0.0 if p.greedy else p.temperature for p in params],
        top_k=[p.top_k for p in params],
        top_p=[p.top_p for p in params],
        min_p=[p.min_p for p in params],
        repetition_penalty=[p.repetition_penalty for p in params],
        history=[row.tokens for row in rows] if penalised else None,
        seed=np.array([p.seed for p in params], np.uint64),
        position=[len(row.tokens) for row in rows],
    )
    return [int(token) for token in tokens]
