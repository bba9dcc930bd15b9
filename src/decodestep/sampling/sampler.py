"""Sampler: the decode step of a batch in which every row has its own parameters and history."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import (
    Words,
    is_int,
    refuse,
    require,
    require_choice,
    require_dtype,
    require_id_set,
    require_ids,
)
from decodestep.ops.decode_step import TokenLogprobs, decode_step, reference
from decodestep.ops.decode_step.rows import DTYPES, END_REASONS, NativeRow, new_row, step_rows
from decodestep.sampling import device_step
from decodestep.sampling.param_steps import as_several, stages_of
from decodestep.sampling.params import SEQUENCE_FIELDS, TOKEN_FIELDS, SamplingParams
from decodestep.sampling.plan import plan_of
from decodestep.sampling.row import Row, within_length
from decodestep.sampling.row_processors import Processors, RowProcessors
from decodestep.sampling.row_texts import RowTexts
from decodestep.sampling.stage import Stage
from decodestep.sampling.token_history import TokenHistory
from decodestep.sampling.trace import Trace

_OP = "Sampler"


class StepResult(NamedTuple):
    """The result of one step, one entry per row in the order of `Sampler.rows`.

    tokens: int64 (B,), in the kind of the logits. -1 for a row that had ended before, and for one without a candidate.
    logprobs: a `TokenLogprobs` for each row that requests them and drew a token, else None.
    done: bool (B,), NumPy: whether the row has ended, now or before.
    reason: why it has ended: "eos", "stop", "length", "time", "no_candidate", "cancelled" or "error"; "" while it is running.
    text: the complete characters that the token adds to the row's text, and at the end text that was held back; "" without
        token_bytes.
    """

    tokens: Array
    logprobs: tuple[TokenLogprobs | None, ...]
    done: np.ndarray
    reason: tuple[str, ...]
    text: tuple[str, ...]


class _Batch(NamedTuple):
    """Per-batch data of a step, rebuilt only when rows are added or removed."""

    native: list[NativeRow]
    any_unfused: bool
    any_watched: bool


class Sampler:
    """Turns the logits of a batch into tokens, each row by its own `SamplingParams`.

        for every running row b:
            steps = the processors of params[b], in order, on the history of b           # see `explain`
            token = decode_step(logits[b], steps, seed of b, position = length of the history of b)
            append it to the history; the row ends on an end token, a stop token or string, its length or its time

    params: one `SamplingParams` for all rows, or a sequence of one for each row.
    vocab_size: V, the width of the logits, an integer in [1, 2^31).
    eos_token_id: an id, several, or None for no end token.
    prompt_ids: the prompt of each row, a sequence of sequences of ids in [0, V); None for rows without a prompt, one for each
        of params.
    processors: additional callables (input_ids, scores) -> scores, each called for one row at a time with NumPy arrays
        (1, length) and (1, V): a sequence of them for all rows, or a factory, a function of one argument that returns a
        sequence: ``processors=lambda row: [...]`` is called once for each row, with its number, when the row is added. A
        processor that keeps state between calls (``stateful = True`` in its class) needs a factory if there are several rows.
        The function of a PrefixConstrainedLogitsProcessor is called with the row's number as the index of the batch item.
        They run where transformers puts a user's processors: before the temperature. The attributes of those that run fused
        are read once, when a row is added (`explain` says which run fused).
    token_bytes: token id -> bytes of text; required for stop strings, constraints and `StepResult.text`.
    spelled_bytes: token id -> bytes in which stop strings are found: its text, or else its name; None for token_bytes.
    encode: text -> ids, for a text that follows another one; a constraint's forced text is written in them, if its bytes are
        theirs, else in the longest tokens, as with None.
    backend: "auto", "cpu" or "triton". "auto" is "triton" for torch tensors on a GPU: the step then runs there, only the tokens
        are copied to the host, and they equal those of the CPU. All processors must be fused.

    `rows` is the list of rows, for reading only; `add` and `remove` change it between steps. A row's tokens depend only on its
    own logits, params and prompt. One thread at a time may use a Sampler.
    Raises ValueError for arguments that do not match, ids outside the vocabulary, or an illegal order of processors.
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
        require(is_int(vocab_size) and 1 <= vocab_size < 2**31, _OP, "vocab_size", "an integer in [1, 2^31)", vocab_size)
        require_choice(_OP, "backend", backend, ("auto", "cpu", "triton"))
        self.vocab_size, self._backend = int(vocab_size), backend
        self._ends = require_id_set(_OP, "eos_token_id", self.vocab_size, as_several(eos_token_id))
        self._processors = RowProcessors(_OP, processors)
        self._added = 0
        self._texts = RowTexts(_OP, token_bytes=token_bytes, spelled_bytes=spelled_bytes, encode=encode)
        self.rows: list[Row] = []
        self._batch: _Batch | None = None  # None after a row was added or removed
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

        params: of one beam and one sample (`generate` supports several). If its seed is None, the row gets a new one, 53 bits
            of the system's entropy: `Row.seed`. prompt_ids: token ids in [0, V).
        number: the argument of the factory of `processors`; None for the number of rows that have been added before.

        Raises ValueError, and adds nothing, for params with an id outside the vocabulary or an illegal order of processors, and
        for stop strings without token_bytes.
        """
        self.rows.append(self.new_row(params, prompt_ids, number=number))
        self._batch = None
        return len(self.rows) - 1

    def new_row(
        self, params: SamplingParams, prompt_ids: Sequence[int] = (), *, number: int | None = None, num_beams: int = 1
    ) -> Row:
        """Creates a row as `add` does, without appending it; for `resume` of this sampler or an equivalent one.

        num_beams: above 1, the row's processors serve a search with this many beams.
        """
        self._check_params(params)
        number = self._added if number is None else number
        prompt = self._ids("prompt_ids", prompt_ids)
        (params,) = within_length(params, len(prompt)).samples()
        ends = self._ends if params.eos_token_id is None else frozenset(as_several(params.eos_token_id))
        stages = self._stages(params, len(prompt), ends, number, num_beams)
        history, row_plan = TokenHistory(prompt), plan_of(stages, self.vocab_size)
        ends = frozenset() if params.ignore_eos else ends
        native = new_row(
            self.vocab_size,
            history,
            row_plan.tail.parts,
            greedy=params.greedy,
            seed=params.seed or 0,
            top_logprobs=params.logprobs,
            ends=ends,
            stops=params.stop_token_ids,
            limit=params.max_new_tokens,
        )
        text = self._texts.stream(params)
        self._added += 1
        self._processors.served = True
        return Row(params, history, row_plan, native, text, ends, time.monotonic())

    def resume(self, row: Row) -> int:
        """Appends a row that was removed or made by `new_row`, in its current state, and returns its index, as `add` does."""
        require(isinstance(row, Row) and row not in self.rows, _OP, "row", "one that was removed", Words(type(row).__name__))
        vocab = row.plan.vocab_size
        require(vocab == self.vocab_size, _OP, "row", f"of a vocabulary of {self.vocab_size} tokens", Words(f"one of {vocab}"))
        self.rows.append(row)
        self._batch = None
        return len(self.rows) - 1

    def remove(self, index: int) -> None:
        """Removes a row, ended or not; the rows after it move up by one. Raises ValueError for an index outside [0, B)."""
        require(is_int(index) and 0 <= index < len(self.rows), _OP, "index", f"in [0, {len(self.rows)})", index)
        del self.rows[index]
        self._batch = None

    def processed(self, logits: ArrayT) -> ArrayT:
        """The logits after each row's processors: the scores that transformers' chain would pass to softmax.

        logits: (B, V), one row for each of `rows`, float32, float16, bfloat16 or float64, NumPy or torch.

        Returns float32 (float64 for float64 logits), (B, V), in the kind of the logits; -inf for a dropped token. Rows that
        have ended are processed too. Nothing is drawn, and no row changes.
        Raises ValueError for logits of another shape or dtype, and whatever a processor raises.
        """
        if self._goes_to_device(logits):
            return device_step.processed(_OP, self.rows, logits, self.vocab_size, self._backend)
        scores = self._apply_unfused(self._view(logits))
        steps, positions = [row.plan.tail.steps(row.history) for row in self.rows], [len(row.history) for row in self.rows]
        processed: ArrayT = arrays.like(logits, decode_step(scores, steps, position=positions, need_processed=True).processed)
        return processed

    def step(self, logits: Array) -> StepResult:
        """Draws the next token of every running row, appends it to the row's history, and ends rows that are due.

        logits: (B, V), one row for each of `rows`, float32, float16 or bfloat16, NumPy or torch, rows at any distance, on the
            CPU or a GPU. Not written to. The logits of rows that have ended are ignored.

        Returns a `StepResult`. If a row's processor or token_bytes raises an Exception, the row ends with the reason "error"
        and the exception in `Row.error`; the other rows are not affected. If it was a processor, the row's token is -1.
        Raises ValueError for logits of another shape or dtype; then no row has changed, and the step may be repeated. An
        exception that is not an Exception, such as KeyboardInterrupt, ends every row with the reason "error" and is raised.
        """
        if self._goes_to_device(logits):
            return self._step_on_device(logits)
        native, any_unfused, any_watched = self._batch or self._gather()
        scores = array = self._view(logits)
        held: dict[int, str] | None = None  # text held back by rows that failed, by index
        # All in one function: each further call would cost a twentieth of a step of one row.
        try:
            if any_unfused:
                scores = self._apply_unfused(array, held := {})
            try:
                tokens, end_codes, reported = step_rows(scores, native)
            except Exception as error:  # no row has changed
                held = {**(held or {}), **self._fail_those_to_blame(error)}
                tokens, end_codes, reported = step_rows(scores, native)
            drawn = tokens if type(logits) is np.ndarray else arrays.like(logits, tokens)
            if end_codes is None and not any_watched:
                batch = len(native)
                # tuple.__new__, because StepResult's own constructor is a Python function: 0.1 us of the 1.6 of a step of one
                # row.
                nothing = ("",) * batch
                return tuple.__new__(StepResult, (drawn, (None,) * batch, np.zeros(batch, np.bool_), nothing, nothing))
            return self._report(array, drawn, tokens.tolist(), end_codes or bytes(len(native)), reported, held or {})
        except Exception:
            raise
        except BaseException as error:  # it may come after the draw and before the text: no row may go on from there
            self._fail_all(error)
            raise

    def __reduce__(self) -> NoReturn:  # the rows' state is in the core, and a shallow copy would step the rows of its original
        raise TypeError("a Sampler cannot be copied or pickled: make another with the same params and prompts")

    def _goes_to_device(self, logits: Array) -> bool:
        plain = type(logits) is np.ndarray and self._backend != "triton"  # the usual case, recognised in 50 ns
        return not plain and devices.goes_to_triton(self._backend, logits)

    def _step_on_device(self, logits: Any) -> StepResult:
        array = device_step.outline(_OP, self.rows, logits, self.vocab_size, self._backend)
        try:
            drawn = device_step.draw(self.rows, logits, self.vocab_size)
            return self._report(array, *drawn)
        except Exception:
            raise
        except BaseException as error:  # as in `step`
            self._fail_all(error)
            raise

    def _fail_all(self, error: BaseException) -> None:
        for row in self.rows:
            if not row.reason:
                row.fail(error)

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

    def trace(self, logits: Array) -> tuple[Trace, ...]:
        """Records what each row's processors do to its logits, and the token that `step` would draw: see `Plan.trace`.

        logits: (B, V), as for `processed`. Rows that have ended are traced too. No row changes.
        Raises ValueError for logits of another shape or dtype, and whatever a processor raises.
        """
        spell = self._texts.speller()
        return tuple(
            row.plan.trace(scores, row.history, seed=row.seed or 0, greedy=row.params.greedy, spell=spell)
            for row, scores in zip(self.rows, self._view(logits), strict=True)
        )

    def explain(self) -> str:
        """The plan of each row as text, one line for each processor and one for the draw; rows with the same plan share it."""
        plans: dict[str, list[int]] = {}
        for i, row in enumerate(self.rows):
            plans.setdefault(row.explain(), []).append(i)
        return "\n".join(f"row {', '.join(map(str, rows))}\n{text}" for text, rows in plans.items())

    def _check_params(self, params: SamplingParams) -> None:
        require(isinstance(params, SamplingParams), _OP, "params", "a SamplingParams", params)
        require(params.num_beams == 1, _OP, "params", "of one beam: `generate` searches with several", params.num_beams)
        count = params.num_return_sequences
        require(count == 1, _OP, "params", "of one sample: `generate` adds a row for each of several", count)
        self._texts.check(params)
        for name in TOKEN_FIELDS:
            self._ids(name, as_several(getattr(params, name)))
        for name in SEQUENCE_FIELDS:
            for ids in getattr(params, name) or ():
                self._ids(name, ids)

    def _stages(
        self, params: SamplingParams, prompt_length: int, ends: frozenset[int], number: int, num_beams: int
    ) -> list[Stage]:
        """The stages of a row, the user's own processors and the constraint among them."""
        vocab = self.vocab_size
        constraints = self._texts.constraints(params, prompt_length, vocab_size=vocab, ends=ends)
        own = [*self._processors.of_row(number, num_beams), *constraints]
        sizes = {"prompt_length": prompt_length, "vocab_size": vocab, "num_beams": num_beams}
        return stages_of(params, eos_token_ids=ends, own=own, **sizes)

    def _report(
        self,
        logits: np.ndarray,
        drawn: Array,
        tokens: list[int],
        end_codes: bytes,
        reported: Sequence[Any] | None,
        held: dict[int, str],
    ) -> StepResult:
        """The result of a step, row by row: log-probabilities, text, and the ends that only Python can detect."""
        pieces = [""] * len(self.rows)
        logprobs: list[TokenLogprobs | None] = [None] * len(self.rows)
        for i, (row, token, code) in enumerate(zip(self.rows, tokens, end_codes, strict=True)):
            if row.reason:
                pieces[i] = held.get(i, "")
                continue
            if reported is not None and reported[i] is not None:
                logprob = TokenLogprobs(*reported[i])
                if row.plan.unfused:  # the core was given what those processors left
                    unprocessed = reference.candidates(logits[i], (), 0)
                    raw, top_raw = reference.logprobs_of(unprocessed, token, row.params.logprobs or 0)
                    logprob = logprob._replace(raw=raw, top_raw=top_raw)
                logprobs[i] = logprob
                row.logprobs.append(logprob)
            try:
                pieces[i] = row.accept(token, END_REASONS[code])
            except Exception as error:
                pieces[i] = row.fail(error)
        reasons = tuple([row.reason for row in self.rows])
        done = np.array([reason != "" for reason in reasons], np.bool_)
        return StepResult(drawn, tuple(logprobs), done, reasons, tuple(pieces))

    def _view(self, logits: Array) -> np.ndarray:
        array = logits if type(logits) is np.ndarray else arrays.view(_OP, "logits", logits)
        if array.shape != (len(self.rows), self.vocab_size):
            refuse(_OP, "logits", f"of shape {len(self.rows)}x{self.vocab_size}", array)
        return array

    def _gather(self) -> _Batch:
        self._batch = _Batch(
            [row.native for row in self.rows],
            any(row.plan.unfused for row in self.rows),
            any(row.watched for row in self.rows),
        )
        return self._batch

    def _apply_unfused(self, logits: np.ndarray, held: dict[int, str] | None = None) -> np.ndarray:
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

    def _ids(self, name: str, ids: Any) -> list[int]:
        """Token ids as a list of ints; ValueError unless it is an iterable of ids in the vocabulary."""
        return require_ids(_OP, name, self.vocab_size, ids.tolist() if hasattr(ids, "tolist") else ids)

