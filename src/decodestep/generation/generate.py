"""generate: continues prompts with a model until every row has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from decodestep._base.checks import require
from decodestep.generation.completion import Completion
from decodestep.generation.drafts import Draft
from decodestep.generation.generate_call import GenerateCall, Progress
from decodestep.generation.pieces import Piece
from decodestep.generation.prompts import Prompt, Prompts, list_prompts
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row_processors import Processors

if TYPE_CHECKING:
    from decodestep.chat.template import Conversation
    from decodestep.models import Model

StreamCallback = Callable[[int, Piece], bool | None]


@overload
def generate(
    model: Model,
    prompts: str | Conversation | Mapping[str, Any],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    processors: Processors = (),
    stream: StreamCallback | None = None,
    cancelled: Callable[[], bool] | None = None,
    progress: Progress | None = None,
    draft: Draft = "auto",
) -> list[Completion]: ...
@overload
def generate(
    model: Model,
    prompts: Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    processors: Processors = (),
    stream: StreamCallback | None = None,
    cancelled: Callable[[], bool] | None = None,
    progress: Progress | None = None,
    draft: Draft = "auto",
) -> list[Completion]: ...
def generate(
    model: Model,
    prompts: Prompts,
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    processors: Processors = (),
    stream: StreamCallback | None = None,
    cancelled: Callable[[], bool] | None = None,
    progress: Progress | None = None,
    draft: Draft = "auto",
) -> list[Completion]:
    """Continues every prompt until its rows end. The rows share each forward pass and nothing else.

        run the prompts through the model in blocks
        while there are rows that have not ended:
            run the new tokens of the rows through the model together, with tokens that they draft
            token = what `Sampler` draws from the logits of the row's last token, by its params, its seed and its position
            append it; end the row on an end token, a stop token or string, its length or its time
            while the token equals the next of the row's draft: draw the next one, from the logits of that

    Prompts with num_beams > 1 are searched one by one, after the samples of the others (see `beam_search`), and streamed when
    their search has ended. A search that is cancelled or out of time returns the beams found so far.

    If a row's own code raises (a processor or the tokenizer's token_bytes), the row ends with finish_reason "error" and the
    exception in `Completion.error`; the other rows are not affected. An exception raised by `stream` or `cancelled`, or
    KeyboardInterrupt, ends the call immediately and leaves nothing running. The earlier pieces have been passed to `stream`;
    `decodestep.stream` also keeps the tokens.

    At most 512 rows run at a time; the others wait. Rows use pages of the model's cache (see `load`); rows for which there is
    no room wait until others end, in this call or in another thread's. A row for which open sequences (`Model.sequence`) leave
    no room ends with "error" and a CacheFullError; in a program of one thread also one for which open streams, or the call
    whose processor calls, leave none.

    Args:
        model: made by `load`.
        prompts: one string or one conversation, or a sequence of prompts of any kind: a string is tokenized unchanged, a
            sequence of ints is token ids, a conversation, a sequence of {"role", "content"} mappings, is rendered with the
            model's chat template. A mapping with "messages" is a conversation with more for the template: "tools" (mappings, or
            Python functions as `decodestep.chat.describe_function` takes them, which the caller calls), "documents",
            other variables in "chat_template_kwargs", and "continue_final_message", a bool, to go on with the last message in
            place of a new one. What is answered to a conversation is read: see `Completion.reasoning`, `Completion.content` and
            `Completion.tool_calls`. Control tokens spelled out in a string become those tokens; in a message they are text (see
            `Model.chat_ids`).
        params: a `SamplingParams` for all prompts, or one for each; None for the model's own, `Model.default_params`. What is
            given replaces all of these. max_new_tokens is limited to the room in the context. A prompt has num_return_sequences
            completions: samples, of which sample k has the seed `random.sample_seed(seed, k)`, or beams.
        processors: additional callables (input_ids, scores) -> scores for all rows, or a factory called with the index of the
            prompt, once for each row: ``processors=lambda row: [...]``. Those with state need a factory, and are refused beside
            beams. See `Sampler`.
        stream: called as stream(index, piece) for every token, on the calling thread. index counts the requested completions,
            those of the first prompt first; piece is a `Piece`: a string of the complete characters that the token adds to the
            text (often ""), whose `parts` say what it adds to the reasoning, the content and the calls of an answer to a
            conversation. If the function returns False, the row ends; what was still held back is passed in one more call,
            whose result is ignored. The pieces of a completion always join to its text, and their parts to what it has.
        cancelled: called before every forward pass: a block of the prompts, a token of every row, or a step of a search; and
            before rows draw another token from a pass with drafts. Once it returns True, all running rows and searches end with
            finish_reason "cancelled".
        progress: called as progress(tokens run, all tokens), of the prompts of all rows and searches, at the beginning and
            after every forward pass until all have been run. What it raises ends the call.
        draft: where rows draft tokens that they may draw next, so that one forward pass gives several: "auto", where this saves
            time; "lookup", in their own text and prompt; a function that makes a `Drafter` for each row; None, nowhere. It
            changes the time, never the text: see docs/speculation.md. `SamplingParams.draft` turns it off for a row.

    Returns:
        A `Completion` for each sample, in order, and for a beam search num_return_sequences of them, best first, or fewer if
        the search found fewer; `Completion.prompt_index` is the index of the prompt. A row's tokens depend only on its prompt,
        params and seed: the same seed gives the same text in any batch, on any number of threads.

    Raises:
        ValueError: before any work, for an empty prompt, one that fills the context, an id outside the vocabulary, or params
            that do not fit the prompts.
        ModelError: if the chat template cannot render a conversation, or the tokenizer has no token for a part of a text.
        CacheFullError: if a row alone may need more pages than the cache has.
    """
    for name, function in (("stream", stream), ("cancelled", cancelled), ("progress", progress)):
        require(function is None or callable(function), "generate", name, "a function or None", function)
    with closing(
        GenerateCall(model, list_prompts(prompts), params, processors, cancelled, draft, progress, reads=stream is not None)
    ) as call:
        call.report_prompts()
        while call.running:
            for index, piece in call.advance():
                if stream is None or not _is_false(stream(index, piece)):
                    continue
                if (held := call.end(index, "cancelled")) is not None:
                    stream(index, held)
        return call.completions()


def _is_false(answer: object) -> bool:
    """Whether it is False, or NumPy's False, which comparisons of its numbers give."""
    return isinstance(answer, (bool, np.bool_)) and not answer
