"""Where the last message of a user begins in the tokens of a conversation, by published templates."""

from __future__ import annotations

import pytest

from decodestep.chat.template import ChatTemplate
from decodestep.chat.user_mark import UserMark, find_user_mark
from support.project import CHAT_TEMPLATES
from test_chat import SPECIAL, say


def ids_of(name):
    """Characters in place of tokens."""
    template = ChatTemplate({}, (CHAT_TEMPLATES / "formats" / f"{name}.jinja").read_text())

    def ids(messages):
        form = template.form(SPECIAL, tools=False)
        return list(map(ord, template.render(messages, None, None, {"add_generation_prompt": True}, SPECIAL, form)))

    return ids


# What a template writes before every message of a user, and what follows it before results of tools.
MARKS = {
    "chatml": ("<|im_start|>user\n", ""),
    "qwen3": ("<|im_start|>user\n", "<"),
    "llama3": ("<|start_header_id|>user<|end_header_id|>\n\n", ""),
    "gemma3": ("<start_of_turn>user\n", ""),
    "mistral_v3": ("[INST] ", ""),
}


@pytest.mark.parametrize("name", MARKS)
def test_what_comes_before_a_message_of_a_user(name):
    ids = ids_of(name)
    found = find_user_mark(ids)
    mark, results = MARKS[name]
    assert "".join(map(chr, found.tokens)).endswith(mark)
    assert found.results == frozenset(map(ord, results))
    chat = [say("user", "one two"), say("assistant", "three"), say("user", "four five")]
    text = ids(chat)
    assert "".join(map(chr, text[found.last(text) :])).startswith("four five")
    if results:
        text = ids([*chat, say("assistant", "six"), say("tool", "seven")])
        assert "".join(map(chr, text[found.last(text) :])).startswith("four five")


def test_the_last_occurrence_counts():
    mark = UserMark((1, 2), frozenset((9,)))
    assert [mark.last(ids) for ids in ([], [1], [2, 1], [1, 2], [1, 2, 3, 1, 2, 4], [1, 2, 3, 1, 2, 9])] == [
        *[None] * 3,
        2,
        5,
        2,
    ]


def refuse(messages):
    from decodestep.errors import ModelError

    raise ModelError("it has no template")


def test_without_a_mark():
    assert find_user_mark(refuse) is None
    assert find_user_mark(lambda messages: [ord(char) for each in messages for char in each["content"]]) is None
