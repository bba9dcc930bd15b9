"""What reading a token does to an automaton of stop strings, for all tokens of a vocabulary at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from decodestep.stopping.stop_automaton import StopAutomaton
from decodestep.stopping.token_text import TokenText


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

    token, before = _read_differently(text, tokens, following, final)
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

    reached, after_row = np.unique(state, return_inverse=True)
    moved = here != plain
    after_row, after = _with_rows(
        after_row, np.repeat(reached[:, None], states, axis=1), token[moved], before[moved], here[moved]
    )
    after_row[:-1][text.lengths == 0] = len(after)  # an empty token leaves the state
    after = np.concatenate([after, np.arange(states)[None]])
    new = ends_here & ~found[token]
    never_always = np.repeat([[0], [1]], states, axis=1)
    ends_row, ends = _with_rows(found.astype(np.intp), never_always, token[new], before[new], ends_here[new])
    return StopTable(after_row, after, ends_row, ends > 0)


def _read_differently(
    text: TokenText, tokens: np.ndarray, following: np.ndarray, final: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and states before them, that the first two bytes do not show to be read as from state 0; by ascending states."""
    starts = text.starts[tokens]
    second = np.where(
        text.lengths[tokens] > 1, text.pool[np.minimum(starts + 1, len(text.pool) - 1)], np.intp(256)
    )  # 256: none
    beginning = (text.pool[starts] * np.intp(257) + second).astype(np.int32)
    order = np.argsort(beginning)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(beginning, minlength=256 * 257))])
    groups, states = [order[:0]], []
    for state, byte in zip(*np.nonzero(following != following[0]), strict=True):
        there, plain = following[state, byte], following[0, byte]
        seconds = range(257) if final[there] else [*np.flatnonzero(following[there] != following[plain]), 256]
        groups += [order[bounds[byte * 257 + c] : bounds[byte * 257 + c + 1]] for c in seconds]
        states += [state] * len(seconds)
    return tokens[np.concatenate(groups)], np.repeat(np.array(states, np.intp), [len(group) for group in groups[1:]])


def _with_rows(
    rows: np.ndarray, table: np.ndarray, token: np.ndarray, column: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gives each of these tokens the row that it had but for its values in these columns; tokens that read alike share it."""
    own, which, counts = np.unique(token, return_inverse=True, return_counts=True)
    order = np.argsort(which, kind="stable")
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    changes = np.full((len(own), 1 + 2 * counts.max(initial=0)), -1)
    changes[:, 0] = rows[own]
    changes[which[order], 1 + 2 * place], changes[which[order], 2 + 2 * place] = column[order], value[order]
    _, first, kind = np.unique(changes, axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)  # NumPy 2.0 gives it another shape
    added = table[rows[own[first]]]
    added[kind[which], column] = value
    rows = rows.copy()
    rows[own] = len(table) + kind
    return rows, np.concatenate([table, added])
