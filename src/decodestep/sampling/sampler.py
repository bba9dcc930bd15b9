"""Sampler: the decode step of a batch in which every row has its own parameters and history."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import Phrase, is_int, refuse, require, require_choice
from decodestep.ops.decode_step import TokenLogprobs, decode_step
from decodestep.sampling import device_step
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row import Row, RowBatch
from decodestep.sampling.row_factory import RowFactory
from decodestep.sampling.row_processors import Processors
from decodestep.sampling.trace import Trace

if TYPE_CHECKING:
    import torch

_OP = "Sampler"


class StepResult(NamedTuple):
    """The result of one step, one entry per row in the order of `Sampler.rows`.

    Attributes:
        tokens: int64 (B,), in the kind of the logits. -1 for a row that had ended before, and for one without a candidate.
        logprobs: a `TokenLogprobs` for each row that requests them and drew a token, else None.
        done: bool (B,), NumPy: whether the row has ended, now or before.
        reason: why it has ended: "eos", "stop", "length", "time", "no_candidate", "cancelled" or "error"; "" while it is
            running.
        text: the complete characters that the token adds to the row's text, and at the end text that was held back; "" without
            token_bytes.
    """

    tokens: Array
    logprobs: tuple[TokenLogprobs | None, ...]
    done: np.ndarray
    reason: tuple[str, ...]
    text: tuple[str, ...]


class Sampler:
    """Turns the logits of a batch into tokens, each row by its own `SamplingParams`.

        for every running row b:
            steps = the processors of params[b], in order, on the history of b           # see `explain`
            token = decode_step(logits[b], steps, seed of b, position = length of the history of b)
            append it to the history; the row ends on an end token, a stop token or string, its length or its time

    `rows` is the list of rows, for reading only; `add` and `remove` change it between steps. A row's tokens depend only on its
    own logits, params and prompt. One thread at a time may use a Sampler.

    Args:
        params: one `SamplingParams` for all rows, or a sequence of one for each row.
        vocab_size: V, the width of the logits, an integer in [1, 2^31).
        eos_token_id: an id, several, or None for no end token.
        prompt_ids: the prompt of each row, a sequence of sequences of ids in [0, V); None for rows without a prompt, one for
            each of params.
        processors: additional callables (input_ids, scores) -> scores, each called for one row at a time with NumPy arrays (1,
            length) and (1, V): a sequence of them for all rows, or a factory, a function of one argument that returns a
            sequence: ``processors=lambda row: [...]`` is called once for each row, with its number, when the row is added. A
            processor that keeps state between calls (``stateful = True`` in its class) needs a factory if there are several
            rows. The function of a PrefixConstrainedLogitsProcessor is called with the row's number as the index of the batch
            item. They run where transformers puts a user's processors: before the temperature. The attributes of those that run
            fused are read once, when a row is added (`explain` says which run fused).
        token_bytes: token id -> bytes of text; required for stop strings, constraints and `StepResult.text`.
        spelled_bytes: token id -> bytes in which stop strings are found: its text, or else its name; None for token_bytes.
        encode: text -> ids, for a text that follows another one; a constraint's forced text is written in them, if its bytes
            are theirs, else in the longest tokens, as with None.
        backend: "auto", "cpu" or "triton". "auto" is "triton" for torch tensors on a GPU: the step then runs there, only the
            tokens are copied to the host, and they equal those of the CPU. All processors must be fused.

    Raises:
        ValueError: for arguments that do not match, ids outside the vocabulary, or an illegal order of processors.
    """

    def __init__(
        self,
        params: SamplingParams | Sequence[SamplingParams],
        *,
        vocab_size: int,
        eos_token_id: int | Collection[int] | None = None,
        prompt_ids: Sequence[Sequence[int]] | None = None,
        processors: Processors = (),
        token_bytes: Callable[[int], bytes] | None = None,
        spelled_bytes: Callable[[int], bytes] | None = None,
        encode: Callable[[str], list[int]] | None = None,
        backend: str = "auto",
    ) -> None:
        require_choice(_OP, "backend", backend, ("auto", "cpu", "triton"))
        self._factory = RowFactory(
            vocab_size,
            eos_token_id=eos_token_id,
            processors=processors,
            token_bytes=token_bytes,
            spelled_bytes=spelled_bytes,
            encode=encode,
        )
        self.vocab_size, self._backend = self._factory.vocab_size, backend
        self.rows: list[Row] = []
        self._batch: RowBatch | None = None  # None after a row was added or removed
        ok = isinstance(params, (SamplingParams, Sequence))
        require(ok, _OP, "params", "a SamplingParams, or one for each prompt", params)
        each = [params] if isinstance(params, SamplingParams) else list(params)
        ok = prompt_ids is None or (isinstance(prompt_ids, Iterable) and getattr(prompt_ids, "ndim", 1) > 0)
        require(ok, _OP, "prompt_ids", "the token ids of each row, or None", prompt_ids)
        prompts: list[Sequence[int]] = [()] * len(each) if prompt_ids is None else list(prompt_ids)
        if isinstance(params, SamplingParams):
            each *= len(prompts)
        require(len(each) == len(prompts), _OP, "params", f"one, or one for each of {len(prompts)} prompts", len(each))
        for row_params, ids in zip(each, prompts, strict=True):
            self.add(row_params, ids)

    def add(self, params: SamplingParams, prompt_ids: Sequence[int] = (), *, number: int | None = None) -> int:
        """Appends a row and returns its index, which is also its place in the logits of the next step.

        Args:
            params: of one beam and one sample (`generate` supports several). If its seed is None, the row gets a new one, 53
                bits of the system's entropy: `Row.seed`.
            prompt_ids: token ids in [0, V).
            number: the argument of the factory of `processors`; None for the number of rows that have been added before.

        Raises:
            ValueError: for params with an id outside the vocabulary or an illegal order of processors, and for stop strings
                without token_bytes; nothing is added then.
        """
        self.rows.append(self._factory.row(params, prompt_ids, number=number))
        self._batch = None
        return len(self.rows) - 1

    def new_row(
        self, params: SamplingParams, prompt_ids: Sequence[int] = (), *, number: int | None = None, num_beams: int = 1
    ) -> Row:
        """Creates a row as `add` does, without appending it; for `resume` of this sampler or an equivalent one.

        Args:
            params: as `add` takes it.
            prompt_ids: as `add` takes it.
            number: as `add` takes it.
            num_beams: above 1, the row's processors serve a search with this many beams.
        """
        return self._factory.row(params, prompt_ids, number=number, num_beams=num_beams)

    def resume(self, row: Row) -> int:
        """Appends a row that was removed or made by `new_row`, in its current state, and returns its index, as `add` does."""
        require(isinstance(row, Row) and row not in self.rows, _OP, "row", "one that was removed", Phrase(type(row).__name__))
        vocab = row.plan.vocab_size
        require(vocab == self.vocab_size, _OP, "row", f"of a vocabulary of {self.vocab_size} tokens", Phrase(f"one of {vocab}"))
        self.rows.append(row)
        self._batch = None
        return len(self.rows) - 1

    def remove(self, index: int) -> None:
        """Removes a row, ended or not; the rows after it move up by one.

        Raises:
            ValueError: for an index outside [0, B).
        """
        require(is_int(index) and 0 <= index < len(self.rows), _OP, "index", f"in [0, {len(self.rows)})", index)
        del self.rows[index]
        self._batch = None

    def processed(self, logits: ArrayT) -> ArrayT:
        """The logits after each row's processors: the scores that transformers' chain would pass to softmax.

        Args:
            logits: (B, V), one row for each of `rows`, float32, float16, bfloat16 or float64, NumPy or torch.

        Returns:
            float32 (float64 for float64 logits), (B, V), in the kind of the logits; -inf for a dropped token. Rows that
            have ended are processed too. Nothing is drawn, and no row changes.

        Raises:
            ValueError: for logits of another shape or dtype, and whatever a processor raises.
        """
        if self._goes_to_device(logits):
            return device_step.processed(_OP, self.rows, logits, self.vocab_size, self._backend)
        scores = RowBatch(self.rows).apply_unfused(self._view(logits, len(self.rows)))
        steps, positions = [row.plan.tail.steps(row.history) for row in self.rows], [len(row.history) for row in self.rows]
        processed: ArrayT = arrays.like(logits, decode_step(scores, steps, position=positions, need_processed=True).processed)
        return processed

    def step(self, logits: Array) -> StepResult:
        """Draws the next token of every running row, appends it to the row's history, and ends rows that are due.

        Args:
            logits: (B, V), one row for each of `rows`, float32, float16 or bfloat16, NumPy or torch, rows at any distance, on
                the CPU or a GPU. Not written to. The logits of rows that have ended are ignored.

        Returns:
            A `StepResult`. If a row's processor or token_bytes raises an Exception, the row ends with the reason "error"
            and the exception in `Row.error`; the other rows are not affected. If it was a processor, the row's token is -1.

        Raises:
            ValueError: for logits of another shape or dtype; then no row has changed, and the step may be repeated. An
                exception that is not an Exception, such as KeyboardInterrupt, ends every row with the reason "error" and is
                raised.
        """
        return self._step(self._batch or self._gathered(), logits)

    def steps(
        self,
        logits: Array,
        drafts: Sequence[Sequence[int]],
        may_go_on: Callable[[Sequence[Row]], Sequence[bool]] | None = None,
    ) -> Iterator[tuple[list[int], StepResult]]:
        """Steps each row on several logits in turn, as long as it draws the tokens of its draft.

            for turn = 0, 1, ...:
                the rows that have drawn their first `turn` draft tokens, and have not ended since, step on their next logits

        Args:
            logits: (n, V), the rows' one after the other: for each those after its last token, and after each token of its
                draft.
            drafts: for each of `rows` the tokens that it may draw, any number. Without any, this is `step`.
            may_go_on: which of the rows that could step again in this turn do so; the others have had their last. None: all.

        Yields:
            For every turn the indices of the rows that took it and their `StepResult`: of the first turn all rows. A row
            thus gets at least one token, and at most one more than its draft has, each as in a step of its own, in order. The
            caller may end rows between two turns (`Row.end`), and adds or removes none before the last.

        Raises:
            ValueError: as `step` does.
        """
        ok = isinstance(drafts, Sequence) and len(drafts) == len(self.rows)
        require(ok, _OP, "drafts", f"the tokens that each of {len(self.rows)} rows may draw", drafts)
        firsts = np.cumsum([0, *(len(draft) + 1 for draft in drafts)]).tolist()
        count, batch, indices = firsts.pop(), self._gathered(), list(range(len(self.rows)))
        for turn in itertools.count():
            places = None if count == len(self.rows) else [firsts[i] + turn for i in indices]
            result = self._step(batch, logits, places, count)
            yield indices, result
            drawn = zip(indices, result.tokens.tolist(), strict=True)
            indices = [
                i for i, token in drawn if turn < len(drafts[i]) and token == drafts[i][turn] and not self.rows[i].reason
            ]
            if indices and may_go_on is not None:
                indices = list(itertools.compress(indices, may_go_on([self.rows[i] for i in indices])))
            if not indices:
                return
            batch = RowBatch([self.rows[i] for i in indices])

    def _step(self, batch: RowBatch, logits: Array, places: list[int] | None = None, count: int | None = None) -> StepResult:
        """A step of rows on (count, V) logits, each on the one at its place; None: those of its own index."""
        count = len(batch.rows) if count is None else count
        try:
            array = logits
            if type(logits) is not np.ndarray or self._backend == "triton":
                if devices.goes_to_triton(self._backend, logits):
                    return self._step_on_device(batch, logits, places, count)
                array = arrays.view(_OP, "logits", logits)
            if array.shape != (count, self.vocab_size):
                refuse(_OP, "logits", f"of shape {count}x{self.vocab_size}", array)
            (drawn, end_codes, logprobs), held = batch.draw(array, places)
            tokens = drawn if array is logits else arrays.like(logits, drawn)
            if end_codes is None and not batch.any_watched:
                return StepResult(tokens, batch.no_logprobs, np.zeros(len(drawn), np.bool_), batch.no_texts, batch.no_texts)
            if batch.any_unfused and places is not None:  # whose reports are of the logits as they were
                array = array[places]
            return self._report(batch.rows, array, tokens, drawn.tolist(), end_codes or bytes(len(drawn)), logprobs, held)
        except Exception:
            raise
        except BaseException as error:  # it may come after the draw and before the text: no row may go on from there
            for row in self.rows:
                if not row.reason:
                    row.fail(error)
            raise

    def _step_on_device(self, batch: RowBatch, logits: torch.Tensor, places: list[int] | None, count: int) -> StepResult:
        require(len(logits) == count, _OP, "logits", f"of shape {count}x{self.vocab_size}", logits)
        at = logits if places is None else logits[places]
        array = device_step.outline(_OP, batch.rows, at, self.vocab_size, self._backend)
        return self._report(batch.rows, array, *device_step.draw(batch.rows, at, self.vocab_size))

    def __reduce__(self) -> NoReturn:  # the rows' state is in the core, and a shallow copy would step the rows of its original
        raise TypeError("a Sampler cannot be copied or pickled: make another with the same params and prompts")

    def _goes_to_device(self, logits: Array) -> bool:
        plain = type(logits) is np.ndarray and self._backend != "triton"  # the usual case, recognised in 50 ns
        return not plain and devices.goes_to_triton(self._backend, logits)

    def trace(self, logits: Array) -> tuple[Trace, ...]:
        """Records what each row's processors do to its logits, and the token that `step` would draw: see `Plan.trace`.

        Args:
            logits: (B, V), as for `processed`. Rows that have ended are traced too. No row changes.

        Raises:
            ValueError: for logits of another shape or dtype, and whatever a processor raises.
        """
        spell, array = self._factory.token_to_text, self._view(logits, len(self.rows))
        return tuple(row.trace(scores, spell) for row, scores in zip(self.rows, array, strict=True))

    def explain(self) -> str:
        """The plan of each row as text, one line for each processor and one for the draw; rows with the same plan share it."""
        plans: dict[str, list[int]] = {}
        for i, row in enumerate(self.rows):
            plans.setdefault(row.explain(), []).append(i)
        return "\n".join(f"row {', '.join(map(str, rows))}\n{text}" for text, rows in plans.items())

    def _report(
        self,
        rows: Sequence[Row],
        logits: np.ndarray,
        drawn: Array,
        tokens: list[int],
        end_codes: bytes,
        logprobs: Sequence[Any] | None,
        held: dict[int, str],
    ) -> StepResult:
        """The result of a step, which every running row takes."""
        pieces = [""] * len(rows)
        found: list[TokenLogprobs | None] = [None] * len(rows)
        for i, row in enumerate(rows):
            if row.reason:
                pieces[i] = held.get(i, "")
            else:
                pieces[i], found[i] = row.take(tokens[i], end_codes[i], logprobs and logprobs[i], logits[i])
        reasons = tuple([row.reason for row in rows])
        return StepResult(drawn, tuple(found), np.array([reason != "" for reason in reasons], np.bool_), reasons, tuple(pieces))

    def _view(self, logits: Array, rows: int) -> np.ndarray:
        array = logits if type(logits) is np.ndarray else arrays.view(_OP, "logits", logits)
        if array.shape != (rows, self.vocab_size):
            refuse(_OP, "logits", f"of shape {rows}x{self.vocab_size}", array)
        return array

    def _gathered(self) -> RowBatch:
        self._batch = self._batch or RowBatch(list(self.rows))
        return self._batch
