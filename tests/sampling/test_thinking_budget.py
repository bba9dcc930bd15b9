"""The thinking budget of a row, against one that reads the whole text anew for each token."""

from __future__ import annotations

import codecs
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodestep.ops.decode_step import steps as s
from decodestep.sampling.thinking_budget import ReasoningMarks, ThinkingBudget

# Tokens of one or several bytes: marks as a whole and in pieces, characters as a whole and in pieces.
CHARACTERS = ["é".encode(), b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80"]
SPACES = ["\u3000".encode(), b"\xe3\x80", b"\x80", "\x85".encode()]
TOKENS = [b"<t>", b"</t>", b"<", b"/t>", b"t>", b" ", b"a", *CHARACTERS, b"</", b"a<t>b", *SPACES]
FORCED = [24, 25]  # of which the second is the closing mark
SPELLED = [*TOKENS, *[b""] * 6, b"!", b"</t>"]


def begins_character(text):
    for count in range(1, 4):
        lead = text[-count:][:1]
        if lead >= b"\xc0":
            return count < (2 if lead < b"\xe0" else 3 if lead < b"\xf0" else 4)
        if not b"\x80" <= lead < b"\xc0":
            return False
    return False


def is_due(tokens, budget, begun):
    """Whether the forced tokens must follow tokens, of which none were forced."""
    text, opened = b"", begun
    spent = 0
    reasoning = b""
    for token in tokens:
        if opened:
            spent += 1
            reasoning += SPELLED[token]
        else:
            text += SPELLED[token]
            said, held = codecs.utf_8_decode(text, "replace", False)
            begun_character, said = text[held:], said.lstrip()
            if said.startswith("<t>"):
                opened, reasoning = True, said[3:].encode() + begun_character
            elif not "<t>".startswith(said) or (begun_character and (said or begun_character != b"\xe3\x80")):
                return False
        if opened and b"</t>" in reasoning:
            return False
    return opened and spent >= budget and not begins_character(reasoning)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(0, len(TOKENS) - 1), max_size=14), st.integers(0, 6), st.booleans(), st.integers(1, 4))
def test_tokens_are_forced_as_by_reading_all_of_the_text(tokens, budget, begun, step):
    marks = ReasoningMarks("<t>", "</t>", begun)
    made = ThinkingBudget(budget, marks, FORCED, 2, SPELLED.__getitem__)
    row, read, free = [99, 99], 0, iter(tokens)
    while True:
        due = is_due(row[2:], budget, begun)
        if read % step == 0 or due:
            assert made.forced_tokens(row) == (FORCED if due else [])
        if due:
            break
        if (token := next(free, None)) is None:
            return
        row.append(token)
        read += 1
    for place, token in enumerate(FORCED):
        [forced] = made.steps(row)
        assert isinstance(forced, s.Force) and forced.ids.tolist() == [token]
        assert deepcopy(made).forced_tokens(row) == FORCED[place:]
        scores = made(np.array([row]), np.zeros((1, 30), np.float32))
        assert scores[0].argmax() == token and np.isneginf(np.delete(scores[0], token)).all()
        row.append(token)
    for token in [*free, 0, 6, 6, 6, 6, 6, 6, 6]:
        assert made.steps(row) == ()
        row.append(token)


@pytest.mark.parametrize(
    ("again", "text", "due_after"),
    [
        ("", ["<t>", "a", "</t>", " ", "<t>", "a", "a", "a"], None),
        ("next", ["<t>", "a", "</t>", " ", "<t>", "a", "a", "a"], 6),
        ("next", ["<t>", "a", "</t>", "a", "<t>", "a", "a", "a"], None),
        ("later", ["<t>", "a", "</t>", "a", "<t>", "a", "a", "a"], 6),
        ("later", ["<t>", "a", "</t>", "a", "a<t>b", "a"], 6),
        ("", ["\u3000", "\x85", "<t>", "a", "a", "a"], 6),
        ("next", ["<t>", "a", "</t>", "\u3000", "<t>", "a", "a", "a"], 6),
    ],
)
def test_parts_of_reasoning_share_a_budget(again, text, due_after):
    """Of three tokens, the closing mark of the first part included."""
    made = ThinkingBudget(3, ReasoningMarks("<t>", "</t>", again=again), FORCED, 0, SPELLED.__getitem__)
    tokens = [TOKENS.index(piece.encode()) for piece in text]
    due = [count for count in range(len(tokens) + 1) if made.forced_tokens(tokens[:count])]
    assert due[:1] == ([] if due_after is None else [due_after])
