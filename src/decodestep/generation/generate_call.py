"""One call of `generate`, advanced one forward pass at a time by `generate` and the streams."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from decodestep._base.checks import Phrase, require
from decodestep._base.threads import use_threads
from decodestep.generation.batch import Batch
from decodestep.generation.completion import Completion, build_completion
from decodestep.generation.drafts import Draft, drafters_of
from decodestep.generation.drafts.drafting import new_drafters
from decodestep.generation.model_search import ModelSearch
from decodestep.generation.pieces import Piece, PieceReader, stop_of
from decodestep.generation.prompts import Prompt, read_prompt
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row import Row, within_room
from decodestep.sampling.row_factory import RowFactory
from decodestep.sampling.row_processors import Processors

if TYPE_CHECKING:
    from decodestep.models import Model

_OP = "generate"

Pieces = list[tuple[int, Piece]]  # (index of the completion, text that it gains)
Progress = Callable[[int, int], object]  # tokens of the prompts that have been run, all of them


class GenerateCall:
    """The rows and searches of a call of `generate`, with its arguments and errors.

    cancelled: called before every forward pass, and before each further token that one with drafts may give; once it returns
        True, all running rows and searches end. draft, progress: as for `generate`.

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
        progress: Progress | None = None,
        *,
        reads: bool = True,
    ) -> None:
        """reads: whether the pieces say what of an answer they are."""
        each = _params_of_each(params, len(prompts), model)
        read = [read_prompt(model, prompt) for prompt in prompts]
        each = [within_context(model, prompt.ids, p) for prompt, p in zip(read, each, strict=True)]
        self._model = model
        self._cancelled = cancelled or (lambda: False)
        self._progress = progress  # None once all prompts have been run
        self._rows_or_search: list[list[Row] | ModelSearch] = []
        self._readers: list[PieceReader] = []  # of each completion
        factory = RowFactory.from_model(model, processors=processors)
        # Of each completion that is a sample, its row, and the key of that in the batch.
        self._row_of_index: dict[int, Row] = {}
        self._key_of_index: dict[int, int] = {}
        self._batch, drafters = Batch(model), drafters_of(model, draft)
        self._searches: list[tuple[int, ModelSearch]] = []  # those that have not run, with the index of the first beam
        first = 0
        for i, (p, prompt) in enumerate(zip(each, read, strict=True)):
            ids, answer = prompt
            texts = model.tokenizer.showing(() if answer is None else answer.spelled)
            showing = factory.showing(texts, prompt.marks(p))
            if p.num_beams == 1:
                rows = [showing.row(sample, ids, number=i) for sample in p.samples()]
                self._rows_or_search.append(rows)
                for k, row in enumerate(rows):
                    self._key_of_index[first + k] = self._batch.add(row, new_drafters(drafters, row))
                    self._row_of_index[first + k] = row
            else:
                row = showing.row(p.without_beams(), ids, number=i, num_beams=p.num_beams)
                search = ModelSearch(model, p, row, i, texts)
                self._rows_or_search.append(search)
                self._searches.append((first, search))
            self._readers += [PieceReader(answer, reads=reads) for _ in range(p.num_return_sequences)]
            first += p.num_return_sequences
        self._index_of_key = {key: index for index, key in self._key_of_index.items()}
        self._prompt_ids = [prompt.ids for prompt in read]
        self._prompt_tokens = self._prompt_tokens_left(0)

    @property
    def running(self) -> bool:
        return self._batch.running or bool(self._searches)

    def advance(self) -> Iterator[tuple[int, Piece]]:
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
                with use_threads(self._model.threads):  # not while the caller has its turn
                    pieces = next(turns, None)
                if begins:
                    self.report_prompts()
                    begins = False
                if pieces is None:
                    yield from self._ends()
                    return
                yield from pieces

    def report_prompts(self, searched: int = 0) -> None:
        """Tells how much of the prompts has been run. searched: tokens that are left of the running search's prompt."""
        if self._progress is None:
            return
        left = self._prompt_tokens_left(searched)
        self._progress(max(0, self._prompt_tokens - left), self._prompt_tokens)
        if not left:
            self._progress = None

    def close(self) -> None:
        """Releases the rows' pages of the model's cache."""
        self._batch.close()

    def end(self, index: int, reason: str) -> Piece | None:
        """Ends the row of a sample if it is running; returns what it had held back, None if that is nothing."""
        if index not in self._key_of_index:
            return None
        piece = self._piece(index, self._batch.end(self._key_of_index[index], reason))
        return piece if piece or piece.parts else None

    def cancel(self) -> Pieces:
        """Ends all running rows and drops the searches that have not run; returns what was held back."""
        held = [(index, self.end(index, "cancelled")) for index in self._key_of_index]
        for _, search in self._searches:
            search.drop("cancelled")
        self._searches = []
        return [(index, piece) for index, piece in held if piece is not None]

    def completions(self, text: str | None = None) -> list[Completion]:
        """The completions of all prompts, in order; that of a running row is partial, with finish_reason "".

        text: that of the only one, in place of its row's.
        """
        found: list[Completion] = []
        stops: list[str] = []
        for i, (prompt, rows) in enumerate(zip(self._prompt_ids, self._rows_or_search, strict=True)):
            if isinstance(rows, ModelSearch):
                found += rows.completions
                stops += rows.stops
            else:
                found += [build_completion(row, prompt, i) for row in rows]
                stops += map(stop_of, rows)
        if text is not None:
            found = [replace(found[0], text=text)]
        return [reader.told(one, stop) for reader, one, stop in zip(self._readers, found, stops, strict=False)]

    def _draw(self) -> Generator[Pieces, None, None]:
        with closing(self._batch.advance()) as turns:
            for pieces in turns:
                yield [(index, self._piece(index, text)) for key, text in pieces for index in [self._index_of_key[key]]]

    def _search(self) -> Generator[Pieces, None, None]:
        first, search = self._searches.pop(0)
        beams = zip(search.run(self._cancelled, self.report_prompts), search.stops, strict=True)
        yield [
            (first + place, self._readers[first + place].piece(beam.text, beam.finish_reason, stop))
            for place, (beam, stop) in enumerate(beams)
        ]

    def _prompt_tokens_left(self, searched: int) -> int:
        return self._batch.prompt_tokens_left + searched + sum(search.prompt_length for _, search in self._searches)

    def _piece(self, index: int, text: str) -> Piece:
        """The piece of a sample that adds this text, and tells the end of a row that has ended."""
        row = self._row_of_index[index]
        return self._readers[index].piece(text, row.reason, stop_of(row))

    def _ends(self) -> Pieces:
        """What was held back of rows that have ended without another token, as one does that is out of time."""
        ended = [index for index, row in self._row_of_index.items() if row.reason and self._readers[index].reading]
        pieces = [(index, self._piece(index, "")) for index in ended]
        return [(index, piece) for index, piece in pieces if piece.parts]


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
