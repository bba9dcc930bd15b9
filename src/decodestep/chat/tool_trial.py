"""Whether a chat template can write several calls of one message, found by rendering small conversations with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from decodestep.errors import ModelError, TemplateProcessError

if TYPE_CHECKING:
    from decodestep.chat.template import ChatModel, ChatTemplate

_PLACES = ("Quokka", "Numbat")  # which no template writes of its own accord
_IDS = ("abcdefg12", "abcdefg34")  # of nine letters and digits, as Mistral's templates want them
_NAME = "find_animal"
_PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
_TOOL = {"type": "function", "function": {"name": _NAME, "description": "Finds animals.", "parameters": _PARAMETERS}}
_found: WeakKeyDictionary[ChatTemplate, bool] = WeakKeyDictionary()  # a trial takes as long as two prompts


def takes_several_calls(model: ChatModel) -> bool:
    """Whether what the model calls can come back: False if the template writes one call of a message, and of two refuses the
    message or leaves out the second."""
    if model.template not in _found:
        _found[model.template] = _PLACES[0] not in _written(model, 1) or all(place in _written(model, 2) for place in _PLACES)
    return _found[model.template]


def _written(model: ChatModel, count: int) -> str:
    """The prompt of a conversation whose answer has so many calls; "" if the template refuses it."""
    calls = [_call(place, call_id) for place, call_id in zip(_PLACES[:count], _IDS, strict=False)]
    results = [{"role": "tool", "name": _NAME, "tool_call_id": call["id"], "content": "found"} for call in calls]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *results,
    ]
    try:
        return model.chat_prompt(messages, tools=[_TOOL])
    except TemplateProcessError:  # which says nothing of the template
        raise
    except ModelError:
        return ""


def _call(place: str, call_id: str) -> dict[str, Any]:
    return {"type": "function", "id": call_id, "function": {"name": _NAME, "arguments": {"place": place}}}
