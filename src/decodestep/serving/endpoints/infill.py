"""POST /infill: what stands between two texts, in llama-server's form, as plugins of editors ask for it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from decodestep.generation.infill import File
from decodestep.sampling.params import SamplingParams
from decodestep.serving.answer_writer import AnswerWriter, Sample
from decodestep.serving.endpoint import Endpoint
from decodestep.serving.errors import refusal
from decodestep.serving.infilling import ending_infill, read_infill
from decodestep.serving.jobs import NO_DEFAULTS, Job, read_sampling
from decodestep.serving.openai_fields import CHAT_FIELDS, known_only, refuse_fields, sampling_fields
from decodestep.serving.request_fields import bool_field
from decodestep.serving.wire import event, json_bytes

if TYPE_CHECKING:
    from decodestep.generation.engine_request import Delta, EngineRequest
    from decodestep.models import Model
    from decodestep.serving.errors import HttpError
    from decodestep.serving.http import Server
    from decodestep.tokenizers.tokenizer import Tokenizer

_FIELDS = ("input_prefix", "input_suffix", "input_extra", "prompt")
_STOP_TYPES = {"eos": "eos", "stop": "word", "length": "limit"}


def infill_job(model: Model, body: Mapping[str, Any], most_characters: int, defaults: SamplingParams = NO_DEFAULTS) -> Job:
    """The job of a text between two others. For the arguments, see `completion_job`."""
    refuse_fields(body, CHAT_FIELDS)
    prefix, suffix, begun = (body.get(name, "") for name in ("input_prefix", "input_suffix", "prompt"))
    for name, value in (("input_prefix", prefix), ("input_suffix", suffix), ("prompt", begun)):
        if not isinstance(value, str):
            raise refusal(name, "a string")
    files, names = _files(body.get("input_extra")), ("input_prefix", "input_suffix")
    ids = read_infill(model, prefix, suffix, most_characters, files=files, begun=begun, names=names)
    stream, rest = bool(bool_field(body, "stream")), {name: value for name, value in body.items() if name not in _FIELDS}
    sampling = read_sampling(sampling_fields(rest), defaults)
    params = ending_infill(model, sampling.params)
    if params.num_return_sequences != 1:
        raise refusal(sampling.field_of["num_return_sequences"], "1")
    return Job([ids], params, InfillWriter, stream, sampling.field_of)


def _files(given: object) -> list[File]:
    """input_extra: a name is not needed."""
    files = [] if given is None else given
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise refusal("input_extra", 'a list of {"filename", "text"}')
    found = [File(file.get("filename") or "tmp", file.get("text", "")) for file in files]
    if not all(isinstance(text, str) for file in found for text in file):
        raise refusal("input_extra", 'a list of {"filename": a string, "text": a string}')
    return found


class InfillWriter(AnswerWriter):
    """Writes llama-server's fields; what its timings and settings say is left out."""

    def __init__(self, model: str, tokenizer: Tokenizer, requests: Sequence[EngineRequest]) -> None:
        [request] = requests
        self._sample = Sample(request.rows[0])
        super().__init__(f"infill-{secrets.token_hex(12)}", requests, [self._sample])
        self._model = model

    def take(self, index: int, delta: Delta) -> None:
        self._sample.take(delta)

    def whole(self) -> bytes:
        return json_bytes({"index": 0, "content": self._sample.text, **self._end()})

    def opening(self) -> bytes:
        return b""

    def events(self, index: int, delta: Delta) -> bytes:
        self._sample.take(delta)
        if not (delta.text or delta.reason):
            return b""
        end = self._end() if delta.reason else {"stop": False}
        return event({"index": 0, "content": delta.text, **end})

    def closing(self) -> bytes:
        return b""

    def failure(self, error: HttpError) -> bytes:
        return event(error.body())

    def _end(self) -> dict[str, Any]:
        sample, used = self._sample, self.usage
        stop_type = _STOP_TYPES.get(sample.ended_by, "none")
        return {
            "stop": True,
            "model": self._model,
            "tokens_predicted": used.completion,
            "tokens_evaluated": used.prompt,
            "tokens_cached": used.cached,
            "truncated": False,
            "stop_type": "eos" if stop_type == "word" and not sample.stop else stop_type,
            "stopping_word": sample.stop,
            "seed": sample.row.seed,
            "ended_by": sample.ended_by,
        }


async def _answer(server: Server, request: Request) -> Response:
    return await server.complete(request, known_only(infill_job, _FIELDS) if server.ignore_unknown_fields else infill_job)


ENDPOINTS = (Endpoint("/infill", _answer),)
