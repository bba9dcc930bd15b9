"""llama-cpp-python: a row of `Sampler` in place of llama.cpp's sampler chain.

    from decodestep.integrations.llama_cpp import RowSampler, sampling
    with sampling(llm, SamplingParams(top_p=0.9, seed=7)):
        llm.create_completion("Once", max_tokens=64)
    token = RowSampler(params, vocab_size=V, prompt_ids=ids).sample(ctx, i)     # one sequence of a batch

The logits are read in llama.cpp's memory.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from decodestep._base.checks import Phrase, is_int, refuse, require
from decodestep._base.extras import extra
from decodestep.integrations.host_row import HostRow, without_ends
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row_processors import Processors

if TYPE_CHECKING:
    from llama_cpp._internals import LlamaContext

    Pointer: TypeAlias = ctypes._Pointer[Any]

with extra("llama-cpp"):
    import llama_cpp

__all__ = ["LogitsProcessor", "RowSampler", "sampling"]

_OP = "llama_cpp"
_TOKEN = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class RowSampler(HostRow):
    """One sequence of a llama.cpp context, drawn as a row of `Sampler`; see `HostRow` for the arguments.

        token = sampler.sample(ctx, i)        # reads the logits of output i of the last llama_decode, and appends the token

    vocab_size: the model's `llama_vocab_n_tokens`. `pointer` makes a `llama_sampler` from it.
    """

    error: BaseException | None = None  # raised in a llama_sampler, which cannot report it

    def sample(self, ctx: LlamaContext, index: int = -1) -> int:
        """Draws the next token of the sequence from the logits of output `index` of the last decode, and accepts it.

        Args:
            ctx: a llama_context pointer, or llama-cpp-python's LlamaContext. Nothing is copied.

        Raises:
            ValueError: for a context that is closed, that has no such logits, or whose logits are not of the row's width; if no
                token is left; and whatever a processor raises.
        """
        context, vocab = getattr(ctx, "ctx", ctx), self._options["vocab_size"]
        require(bool(context), _OP, "ctx", "an open llama_context", ctx)
        width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(llama_cpp.llama_get_model(context)))
        require(width == vocab, _OP, "ctx", f"of a model with the row's vocab_size {vocab}", width)
        # ctypes would take the low 32 bits of an integer.
        some = is_int(index) and -(2**31) <= index < 2**31
        logits = llama_cpp.llama_get_logits_ith(context, int(index)) if some else None
        if not logits:
            refuse(_OP, "index", "an output of the last llama_decode that has logits", index)
        token = self.draw(_array(logits, vocab, np.dtype(np.float32))[None])
        self.accept(token)
        return token

    def pointer(self) -> Any:
        """A new `llama_sampler` that runs this row. The caller owns it: add it to a chain or pass it to llama_sampler_free.

        Its apply selects one of the candidates, and its accept, which llama_sampler_sample calls, appends it. Candidates
        dropped by earlier samplers count as -inf. llama_sampler_sample copies the logits into candidates; `sample` does not.
        C has no way to report an error: the first candidate is selected, sys.unraisablehook is called, as for every callback,
        and `error` holds the exception.
        """
        key = next(_keys)
        _owned[key] = self
        return llama_cpp.llama_sampler_init(ctypes.byref(_INTERFACE), key)

    def apply(self, candidates: llama_cpp.llama_token_data_array) -> None:
        """Draws from a llama_token_data_array and sets its `selected`."""
        candidates.selected = 0
        data = _array(candidates.data, candidates.size, _TOKEN)
        vocab = self._options["vocab_size"]
        in_order = len(data) == vocab and np.array_equal(data["id"], np.arange(vocab, dtype=np.int32))
        logits = data["logit"].copy() if in_order else np.full(vocab, -np.inf, np.float32)
        if not in_order:
            logits[data["id"]] = data["logit"]
        token = self.draw(logits[None])
        candidates.selected = token if in_order else int(np.flatnonzero(data["id"] == token)[0])


class LogitsProcessor:
    """A plain callable (input_ids, scores) -> scores for one text, which returns `Sampler.processed` of the scores.

    input_ids: the tokens so far, (length,). scores: (V,), float32; the result is a new array.
    The first call's tokens are the prompt; each later call's tokens must begin with those of the previous call. Make a new one
    for each text. The host draws and must not change the distribution: temperature 1 (0 for greedy params), no filters.

    Raises:
        ValueError: for tokens that do not continue the previous ones, and for params as `HostRow` does. llama-cpp-python calls
            it from C, where an error cannot be raised: Python prints it, and the token is drawn from the scores as they were.
    """

    def __init__(
        self, params: SamplingParams, *, eos_token_id: int | Collection[int] | None = None, processors: Processors = ()
    ) -> None:
        self._params = without_ends(params)
        self._options: dict[str, Any] = {"eos_token_id": eos_token_id, "processors": processors}
        self._row: HostRow | None = None
        self._prompt_length = 0

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        ids = [int(token) for token in input_ids]
        row = np.ascontiguousarray(scores)[None]
        if self._row is None:
            self._prompt_length = len(ids)
            self._row = HostRow(self._params, vocab_size=row.shape[1], prompt_ids=ids, **self._options)
        before = self._row.tokens
        rule = f"a continuation of the {len(before)} tokens of the previous call: make a LogitsProcessor for each text"
        require(ids[: len(before)] == before, "LogitsProcessor", "input_ids", rule, Phrase(f"{len(ids)} others"))
        self._row.follow(ids[self._prompt_length :])
        return self._row.processed(row)[0]


@contextmanager
def sampling(llm: llama_cpp.Llama, params: SamplingParams, *, processors: Processors = ()) -> Iterator[None]:
    """Context manager in which every text of `llm` (create_completion, create_chat_completion, generate) is a row of `Sampler`.

    On exit `llm` is restored.

    Args:
        llm: a `llama_cpp.Llama`.
        params: as for `HostRow`; the row's prompt is the model's input. If params.seed is None, the seed is llama-cpp-python's:
            the call's `seed` argument, or the model's. Arguments that select llama.cpp's own samplers (temperature, top_p,
            repeat_penalty, grammar, logits_processor, logit_bias and others) must keep their defaults; other values are refused
            by name. What ends a text (max_tokens, stop, stopping_criteria) works as usual.
        processors: as for `HostRow`.

    Raises:
        ValueError: for fields of params that belong to the host.
    """
    require(isinstance(llm, llama_cpp.Llama), _OP, "llm", "a llama_cpp.Llama", llm)
    without_ends(params)
    ends = [token for token in range(llm.n_vocab()) if llama_cpp.llama_vocab_is_eog(llm._model.vocab, token)]
    before = dict(llm.__dict__)

    def init_sampler(**arguments: object) -> _TextSampler:
        _refuse_own_samplers(arguments)
        seeded = params if params.greedy or params.seed is not None else params.replace(seed=int(llm._seed) % 2**64)
        return _TextSampler(llm, seeded, {"eos_token_id": ends, "processors": processors})

    llm._init_sampler = init_sampler
    try:
        yield
    finally:
        del llm._init_sampler
        if "_init_sampler" in before:
            llm._init_sampler = before["_init_sampler"]
        if isinstance(llm._sampler, _TextSampler):  # `generate` leaves it there for `Llama.sample`
            llm._sampler = before.get("_sampler")


class _TextSampler:
    """The sampler of `Llama.generate`, for one text."""

    def __init__(self, llm: llama_cpp.Llama, params: SamplingParams, options: dict[str, Any]) -> None:
        self._llm, self._params, self._options = llm, params, options
        self._row: RowSampler | None = None
        self._length = 0  # of the row's history

    def sample(self, ctx: LlamaContext, index: int = -1) -> int:
        llm = self._llm
        length = llm.n_tokens + index + 1
        if self._row is None:
            prompt = llm.input_ids[:length].tolist()
            self._row = RowSampler(self._params, vocab_size=llm.n_vocab(), prompt_ids=prompt, **self._options)
        elif length > self._length:  # tokens sent by the caller of `generate`
            for token in llm.input_ids[self._length : length].tolist():
                self._row.accept(token)
        token = self._row.sample(ctx, index)
        self._length = length + 1
        return token

    def close(self) -> None:
        self._row = None


# The names of arguments in the methods that users call, where `_init_sampler` has others.
_CALLED = {"temp": "temperature"}


def _refuse_own_samplers(arguments: dict[str, Any]) -> None:
    """Refuses arguments that select llama.cpp's own samplers; the defaults of any of the methods are accepted."""
    for name, value in arguments.items():
        defaults = _DEFAULTS[name]
        rule = f"left at its default {defaults[0]!r}: SamplingParams decides"
        require(value in defaults, _OP, _CALLED.get(name, name), rule, value)


