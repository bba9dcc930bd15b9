"""Requests as jobs for the engine: how the fields that all endpoints share become `SamplingParams`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from decodestep._base.checks import Phrase, require
from decodestep.errors import RequestError
from decodestep.models.sampling_defaults import with_defaults
from decodestep.sampling.contradictions import languages_of
from decodestep.sampling.field_aliases import ALIASES
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.request_formats import OPENAI_NAMES
from decodestep.sampling.thinking_budget import ReasoningMarks
from decodestep.serving.answer_writer import AnswerWriter
from decodestep.serving.errors import HttpError, http_error, refusal

if TYPE_CHECKING:
    from decodestep.chat.answer_format import AnswerFormat
    from decodestep.generation.engine_request import EngineRequest
    from decodestep.tokenizers.tokenizer import Tokenizer

_OP = "serve"
_MAX_LOGPROBS = 100  # of a token
_MAX_STOPS, _MAX_STOP_CHARACTERS = 256, 2**14  # the number of stop strings; their total length
# The time and memory for a token grow with each of these fields, and with keys times the vocabulary.
_MOST_WATERMARKED = 1024  # tokens
_MAX_SYNTHID = {"ngram_len": 64, "keys": 64, "sampling_table_size": 2**20, "context_history_size": 2**16}
NO_DEFAULTS = SamplingParams()  # of a model that says nothing of them
# Where a constraint comes from that is not given as such.
_SOURCES = {"json_schema": "response_format", "grammar": "tools"}
# Fields of SamplingParams that need `generate`, or whose results do not fit in a response: only their defaults are accepted.
_LIBRARY_ONLY = ("num_beams", "num_beam_groups", "diversity_penalty", "length_penalty", "early_stopping", "prompt_logprobs")

BuildWriter = Callable[[str, "Tokenizer", Sequence["EngineRequest"]], AnswerWriter]  # of the model's name and the prompts


@dataclass(frozen=True)
class Job:
    """A parsed request.

    prompts: token ids or texts, which share params. build_writer: makes what writes the answer. stream: whether it is streamed.
    field_of: the request's field for each field of params that it has under another name, or that was made from another one.
    only_scored: as for `Engine.submit`. answer: how the answers of a chat are read; None of a completion.
    """

    prompts: list[Any]
    params: SamplingParams
    build_writer: BuildWriter
    stream: bool
    field_of: Mapping[str, str]
    only_scored: bool = False
    answer: AnswerFormat | None = None

    @property
    def spelled(self) -> Collection[str]:
        """The names of control tokens that appear in the text."""
        return () if self.answer is None else self.answer.spelled

    @property
    def marks(self) -> ReasoningMarks | None:
        """Those of the reasoning in the answer; None of a completion."""
        return None if self.answer is None else self.answer.marks

    def refusal(self, error: RequestError) -> HttpError:
        """The response to an error of the engine, in the words of the request."""
        named, called = None, None if self.answer is None else self.answer.tools
        if called is not None and self.params.grammar is not None and self.field_of.get(error.arg) == "tools":
            named = called.refusal(self.params.grammar, error)
        return http_error(named or error, self.field_of)


class Sampling(NamedTuple):
    """params: those of a request. field_of: as in `Job`."""

    params: SamplingParams
    field_of: dict[str, str]


def read_sampling(
    body: Mapping[str, Any],
    defaults: SamplingParams,
    *,
    max_tokens: int | None = None,
    constraint: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
) -> Sampling:
    """The params of a request.

    body: its fields that `SamplingParams.from_openai` takes. defaults: of those that it leaves out. max_tokens: if it has no
    such number. constraint: that of its response_format or tools, as a field of SamplingParams. names: what the request calls
    fields of SamplingParams, response_format and others, where its names are not OpenAI's.
    """
    names = names or {}
    for name in _LIBRARY_ONLY:
        if body.get(name) not in (None, getattr(SamplingParams, name)):
            raise HttpError(400, f"{name} is for `decodestep.generate`, not for requests", param=name, code="unknown_field")
    given = {name: value for name, value in body.items() if value is not None}
    field_of = {**_field_names(given), **names}
    try:
        params = with_defaults(SamplingParams.from_openai(given), {OPENAI_NAMES.get(name, name) for name in given}, defaults)
        _require_affordable(params)
    except RequestError as error:
        raise http_error(error, field_of) from None
    if _field_names(given)["max_new_tokens"] not in given:
        params = replace(params, max_new_tokens=max_tokens)
    for language, value in (constraint or {}).items():
        field_of[language] = names.get(_SOURCES[language], _SOURCES[language])
        params = _constrained(params, language, value, field_of[language])
    return Sampling(params, field_of)


def _constrained(params: SamplingParams, language: str, constraint: Any, source: str) -> SamplingParams:
    """The params with a constraint. language: the field that it becomes. source: the request's field that it comes from."""
    given = languages_of(params)
    if given:
        raise refusal(given[0], "omitted with response_format or a required tool")
    if params.ignore_eos:
        raise refusal("ignore_eos", f"false beside {source}, which ends the row")
    return replace(params, **{language: constraint})


def _field_names(given: Collection[str]) -> dict[str, str]:
    """The names by which a request has the fields of SamplingParams that have several; of those that it has not, OpenAI's."""
    names = {field: name for name, field in ALIASES.items()}
    names |= {OPENAI_NAMES[name]: name for name in given if name in OPENAI_NAMES}
    names |= {field: field for field in names if field in given}
    return {**names, "strings": names["stop_strings"]}  # as the automaton of the stop strings calls them


def _require_affordable(params: SamplingParams) -> None:
    """Refuses values with which one request would cost the others more than a few rows do."""
    require((params.logprobs or 0) <= _MAX_LOGPROBS, _OP, "logprobs", f"at most {_MAX_LOGPROBS}", params.logprobs)
    watermark = params.watermarking_config or {}
    for name, largest in _MAX_SYNTHID.items():
        value = watermark.get(name)
        size = len(value) if name == "keys" and value is not None else value
        require(size is None or size <= largest, _OP, "watermarking_config", f"such that {name} is at most {largest}", size)
    if "keys" in watermark:  # each token that is left costs a hash for each key
        few = 0 < (params.top_k or 0) <= _MOST_WATERMARKED
        require(few, _OP, "top_k", f"in [1, {_MOST_WATERMARKED}] beside a watermark with keys", params.top_k)
    count, length = len(params.stop_strings), sum(map(len, params.stop_strings))
    rule = f"at most {_MAX_STOPS} strings of {_MAX_STOP_CHARACTERS} characters in total"
    require(count <= _MAX_STOPS and length <= _MAX_STOP_CHARACTERS, _OP, "stop_strings", rule, Phrase(f"{count} of {length}"))
