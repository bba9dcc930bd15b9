"""What a chat template writes of calls, found by rendering small conversations with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from decodestep.errors import ModelError, TemplateProcessError

if TYPE_CHECKING:
    from decodestep.chat.template import ChatModel, ChatTemplate

_PLACES = ("Quokka", "Numbat")  # which no template writes of its own accord
_IDS = ("abcdefg12", "abcdefg34")  # of nine letters and digits, as Mistral's templates want them
_NAME = "find_animal"
_PLACE = {"type": "string", "description": "Where it lives."}


class CallTrial(NamedTuple):
    """What a chat template writes of the calls of a message.

    calls: whether it writes one. several: whether it writes two; False if it refuses them or leaves out the second.
    with_content: whether it writes one also beside a content. described: whether it refuses tools where a property has no
    description.
    """

    calls: bool
    several: bool
    with_content: bool
    described: bool


_found: WeakKeyDictionary[ChatTemplate, CallTrial] = WeakKeyDictionary()  # a trial takes as long as five prompts


def try_calls(model: ChatModel) -> CallTrial:
    """The trial of a model's template. Of one that does not write what a call says, nothing more is known: it is taken to write
    as much of others."""
    if model.template not in _found:
        one = _written(model, 1)
        calls = bool(one) and one != _written(model, 0)
        told = _PLACES[0] in one
        several = not told or all(place in _written(model, 2) for place in _PLACES)
        with_content = not told or _PLACES[0] in _written(model, 1, content="I look.")
        described = bool(one) and not _written(model, 1, place={"type": "string"})
        _found[model.template] = CallTrial(calls, several, with_content, described)
    return _found[model.template]


def _written(model: ChatModel, count: int, content: str | None = None, place: Mapping[str, str] = _PLACE) -> str:
    """The prompt of a conversation whose answer has so many calls; "" if the template refuses it. place: the schema of their
    argument."""
    parameters = {"type": "object", "properties": {"place": place}, "required": ["place"]}
    tool = {"type": "function", "function": {"name": _NAME, "description": "Finds animals.", "parameters": parameters}}
    calls = [_call(place, call_id) for place, call_id in zip(_PLACES[:count], _IDS, strict=False)]
    results = [
        {"role": "tool", "name": _NAME, "tool_call_id": call_id, "content": "found"} for call_id in _IDS[: max(count, 1)]
    ]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})},
        *results,
    ]
    try:
        return model.chat_prompt(messages, tools=[tool])
    except TemplateProcessError:  # which says nothing of the template
        raise
    except ModelError:
        return ""


def _call(place: str, call_id: str) -> dict[str, Any]:
    return {"type": "function", "id": call_id, "function": {"name": _NAME, "arguments": {"place": place}}}
