"""generate: continues prompts with a model until every row has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decodestep._base.checks import require
from decodestep._base.dispatch import use_threads
from decodestep.generation.batch import Batch
from decodestep.generation.completion import Completion
from decodestep.generation.model_search import search
from decodestep.generation.prompts import Prompt, prompt_ids, prompts_of
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.sampler import Row, Sampler

if TYPE_CHECKING:
    from decodestep.models import Model

_OP = "generate"

StreamCallback = Callable[[int, str], bool | None]


def generate(
    model: Model,
    prompts: Prompt | Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    processors: Sequence[Callable[..., Any]] = (),
    stream: StreamCallback | None = None,
) -> list[Completion]:
    """Continues every prompt until its rows end. The rows share each forward pass and nothing else.

        run the prompts through the model in blocks
        while there are rows that have not ended:
            token = what `Sampler` draws from the logits of the row's last token, by its params, its seed and its position
            append it; end the row on an end token, a stop token or string, its length or its time
            run the new tokens of the other rows through the model together

    model: made by `load`.
    prompts: one string or one conversation, or a sequence of prompts of any kind: a string is tokenized as it stands, a
        sequence of ints is token ids, a conversation, a sequence of {"role", "content"} mappings, is rendered with the model's
        chat template. Control tokens spelled out in a string become those tokens; in a message they are text (see
        `Model.chat_ids`).
    params: a `SamplingParams` for all prompts, or one for each; None for `SamplingParams()`. max_new_tokens is cut to what the
        context has room for. A prompt has num_return_sequences completions: samples, of which number k has the seed
        `random.sample_seed(seed, k)`, or beams.
    processors: further callables (input_ids, scores) -> scores for all rows; see `Sampler`.
    stream: called as stream(index, piece) for every token, on the calling thread. index counts the completions that were asked
        for, those of the first prompt first; piece is the whole characters that the token adds to the text (often ""). If it
        returns False, the row ends.

    A row with num_beams > 1 is searched by itself (see `beam_search`), and streamed once, when its search has ended.

    Returns a `Completion` for each sample, in order, and for a beam search num_return_sequences of them, best first, or fewer
    where the search found fewer; `Completion.row` is the index of the prompt. A row's tokens depend on its prompt, its params
    and its seed alone: the same seed gives the same text in any batch, on any number of threads.
    Raises ValueError, before any work, for an empty prompt, one that fills the context, an id outside the vocabulary, or params
    that do not fit the prompts; ModelError if the chat template cannot render a conversation.
    """
    given = prompts_of(prompts)
    each = _params_of_each(params, len(given))
    ids = [prompt_ids(model, prompt) for prompt in given]
    each = [_within_context(model, row, p) for row, p in zip(ids, each, strict=True)]
    sampler = _sampler(model, processors)
    rows = _add_samples(sampler, each, ids)
    searches = {i: _search_row(model, p, ids[i], processors) for i, p in enumerate(each) if p.num_beams > 1}
    first = [0]  # of each prompt, the index of its first completion
    for p in each:
        first.append(first[-1] + p.num_return_sequences)
    indices = [first[i] + sample for i, own in rows.items() for sample in range(len(own))]
    with use_threads(model.threads):
        _run(Batch(model, sampler), indices, stream)
        completions: list[Completion] = []
        for i, prompt in enumerate(ids):
            if i in rows:
                completions += [_completion(row, prompt, i) for row in rows[i]]
                continue
            beams = search(model, each[i], searches[i], i)
            completions += beams
            if stream is not None:
                for place, beam in enumerate(beams):
                    stream(first[i] + place, beam.text)
    return completions


def _params_of_each(params: SamplingParams | Sequence[SamplingParams] | None, rows: int) -> list[SamplingParams]:
    each = [params or SamplingParams()] * rows if isinstance(params, SamplingParams | None) else list(params)
    ok = all(isinstance(row, SamplingParams) for row in each)
    require(ok, _OP, "params", "a SamplingParams, or one for each prompt", params)
    require(len(each) == rows, _OP, "params", f"one or {rows}", f"{len(each)}")
    return each


def _within_context(model: Model, ids: list[int], params: SamplingParams) -> SamplingParams:
    """The params with max_new_tokens cut to the room that the prompt leaves in the context."""
    room = model.config.context - len(ids)
    return replace(params, max_new_tokens=min(room, params.max_new_tokens or room))


def _sampler(model: Model, processors: Sequence[Callable[..., Any]]) -> Sampler:
    return Sampler(
        [],
        vocab_size=model.config.vocab_size,
        eos_token_id=model.tokenizer.end_token_ids,
        processors=processors,
        token_bytes=model.tokenizer.token_bytes,
    )


def _add_samples(sampler: Sampler, params: list[SamplingParams], ids: list[list[int]]) -> dict[int, list[Row]]:
    """Adds the samples of every prompt that is not searched; returns them by the index of the prompt."""
    rows: dict[int, list[Row]] = {}
    for i, (p, prompt) in enumerate(zip(params, ids, strict=True)):
        if p.num_beams == 1:
            rows[i] = [sampler.rows[sampler.add(sample, prompt)] for sample in p.samples()]
    return rows


def _search_row(model: Model, params: SamplingParams, prompt: list[int], processors: Sequence[Callable[..., Any]]) -> Row:
    """A row with the processors, the seed and the clock of a beam search."""
    sampler = _sampler(model, processors)
    return sampler.rows[sampler.add(params.without_beams(), prompt)]


def _run(batch: Batch, indices: list[int], stream: StreamCallback | None) -> None:
    """Runs the batch to its end. indices: of each of its rows, the index that `stream` is called with."""
    while batch.running:
        for i, piece in batch.advance():
            if stream is not None and stream(indices[i], piece) is False and not batch.rows[i].reason:
                batch.rows[i].end("cancelled")


def _completion(row: Row, prompt: list[int], prompt_index: int) -> Completion:
    tokens = row.history.tokens[len(prompt) :]
    logprobs = row.logprobs if row.params.logprobs is not None else None
    return Completion(row.text.text if row.text else "", tokens, prompt, row.reason, logprobs, row.seed, prompt_index)
