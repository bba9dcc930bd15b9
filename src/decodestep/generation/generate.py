"""generate: runs the model and the sampler in turn until every row has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decodestep._base.checks import is_int, refuse, require
from decodestep._base.dispatch import use_threads
from decodestep.generation.beam_group import Beam
from decodestep.generation.beam_logits import BeamLogits
from decodestep.generation.beam_search import NoBeamError, beam_search
from decodestep.models.kv_cache import PagedCache
from decodestep.ops.decode_step import TokenLogprobs
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.sampler import Row, Sampler
from decodestep.sampling.text_stream import TextStream

if TYPE_CHECKING:
    from decodestep.models import Model

_OP = "generate"

Prompt = str | Sequence[int] | np.ndarray | Sequence[Mapping[str, str]]
Stream = Callable[[int, str], bool | None]


@dataclass(frozen=True)
class Completion:
    """The result of one row.

    text: the generated text, cut where a stop string begins; control tokens add nothing to it.
    token_ids: every generated token, the one that ended the row included. prompt_token_ids: the prompt as the model read it.
    finish_reason: "eos" (an end token), "stop" (a stop string or token), "length" (max_new_tokens reached or the context
        full), "time" (max_time has passed), "cancelled" (the stream callback returned False), or "no_candidate" (every token
        was at -inf, for the row or for all its beams).
    logprobs: a `TokenLogprobs` for each of token_ids; None if params.logprobs is None. For beams see `beam_search`.
    """

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: str
    logprobs: list[TokenLogprobs] | None = None


def generate(
    model: Model,
    prompts: str | Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    processors: Sequence[Callable[..., Any]] = (),
    stream: Stream | None = None,
) -> list[Completion]:
    """Continues every prompt until its row ends. The rows share each forward pass and nothing else.

        run the prompts through the model in blocks
        while there are rows that have not ended:
            token = what `Sampler` draws from the logits of the row's last token, by its params, its seed and its position
            append it; end the row on an end token, a stop token or string, its length or its time
            run the new tokens of the other rows through the model together

    model: made by `load`.
    prompts: one string, or a sequence of prompts of any kind: a string is tokenized as it stands, a sequence of ints is token
        ids, a sequence of {"role", "content"} mappings is rendered with the model's chat template. Control tokens
        spelled out in a string become those tokens; in a message they are text (see `Model.chat_ids`).
    params: a `SamplingParams` for all rows, or one for each; None for `SamplingParams()`. max_new_tokens is cut to what the
        context has room for.
    processors: further callables (input_ids, scores) -> scores for all rows; see `Sampler`.
    stream: called as stream(row, piece) for every token, on the calling thread; row is the index of the prompt, piece the
        whole characters that the token adds to the row's text (often ""). If it returns False, the row ends.

    A row with num_beams > 1 is searched by itself (see `beam_search`), and streamed once, when its search has ended.

    Returns a `Completion` for each prompt, in order; for a beam search num_return_sequences of them, best first. A row's tokens
    depend on its prompt and its params alone: the same seed gives the same text in any batch, on any number of threads.
    Raises ValueError, before any work, for an empty prompt, one that fills the context, an id outside the vocabulary, or params
    that do not fit the prompts; ModelError if the chat template cannot render a conversation.
    """
    require(isinstance(prompts, Sequence), _OP, "prompts", "one string or a sequence of prompts", prompts)
    given: Sequence[Prompt] = [prompts] if isinstance(prompts, str) else prompts
    each = _params_of_each(params, len(given))
    ids = [prompt_ids(model, prompt) for prompt in given]
    each = [_within_context(model, row, p) for row, p in zip(ids, each, strict=True)]
    sampled = [i for i, p in enumerate(each) if p.num_beams == 1]
    sampler = _sampler(model, [each[i] for i in sampled], [ids[i] for i in sampled], processors)
    rows = dict(zip(sampled, sampler.rows, strict=True))
    completions: list[Completion] = []
    with use_threads(model.threads):
        _sample(model, sampler, None if stream is None else lambda row, piece: stream(sampled[row], piece))
        for i, prompt in enumerate(ids):
            if i in rows:
                completions.append(_completion(rows[i], prompt))
                continue
            row = _sampler(model, [each[i].without_beams()], [prompt], processors).rows[0]
            beams = _search(model, each[i], row)
            completions += beams
            if stream is not None:
                stream(i, beams[0].text)
    return completions


def _params_of_each(params: SamplingParams | Sequence[SamplingParams] | None, rows: int) -> list[SamplingParams]:
    each = [params or SamplingParams()] * rows if isinstance(params, SamplingParams | None) else list(params)
    ok = all(isinstance(row, SamplingParams) for row in each)
    require(ok, _OP, "params", "a SamplingParams, or one for each prompt", params)
    require(len(each) == rows, _OP, "params", f"one or {rows}", f"{len(each)}")
    return each


def _sampler(
    model: Model, params: Sequence[SamplingParams], ids: list[list[int]], processors: Sequence[Callable[..., Any]]
) -> Sampler:
    return Sampler(
        params,
        vocab_size=model.config.vocab_size,
        eos_token_id=model.tokenizer.end_token_ids,
        prompt_ids=ids,
        processors=processors,
        token_bytes=model.tokenizer.token_bytes,
    )


def _completion(row: Row, prompt: list[int]) -> Completion:
    tokens = row.history.tokens[len(prompt) :]
    logprobs = row.logprobs if row.params.logprobs is not None else None
    return Completion(row.text.text if row.text else "", tokens, prompt, row.reason, logprobs)


def _search(model: Model, params: SamplingParams, row: Row) -> list[Completion]:
    """Beam search. row: one that has only its prompt; its processors and its clock are used. Returns the beams, best first."""
    prompt = row.history.tokens
    end_token_ids = frozenset() if params.ignore_eos else model.tokenizer.end_token_ids

    def text_of(tokens: list[int]) -> TextStream:
        text = TextStream(model.tokenizer.token_bytes, params.stop_strings)
        for token in tokens:
            text.push(token)
        return text

    def stop(tokens: list[int]) -> bool:
        return row.late() or tokens[-1] in params.stop_token_ids or (bool(params.stop_strings) and text_of(tokens).stopped)

    length = params.max_new_tokens or 1
    try:
        beams = beam_search(
            BeamLogits(model, params.num_beams, len(prompt) + length),
            prompt,
            vocab_size=model.config.vocab_size,
            max_new_tokens=length,
            num_beams=params.num_beams,
            eos_token_ids=end_token_ids,
            num_beam_groups=params.num_beam_groups,
            diversity_penalty=params.diversity_penalty,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            num_return_sequences=params.num_return_sequences,
            processors=row.plan.processors,
            do_sample=not params.greedy,
            seed=params.seed,
            stop=stop,
            top_logprobs=params.logprobs,
        )
    except NoBeamError:
        return [Completion("", [], prompt, "no_candidate", None if params.logprobs is None else [])]

    def reason(beam: Beam) -> str:
        if not beam.finished:
            return "length"
        if beam.token_ids[-1] in end_token_ids:
            return "eos"
        return "time" if row.late() else "stop"

    completions = []
    for beam in beams:
        text = text_of(beam.token_ids)
        text.finish()
        completions.append(Completion(text.text, beam.token_ids, prompt, reason(beam), beam.logprobs))
    return completions


def prompt_ids(model: Model, prompt: Prompt) -> list[int]:
    """The token ids of a prompt, as `generate` passes them to the model. Raises as `generate` does."""
    vocab, context = model.config.vocab_size, model.config.context
    if not isinstance(prompt, Iterable):
        refuse(_OP, "prompt", f"text, messages or token ids in [0, {vocab})", prompt)
    items: list[Any] = [] if isinstance(prompt, str) else list(prompt)
    if isinstance(prompt, str):
        ids = _encode(model.tokenizer.encode, prompt)
    elif items and all(isinstance(item, Mapping) for item in items):
        ids = _encode(model.chat_ids, items)
    elif all(is_int(i) and 0 <= i < vocab for i in items):
        ids = [int(i) for i in items]
    else:
        refuse(_OP, "prompt", f"text, messages or token ids in [0, {vocab})", prompt)
    require(len(ids) > 0, _OP, "prompt", "at least one token long", "an empty prompt")
    require(len(ids) < context, _OP, "prompt", f"shorter than the context of {context} tokens", f"{len(ids)} tokens")
    return ids


def _encode(encode: Callable[[Any], list[int]], prompt: Any) -> list[int]:
    try:
        return encode(prompt)
    except UnicodeEncodeError:
        refuse(_OP, "prompt", "text that UTF-8 can hold", ascii(prompt))


def _within_context(model: Model, ids: list[int], params: SamplingParams) -> SamplingParams:
    """The params with max_new_tokens cut to the room that the prompt leaves in the context."""
    room = model.config.context - len(ids)
    return replace(params, max_new_tokens=min(room, params.max_new_tokens or room))


def _sample(model: Model, sampler: Sampler, stream: Stream | None) -> None:
    """Runs the rows of the sampler to their ends; ended rows are removed from it."""
    rows = list(sampler.rows)
    cache = model.decoder.new_cache([len(row.history) + (row.params.max_new_tokens or 0) for row in rows])
    logits = _prefill(model, sampler, cache)
    running = _remove_ended(sampler, list(range(len(rows))))  # indices into `rows`, which are also the cache's sequences
    logits = logits[running]
    while running:
        result = sampler.step(logits)
        for i, piece in zip(running, result.text, strict=True):
            if stream is not None and stream(i, piece) is False and not rows[i].reason:
                rows[i].end("cancelled")
        running = _remove_ended(sampler, running)
        if running:
            tokens = np.array([rows[i].history.tokens[-1] for i in running])
            positions = np.array([len(rows[i].history) - 1 for i in running])
            logits = model.decoder.logits(tokens, np.array(running), positions, cache, wanted=np.arange(len(running)))


def _remove_ended(sampler: Sampler, running: list[int]) -> list[int]:
    """Removes the ended rows from the sampler. running: an index for each of its rows; returns those of the rows that stay."""
    ended = [place for place, row in enumerate(sampler.rows) if row.reason]
    for place in reversed(ended):
        sampler.remove(place)
    return [i for place, i in enumerate(running) if place not in ended]


def _prefill(model: Model, sampler: Sampler, cache: PagedCache) -> np.ndarray:
    """Runs every prompt, block by block over all rows; returns the logits of each row's last token."""
    rows = sampler.rows
    out = np.zeros((len(rows), model.config.vocab_size), np.float32)
    if not rows:
        return out
    tokens = np.concatenate([np.array(row.history.tokens) for row in rows])
    lengths = np.array([len(row.history) for row in rows])
    ends, sequence = np.cumsum(lengths), np.repeat(np.arange(len(rows)), lengths)
    positions = np.arange(len(tokens)) - (ends - lengths)[sequence]
    for done, logits in model.decoder.in_blocks(tokens, sequence, positions, cache, wanted=ends - 1):
        out[done] = logits
        for row in rows:
            if row.late():
                row.end("time")
    return out
