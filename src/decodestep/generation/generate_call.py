"""One call of `generate`, advanced one forward pass at a time by `generate` and the streams."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from decodestep._base.checks import Phrase, require
from decodestep._base.threads import use_threads
from decodestep.generation.batch import Batch
from decodestep.generation.completion import Completion, build_completion
from decodestep.generation.drafts import Draft, drafters_of
from decodestep.generation.drafts.drafting import new_drafters
from decodestep.generation.model_search import ModelSearch
from decodestep.generation.prompts import Prompt, prompt_ids
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row import Row, within_room
from decodestep.sampling.row_factory import RowFactory
from decodestep.sampling.row_processors import Processors

if TYPE_CHECKING:
    from decodestep.models import Model

_OP = "generate"

Pieces = list[tuple[int, str]]  # (index of the completion, text that it gains)


class GenerateCall:
    """The rows and searches of a call of `generate`, with its arguments and errors.

    cancelled: called before every forward pass, and before each further token that one with drafts may give; once it returns
        True, all running rows and searches end. draft: as for `generate`.

    The samples of all prompts run together; then the prompts with beams are searched one after the other. A completion's index
    counts the requested completions, those of the first prompt first.
    """

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        processors: Processors,
        cancelled: Callable[[], bool] | None,
        draft: Draft,
    ) -> None:
        each = _params_of_each(params, len(prompts), model)
        ids = [prompt_ids(model, prompt) for prompt in prompts]
        each = [within_context(model, row, p) for row, p in zip(ids, each, strict=True)]
        self._model = model
        self._cancelled = cancelled or (lambda: False)
        self._rows_or_search: list[list[Row] | ModelSearch] = []
        factory = RowFactory.from_model(model, processors=processors)
        self._key_of_index: dict[int, int] = {}  # of each completion that is a sample, that of its row in the batch
        self._batch, drafters = Batch(model), drafters_of(model, draft)
        self._searches: list[tuple[int, ModelSearch]] = []  # those that have not run, with the index of the first beam
        first = 0
        for i, (p, prompt) in enumerate(zip(each, ids, strict=True)):
            if p.num_beams == 1:
                rows = [factory.row(sample, prompt, number=i) for sample in p.samples()]
                self._rows_or_search.append(rows)
                for k, row in enumerate(rows):
                    self._key_of_index[first + k] = self._batch.add(row, new_drafters(drafters, row))
            else:
                row = factory.row(p.without_beams(), prompt, number=i, num_beams=p.num_beams)
                search = ModelSearch(model, p, row, i)
                self._rows_or_search.append(search)
                self._searches.append((first, search))
            first += p.num_return_sequences
        self._index_of_key = {key: index for index, key in self._key_of_index.items()}
        self._prompt_ids = ids

    @property
    def running(self) -> bool:
        return self._batch.running or bool(self._searches)

    def advance(self) -> Iterator[tuple[int, str]]:
        """Runs one forward pass, or one whole search; yields the text added to the completions, a piece for each new token.

        Tokens that rows have drafted are drawn when they are asked for: a row that is ended before has no more.
        """
        turns = self._draw() if self._batch.running else self._search()
        begins = True
        with closing(turns):
            while True:
                if (begins or self._batch.draws_drafts) and self._cancelled():
                    yield from self.cancel()
                    return
                begins = False
                with use_threads(self._model.threads):  # not while the caller has its turn
                    pieces = next(turns, None)
                if pieces is None:
                    return
                yield from pieces

    def close(self) -> None:
        """Releases the rows' pages of the model's cache."""
        self._batch.close()

    def end(self, index: int, reason: str) -> str:
        """Ends the row of a sample if it is running; returns the text that it had held back."""
        return self._batch.end(self._key_of_index[index], reason) if index in self._key_of_index else ""

    def cancel(self) -> Pieces:
        """Ends all running rows and drops the searches that have not run; returns the text that was held back."""
        held = [(index, self._batch.end(key, "cancelled")) for index, key in self._key_of_index.items()]
        for _, search in self._searches:
            search.drop("cancelled")
        self._searches = []
        return [(index, piece) for index, piece in held if piece]

    def completions(self) -> list[Completion]:
        """The completions of all prompts, in order; that of a running row is partial, with finish_reason ""."""
        found: list[Completion] = []
        for i, (prompt, rows) in enumerate(zip(self._prompt_ids, self._rows_or_search, strict=True)):
            found += rows.completions if isinstance(rows, ModelSearch) else [build_completion(row, prompt, i) for row in rows]
        return found

    def _draw(self) -> Generator[Pieces, None, None]:
        with closing(self._batch.advance()) as turns:
            for pieces in turns:
                yield [(self._index_of_key[key], text) for key, text in pieces]

    def _search(self) -> Generator[Pieces, None, None]:
        first, search = self._searches.pop(0)
        yield [(first + place, beam.text) for place, beam in enumerate(search.run(self._cancelled))]


def _params_of_each(params: SamplingParams | Sequence[SamplingParams] | None, rows: int, model: Model) -> list[SamplingParams]:
    params = model.default_params if params is None else params
    each = list(params) if isinstance(params, Iterable) else [params] * rows
    ok = all(isinstance(row, SamplingParams) for row in each)
    require(ok, _OP, "params", "a SamplingParams, or one for each prompt", params)
    rule = f"a SamplingParams for all prompts, or {rows}, one for each"
    require(len(each) == rows, _OP, "params", rule, Phrase(f"a list of {len(each)}"))
    return each


def within_context(model: Model, ids: list[int], params: SamplingParams) -> SamplingParams:
    """The params with max_new_tokens limited to the room that the prompt leaves in the context."""
    return within_room(params, model.config.context - len(ids))
