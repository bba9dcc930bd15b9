"""RowFactory: makes the rows of one vocabulary, from their parameters."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from copy import copy
from functools import lru_cache
from typing import Protocol

from decodestep._base.checks import is_int, refuse, require, require_id_set, require_ids
from decodestep.constraints.processor import ConstraintLogitsProcessor
from decodestep.ops.decode_step.rows import new_row
from decodestep.sampling.contradictions import languages_of
from decodestep.sampling.param_steps import as_several, build_stages
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.plan import build_plan
from decodestep.sampling.row import Row, within_length
from decodestep.sampling.row_processors import Processors, RowProcessors
from decodestep.sampling.rules import SEQUENCE_FIELDS, TOKEN_FIELDS
from decodestep.sampling.text_stream import TextStream
from decodestep.sampling.thinking_budget import ReasoningMarks, ThinkingBudget
from decodestep.sampling.token_history import TokenHistory

_OP = "Sampler"  # the class by which users know rows
_DRY_BREAKERS = ("\n", ":", '"', "*")  # llama.cpp's usual ones


class Texts(Protocol):
    """The texts of tokens, as a tokenizer shows them."""

    def token_bytes(self, token_id: int, /) -> bytes: ...
    def encode_within(self, text: str, /) -> list[int]: ...


class _Tokenizer(Protocol):
    @property
    def end_token_ids(self) -> Collection[int]: ...
    def spelled_bytes(self, token_id: int, /) -> bytes: ...
    def showing(self, names: Collection[str], /) -> Texts: ...


class _Config(Protocol):
    @property
    def vocab_size(self) -> int: ...


class _Model(Protocol):
    """What a factory needs of a model."""

    @property
    def config(self) -> _Config: ...
    @property
    def tokenizer(self) -> _Tokenizer: ...


class RowFactory:
    """Makes rows, each with its own params and history; the arguments are those of `Sampler`, and for all rows.

    Safe for concurrent use, unless `processors` is a factory that is not.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        eos_token_id: int | Collection[int] | None = None,
        processors: Processors = (),
        token_bytes: Callable[[int], bytes] | None = None,
        spelled_bytes: Callable[[int], bytes] | None = None,
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        require(is_int(vocab_size) and 1 <= vocab_size < 2**31, _OP, "vocab_size", "an integer in [1, 2^31)", vocab_size)
        self.vocab_size = int(vocab_size)
        self._ends = require_id_set(_OP, "eos_token_id", self.vocab_size, as_several(eos_token_id))
        self._processors = RowProcessors(_OP, processors)
        functions = {"token_bytes": token_bytes, "spelled_bytes": spelled_bytes, "encode": encode}
        for name, function in functions.items():
            require(function is None or callable(function), _OP, name, "a function or None", function)
        self._token_bytes, self._spelled_bytes, self._encode = token_bytes, spelled_bytes, encode
        self._marks: ReasoningMarks | None = None
        self._made = 0

    @classmethod
    def from_model(cls, model: _Model, *, processors: Processors = (), shown: Collection[str] = ()) -> RowFactory:
        """The factory of a model's rows, with its vocabulary, texts and end tokens.

        shown: the names of control tokens that appear in the texts, as for `Tokenizer.showing`.
        """
        tokenizer = model.tokenizer
        texts = tokenizer.showing(shown)
        return cls(
            model.config.vocab_size,
            eos_token_id=tokenizer.end_token_ids,
            processors=processors,
            token_bytes=texts.token_bytes,
            spelled_bytes=tokenizer.spelled_bytes,
            encode=texts.encode_within,
        )

    def showing(self, texts: Texts, marks: ReasoningMarks | None = None) -> RowFactory:
        """A factory of rows with these texts, for which the processors are the same. marks: those of reasoning, which rows with
        a thinking budget need."""
        made = copy(self)
        made._token_bytes, made._encode, made._marks = texts.token_bytes, texts.encode_within, marks
        return made

    @property
    def token_to_text(self) -> Callable[[int], str] | None:
        """Token id -> its text alone, for display; None without token_bytes."""
        texts = self._token_bytes
        return None if texts is None else lambda token: texts(token).decode("utf-8", "replace")

    def row(
        self, params: SamplingParams, prompt_ids: Sequence[int] = (), *, number: int | None = None, num_beams: int = 1
    ) -> Row:
        """A new row.

        params: of one beam and one sample (`generate` supports several). If its seed is None, the row gets a new one, 53 bits
            of the system's entropy: `Row.seed`. prompt_ids: token ids in [0, V).
        number: the argument of the factory of `processors`; None for the number of rows that have been made before.
        num_beams: above 1, the row's processors serve a search with this many beams.

        Raises ValueError for params with an id outside the vocabulary or an illegal order of processors, and for stop strings
        without token_bytes.
        """
        self._check(params)
        number = self._made if number is None else number
        prompt = self._ids("prompt_ids", prompt_ids)
        (params,) = within_length(params, len(prompt)).samples()
        ends = self._ends if params.eos_token_id is None else frozenset(as_several(params.eos_token_id))
        constraint = self._constraint(params, len(prompt), ends)
        budget = self._budget(params, len(prompt))
        kept = [each for each in (constraint, budget) if each is not None]
        own = [*self._processors.for_row(number, num_beams), *kept]
        sizes = {"prompt_length": len(prompt), "vocab_size": self.vocab_size, "num_beams": num_beams}
        plan = build_plan(build_stages(self._with_ids(params), eos_token_ids=ends, own=own, **sizes), self.vocab_size)
        history = TokenHistory(prompt)
        ends = frozenset() if params.ignore_eos else ends
        native = new_row(
            self.vocab_size,
            history,
            plan.tail.parts,
            greedy=params.greedy,
            seed=params.seed or 0,
            top_logprobs=params.logprobs,
            ends=ends,
            stops=params.stop_token_ids,
            limit=params.max_new_tokens,
        )
        text = self._text(params)
        self._made += 1
        self._processors.served = True
        return Row(params, history, plan, native, text, ends, time.monotonic(), constraint, budget=budget)

    def _check(self, params: SamplingParams) -> None:
        require(isinstance(params, SamplingParams), _OP, "params", "a SamplingParams", params)
        require(params.num_beams == 1, _OP, "params", "of one beam: `generate` searches with several", params.num_beams)
        count = params.num_return_sequences
        require(count == 1, _OP, "params", "of one sample: `generate` adds a row for each of several", count)
        asked = ["stop strings"] * bool(params.stop_strings) + languages_of(params)
        if asked and self._token_bytes is None:
            refuse(_OP, "token_bytes", f"given where a row has {asked[0]}", None)
        for name in TOKEN_FIELDS:
            self._ids(name, as_several(getattr(params, name)))
        self._ids("dry_sequence_breakers", [each for each in params.dry_sequence_breakers or () if not isinstance(each, str)])
        for name in SEQUENCE_FIELDS:
            for ids in getattr(params, name) or ():
                self._ids(name, ids)

    def _with_ids(self, params: SamplingParams) -> SamplingParams:
        """The params with ids in place of texts: DRY's breakers, and bad_words as bad_words_ids, in the tokens of each alone,
        and after a blank, as within a text."""
        breakers = _DRY_BREAKERS if params.dry_sequence_breakers is None else params.dry_sequence_breakers
        if params.dry_multiplier and (texts_of := tuple(each for each in breakers if isinstance(each, str))):
            if self._token_bytes is None:
                refuse(_OP, "token_bytes", "given where dry_sequence_breakers has strings, or is None; () has none", None)
            ids = [each for each in breakers if not isinstance(each, str)]
            found = _tokens_with(texts_of, self._token_bytes, self.vocab_size)
            params = params.replace(dry_sequence_breakers=(*ids, *found))
        if not params.bad_words:
            return params
        encode = self._encode
        if encode is None:
            refuse(_OP, "encode", "given where a row has bad_words", None)
        texts = [text for word in params.bad_words for text in (word, f" {word}")]
        words = dict.fromkeys(tuple(self._ids("bad_words", encode(text))) for text in texts)
        return params.replace(bad_words=(), bad_words_ids=(*params.bad_words_ids, *filter(None, words)))

    def _ids(self, name: str, ids: object) -> list[int]:
        """Token ids as a list of ints; ValueError unless it is an iterable of ids in the vocabulary."""
        return require_ids(_OP, name, self.vocab_size, ids.tolist() if hasattr(ids, "tolist") else ids)

    def _constraint(self, params: SamplingParams, prompt_length: int, ends: frozenset[int]) -> ConstraintLogitsProcessor | None:
        """The constraint of params that have been checked."""
        languages = languages_of(params)
        if self._token_bytes is None or not languages:
            return None
        [language] = languages
        return ConstraintLogitsProcessor(
            language,
            getattr(params, language),
            prompt_length,
            closed=params.disable_additional_properties,
            order=params.json_property_order,
            token_bytes=self._token_bytes,
            encode=self._encode,
            vocab_size=self.vocab_size,
            ends=ends,
        )

    def _budget(self, params: SamplingParams, prompt_length: int) -> ThinkingBudget | None:
        """The thinking budget of params that have been checked."""
        tokens, marks, name = params.thinking_budget, self._marks, "thinking_budget_tokens"
        if tokens is None:
            return None
        if marks is None or self._spelled_bytes is None or self._encode is None:
            refuse(_OP, name, "None for a prompt that is no conversation, as nothing says what marks reasoning", tokens)
        message, closing = (self._encode(text) if text else [] for text in (params.thinking_budget_message, marks.closing))
        if not closing:
            refuse(_OP, name, f"None for a vocabulary without tokens of {marks.closing}", tokens)
        return ThinkingBudget(tokens, marks, [*message, *closing], prompt_length, self._spelled_bytes)

    def _text(self, params: SamplingParams) -> TextStream | None:
        """The text of a row; None without token_bytes."""
        if self._token_bytes is None:
            return None
        return TextStream(
            self._token_bytes, params.stop_strings, spelled_bytes=self._spelled_bytes, min_tokens=params.min_tokens
        )


@lru_cache(maxsize=8)
def _tokens_with(texts: tuple[str, ...], token_bytes: Callable[[int], bytes], vocab_size: int) -> tuple[int, ...]:
    """The tokens whose text has one of these; cached for all rows of a model."""
    one = re.compile(b"|".join(re.escape(text.encode()) for text in texts))
    return tuple(i for i in range(vocab_size) if one.search(token_bytes(i)))