def _defaults() -> dict[str, list[Any]]:
    """For each parameter of `_init_sampler`, its defaults in the methods that call it."""
    methods = (llama_cpp.Llama._init_sampler, llama_cpp.Llama.create_completion, llama_cpp.Llama.create_chat_completion)
    own, *callers = [inspect.signature(method).parameters for method in methods]
    return {
        name: [parameter.default, *(caller[c].default for caller in callers if (c := _CALLED.get(name, name)) in caller)]
        for name, parameter in own.items()
        if name != "self"
    }


_DEFAULTS = _defaults()


def _array(pointer: Pointer, count: int, dtype: np.dtype[Any]) -> np.ndarray:
    """`count` items at a C pointer, as a view."""
    items: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(ctypes.addressof(pointer.contents))
    return np.frombuffer(items, dtype)


# The rows of the llama_samplers, by the number in the llama_sampler's ctx.
_owned: dict[int, RowSampler] = {}
_keys = itertools.count(1)


def _apply(sampler: Pointer, candidates: Pointer) -> None:
    try:
        _owned[sampler.contents.ctx].apply(candidates.contents)
    except BaseException as error:
        _owned[sampler.contents.ctx].error = error.with_traceback(None)  # the frames would keep the row alive
        raise


def _accept(sampler: Pointer, token: int) -> None:
    _owned[sampler.contents.ctx].accept(token)


def _reset(sampler: Pointer) -> None:
    _owned[sampler.contents.ctx].reset()


def _clone(sampler: Pointer) -> int | None:
    row = _owned[ctypes.cast(sampler, llama_cpp.llama_sampler_p_ctypes).contents.ctx]
    return ctypes.cast(row.clone().pointer(), ctypes.c_void_p).value  # type: ignore[attr-defined]


def _free(sampler: Pointer) -> None:
    del _owned[sampler.contents.ctx]


def _interface() -> tuple[Any, Any]:
    made = llama_cpp.llama_sampler_i()
    made.name = llama_cpp.llama_sampler_i_name(lambda sampler: b"decodestep")
    made.accept = llama_cpp.llama_sampler_i_accept(_accept)
    made.apply = llama_cpp.llama_sampler_i_apply(_apply)
    made.reset = llama_cpp.llama_sampler_i_reset(_reset)
    made.free = llama_cpp.llama_sampler_i_free(_free)
    # ctypes does not support callbacks that return a typed pointer.
    plain = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_clone)
    made.clone = ctypes.cast(plain, llama_cpp.llama_sampler_i_clone)
    return made, plain


_INTERFACE, _KEPT = _interface()
