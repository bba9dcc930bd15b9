"""The accepted forms of a prompt, and their token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from decodestep._base.checks import Words, ids_below, is_int, refuse, require

if TYPE_CHECKING:
    from decodestep.chat.template import Conversation, Message
    from decodestep.models import Model

_OP = "generate"

# Text, token ids or a conversation: both are one Sequence here, since mypy does not choose between several for unlike prompts.
Prompt: TypeAlias = "str | Sequence[int | Message | Mapping[str, Any]] | np.ndarray"
# One string, one conversation, or several prompts.
Prompts: TypeAlias = "str | Conversation | Sequence[Prompt]"


def prompts_of(prompts: Prompts) -> Sequence[Prompt]:
    """The prompts of a call: one string or one conversation alone is one prompt."""
    require(isinstance(prompts, Sequence), _OP, "prompts", "one string, one conversation or a sequence of prompts", prompts)
    alone = isinstance(prompts, str) or _is_conversation(prompts)
    return [prompts] if alone else prompts  # type: ignore[list-item, return-value]


def prompt_ids(model: Model, prompt: Prompt, least_room: int = 1) -> list[int]:
    """The token ids of a prompt, as `generate` passes them to the model. Raises as `generate` does.

    least_room: the number of tokens that it must leave in the context, 0 or 1.
    """
    vocab, context = model.config.vocab_size, model.config.context
    if isinstance(prompt, str):
        ids = _encode(model.tokenizer.encode, prompt)
    elif _is_conversation(prompt):
        ids = _encode(model.chat_ids, prompt)
    elif (found := ids_below(vocab, prompt)) is not None:
        ids = found
    else:
        got = Words(f"{prompt}: the ids of one prompt are a list in the list of prompts") if is_int(prompt) else prompt
        refuse(_OP, "prompt", f"text, messages or token ids in [0, {vocab})", got)
    require(len(ids) > 0, _OP, "prompt", "at least one token long", Words("an empty prompt"))
    if len(ids) > context - least_room:
        rule = f"{'shorter' if least_room else 'no longer'} than the context of {context} tokens"
        refuse(_OP, "prompt", rule, Words(f"{len(ids)} tokens"), "context_length_exceeded")
    return ids


def _is_conversation(prompt: Prompt | Prompts) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and all(isinstance(item, Mapping) for item in prompt)


def _encode(encode: Callable[[Any], list[int]], prompt: object) -> list[int]:
    try:
        return encode(prompt)
    except UnicodeEncodeError:
        refuse(_OP, "prompt", "text that can be encoded as UTF-8", prompt)
