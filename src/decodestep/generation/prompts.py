"""The accepted forms of a prompt, and their token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from decodestep._base.checks import Phrase, ids_below, is_int, is_mapping, is_sequence, refuse, require
from decodestep.chat import tools
from decodestep.chat.answer_format import AnswerFormat, build_answer_format
from decodestep.chat.function_schemas import describe_function
from decodestep.sampling.contradictions import languages_of
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.thinking_budget import ReasoningMarks

if TYPE_CHECKING:
    from decodestep.chat.template import Conversation, Message
    from decodestep.models import Model

_OP = "generate"
EncodedT = TypeVar("EncodedT")

# Text, token ids, a conversation, or one with what a template reads beside it. All lists are one Sequence here, since mypy does
# not choose between several for unlike prompts.
Prompt: TypeAlias = "str | Sequence[int | Message | Mapping[str, Any]] | np.ndarray | Mapping[str, Any]"
# One string, one conversation, or several prompts.
Prompts: TypeAlias = "str | Conversation | Mapping[str, Any] | Sequence[Prompt]"

# The keys of a prompt that is a mapping, and the template's variables that have a place of their own.
_KEYS = ("messages", "tools", "documents", "chat_template_kwargs", "continue_final_message")
RESERVED = frozenset({*_KEYS, "control_tokens", "add_generation_prompt", "self"})


def list_prompts(prompts: Prompts) -> Sequence[Prompt]:
    """The prompts of a call: one string or one conversation alone is one prompt."""
    ok = isinstance(prompts, (Sequence, Mapping))
    require(ok, _OP, "prompts", "one string, one conversation or a sequence of prompts", prompts)
    alone = isinstance(prompts, (str, Mapping)) or _is_conversation(prompts)
    return [prompts] if alone else prompts  # type: ignore[list-item, return-value]


class ReadPrompt(NamedTuple):
    """ids: its token ids. answer: how the answer to a conversation is read; None for another prompt."""

    ids: list[int]
    answer: AnswerFormat | None

    def marks(self, params: SamplingParams) -> ReasoningMarks | None:
        """Those of the reasoning in the answer. Refuses a thinking budget beside a constraint of the whole text, to which the
        closing mark might not belong."""
        budget, languages = params.thinking_budget, languages_of(params)
        if budget is not None and languages:
            refuse(_OP, "thinking_budget_tokens", f"None beside {languages[0]}, which binds the reasoning too", budget)
        return None if self.answer is None else self.answer.marks


def read_prompt(model: Model, prompt: Prompt, least_room: int = 1) -> ReadPrompt:
    """A prompt as `generate` passes it to the model. Raises as `generate` does.

    least_room: the number of tokens that it must leave in the context, 0 or 1.
    """
    vocab, context, answer = model.config.vocab_size, model.config.context, None
    if isinstance(prompt, str):
        ids = _encode(model.tokenizer.encode, prompt)
    elif isinstance(prompt, Mapping):
        ids, answer = _encode(lambda given: _read_mapping(model, given), prompt)
    elif _is_conversation(prompt):
        ids = _encode(model.chat_ids, prompt)
        answer = build_answer_format(model, ids, None)
    elif (found := ids_below(vocab, prompt)) is not None:
        ids = found
    else:
        got = Phrase(f"{prompt}: the ids of one prompt are a list in the list of prompts") if is_int(prompt) else prompt
        refuse(_OP, "prompt", f"text, messages or token ids in [0, {vocab})", got)
    require(len(ids) > 0, _OP, "prompt", "at least one token long", Phrase("an empty prompt"))
    if len(ids) > context - least_room:
        rule = f"{'shorter' if least_room else 'no longer'} than {model.config.context_in_words}"
        refuse(_OP, "prompt", rule, Phrase(f"{len(ids)} tokens"), "context_length_exceeded")
    return ReadPrompt(ids, answer)


def prompt_ids(model: Model, prompt: Prompt) -> list[int]:
    """The token ids of a prompt. Raises as `generate` does."""
    return read_prompt(model, prompt).ids


def _is_conversation(prompt: object) -> bool:
    """Whether it is a list of messages: mappings with "messages" are prompts of their own."""
    return is_sequence(prompt) and len(prompt) > 0 and all(is_mapping(item) and "messages" not in item for item in prompt)


def _read_mapping(model: Model, prompt: Mapping[str, Any]) -> tuple[list[int], AnswerFormat]:
    """A conversation with its tools and the template's variables: its token ids, and how its answer is read."""
    require(
        "messages" in prompt, _OP, "prompt", 'a mapping with "messages"', Phrase(", ".join(map(str, prompt)) or "an empty one")
    )
    unknown = [str(key) for key in prompt if key not in _KEYS]
    require(not unknown, _OP, "prompt", f"a mapping of {', '.join(_KEYS)}", Phrase(", ".join(unknown)))
    continues, given = prompt.get("continue_final_message"), prompt.get("chat_template_kwargs")
    require(isinstance(continues, bool | None), _OP, "continue_final_message", "a bool or None", continues)
    variables = dict(given) if is_mapping(given) else {}
    ok = (given is None or is_mapping(given)) and all(isinstance(name, str) for name in variables)
    require(ok, _OP, "chat_template_kwargs", "a mapping of names or None", given)
    taken = sorted(RESERVED & set(variables))
    require(not taken, _OP, "chat_template_kwargs", "without names that have a place of their own", Phrase(", ".join(taken)))
    messages, definitions, called = prompt["messages"], prompt.get("tools") or None, None
    if definitions is not None:
        is_list = is_sequence(definitions) and not isinstance(definitions, str)
        require(is_list, _OP, "tools", "a list of tools and functions or None", definitions)
        ok = _is_conversation(messages)
        require(ok, _OP, "messages", "a list of messages, at least one", messages)
        conversation = [dict(message) for message in messages]
        described = [describe_function(tool) if callable(tool) else tool for tool in definitions]
        called = tools.read(model, {"tools": described}, conversation)
        messages, definitions = tools.for_template(model, conversation, called)
    ids = model.chat_ids(
        messages,
        tools=definitions,
        documents=prompt.get("documents"),
        continue_final_message=bool(continues),
        **variables,
    )
    # What continues a message has no beginning at which reasoning could stand.
    return ids, replace(build_answer_format(model, ids, called), separate=not continues)


def _encode(encode: Callable[[Any], EncodedT], prompt: object) -> EncodedT:
    try:
        return encode(prompt)
    except UnicodeEncodeError:
        refuse(_OP, "prompt", "text that can be encoded as UTF-8", prompt)
