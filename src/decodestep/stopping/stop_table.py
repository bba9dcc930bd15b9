"""What reading a token does to an automaton of stop strings, for all tokens of a vocabulary at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from decodestep.stopping.token_text import TokenText
from decodestep.text import StopAutomaton


class StopTable(NamedTuple):
    """The automaton over tokens instead of bytes; state 0 is where a text begins.

        state behind token t = after[after_row[t], state before it]
        a string ends in t   = ends[ends_row[t], state before it]

    Nearly all tokens lead to one state from wherever they are read, so the rows are few. The rows of id V, the size of the
    vocabulary, are those of an id that is no token: back to state 0, and nothing ends.
    """

    after_row: np.ndarray
    after: np.ndarray
    ends_row: np.ndarray
    ends: np.ndarray


def stop_table(text: TokenText, strings: Sequence[str]) -> StopTable:
    """Builds the table: each byte of the vocabulary is read from state 0, and from other states only while that differs."""
    following, final = StopAutomaton(strings).table()
    states, vocab = len(following), len(text.lengths)
    tokens = np.flatnonzero(text.lengths > 0)
    state, found = np.zeros(vocab + 1, np.intp), np.zeros(vocab + 1, bool)
    reading = tokens
    for j in count():
        state[reading] = following[state[reading], text.pool[text.starts[reading] + j]]
        found[reading] |= final[state[reading]]
        reading = reading[text.lengths[reading] > j + 1]
        if not reading.size:
            break

    token, before = _read_differently(text, tokens, following)
    here, plain, ends_here = before.copy(), np.zeros_like(before), np.zeros(len(before), bool)
    pairs = np.arange(len(before))
    for j in count():
        if not pairs.size:
            break
        byte = text.pool[text.starts[token[pairs]] + j]
        here[pairs], plain[pairs] = following[here[pairs], byte], following[plain[pairs], byte]
        pairs = pairs[here[pairs] != plain[pairs]]  # once the same, the same for the rest of the token
        ends_here[pairs] |= final[here[pairs]]
        pairs = pairs[text.lengths[token[pairs]] > j + 1]

    after = np.broadcast_to(np.arange(states)[:, None], (states, states))
    moved, kept = here != plain, text.lengths == 0
    after_row, after = _with_own_rows(state, after, token[moved], before[moved], here[moved])
    after_row[:-1][kept] = len(after)  # an empty token leaves the state
    after = np.concatenate([after, np.arange(states)[None]])
    new = ends_here & ~found[token]
    never_or_always = np.array([[False], [True]]) & np.ones(states, bool)
    ends_row, ends = _with_own_rows(found.astype(np.intp), never_or_always, token[new], before[new], True)
    return StopTable(after_row, after, ends_row, ends)


def _read_differently(text: TokenText, tokens: np.ndarray, following: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tokens, and the states before them, where the first byte leads elsewhere than from state 0."""
    first = text.pool[text.starts[tokens]]
    order = np.argsort(first, kind="stable")
    bounds = np.searchsorted(first[order], np.arange(257))
    states, bytes_ = np.nonzero(following != following[0])
    groups = [tokens[order[bounds[b] : bounds[b + 1]]] for b in bytes_]
    return np.concatenate([tokens[:0], *groups]), np.repeat(states, [len(group) for group in groups])


def _with_own_rows(
    rows: np.ndarray, table: np.ndarray, token: np.ndarray, column: np.ndarray, value: np.ndarray | bool
) -> tuple[np.ndarray, np.ndarray]:
    """Gives each of these tokens a row of its own, a copy of the one it had but for its values in these columns."""
    own, which = np.unique(token, return_inverse=True)
    added = table[rows[own]]
    added[which, column] = value
    rows = rows.copy()
    rows[own] = len(table) + np.arange(len(own))
    return rows, np.concatenate([table, added])
