"""The stop strings' automaton as a table of transitions by token, for all tokens of a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from decodestep.stopping.stop_automaton import StopAutomaton
from decodestep.stopping.token_text import TokenText


class StopTable(NamedTuple):
    """The automaton of some stop strings, stepped by tokens instead of bytes. State 0 is the start of a text.

        state after token t              = after[after_row[t], state before it]
        whether a string ends in token t = ends[ends_row[t], state before it]

    after, ends: (rows, states); intp and bool. after_row, ends_row: intp (V + 1,), entry V for an id that is not a token, which
    leads to state 0 and ends nothing.

    Nearly every token leads to one state, whatever the state before it, so `after` starts with rows of one value, and few
    tokens need a row of their own. An example, the strings "ab" and "bc" over the tokens a, b, c, xa:

        states:  0 ""   1 "a"   2 "ab"   3 "b"   4 "bc"       a state is the longest end of the text that begins a string

        token    before:  0  1  2  3  4                       ends a string, before: 0  1  2  3  4
        a                 1  1  1  1  1                                              -  -  -  -  -
        b                 3  2  3  3  3                                              -  x  -  -  -      a|b
        c                 0  0  4  4  0                                              -  -  x  x  -      ab|c, b|c
        xa                1  1  1  1  1                                              -  -  -  -  -

    a and xa share the row of state 1. b starts from the row of state 3, which is where it leads from state 0, and differs from
    it after "a" alone; c differs from the row of state 0 after "ab" and "b".
    """

    after_row: np.ndarray
    after: np.ndarray
    ends_row: np.ndarray
    ends: np.ndarray


def stop_table(text: TokenText, strings: Sequence[str]) -> StopTable:
    """Builds the table in two passes over the bytes of the vocabulary.

    First every token is read from state 0. Then those (token, state) pairs are read again in which the state before the token
    may matter, and only until it no longer does.
    """
    following, final = StopAutomaton(strings).table()
    states = len(following)
    tokens = np.flatnonzero(text.lengths > 0)
    after_start, ends_from_start = _read_from_start(text, tokens, following, final)
    token, before = _pairs_that_may_differ(text, tokens, following, final)
    after, after_start_again, ends = _read_pairs(text, token, before, following, final)

    constant_states, after_row = np.unique(after_start, return_inverse=True)
    constant_rows = np.repeat(constant_states[:, None], states, axis=1)
    differs = after != after_start_again
    after_row, after_table = _with_changes(after_row, constant_rows, token[differs], before[differs], after[differs])
    after_row[:-1][text.lengths == 0] = len(after_table)  # an empty token leaves the state as it is
    after_table = np.concatenate([after_table, np.arange(states)[None]])

    never_and_always = np.repeat([[0], [1]], states, axis=1)
    only_here = ends & ~ends_from_start[token]
    ends_row, ends_table = _with_changes(
        ends_from_start.astype(np.intp), never_and_always, token[only_here], before[only_here], ends[only_here]
    )
    return StopTable(after_row, after_table, ends_row, ends_table > 0)


def _read_from_start(
    text: TokenText, tokens: np.ndarray, following: np.ndarray, final: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Per id, V + 1 of them: the state after reading the token from state 0, and whether a string ends in it."""
    vocab = len(text.lengths)
    state, ends = np.zeros(vocab + 1, np.intp), np.zeros(vocab + 1, bool)
    reading, place = tokens, 0
    while reading.size:
        state[reading] = following[state[reading], text.pool[text.starts[reading] + place]]
        ends[reading] |= final[state[reading]]
        place += 1
        reading = reading[text.lengths[reading] > place]
    return state, ends


def _read_pairs(
    text: TokenText, token: np.ndarray, before: np.ndarray, following: np.ndarray, final: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per pair: the state after reading token from `before` and from state 0, and whether a string ends only when from
    `before`.

    A pair is read byte by byte until both states are the same; from there on they stay the same.
    """
    state, from_start, ends = before.copy(), np.zeros_like(before), np.zeros(len(before), bool)
    reading, place = np.arange(len(before)), 0
    while reading.size:
        byte = text.pool[text.starts[token[reading]] + place]
        state[reading], from_start[reading] = following[state[reading], byte], following[from_start[reading], byte]
        reading = reading[state[reading] != from_start[reading]]
        ends[reading] |= final[state[reading]]
        place += 1
        reading = reading[text.lengths[token[reading]] > place]
    return state, from_start, ends


def _pairs_that_may_differ(
    text: TokenText, tokens: np.ndarray, following: np.ndarray, final: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(token, state before it) pairs whose first two bytes do not yet prove that the state before is forgotten.

    Ordered by state. A first byte that leads to the same state from `before` and from state 0 proves it, and so do two bytes,
    unless a string ends in the first of them.
    """
    no_second = np.intp(256)  # stands for the second byte of a token of one byte
    starts = text.starts[tokens]
    second = np.where(text.lengths[tokens] > 1, text.pool[np.minimum(starts + 1, len(text.pool) - 1)], no_second)
    first_two = (text.pool[starts] * np.intp(257) + second).astype(np.int32)
    by_first_two = np.argsort(first_two)  # tokens with the same first two bytes are neighbours
    bounds = np.concatenate([[0], np.cumsum(np.bincount(first_two, minlength=256 * 257))])
    groups, states = [by_first_two[:0]], []
    for state, byte in zip(*np.nonzero(following != following[0]), strict=True):
        after_first, after_first_from_start = following[state, byte], following[0, byte]
        if final[after_first]:
            seconds: Sequence[Any] = range(257)
        else:
            seconds = [*np.flatnonzero(following[after_first] != following[after_first_from_start]), no_second]
        groups += [by_first_two[bounds[byte * 257 + c] : bounds[byte * 257 + c + 1]] for c in seconds]
        states += [state] * len(seconds)
    return tokens[np.concatenate(groups)], np.repeat(np.array(states, np.intp), [len(group) for group in groups[1:]])


def _with_changes(
    rows: np.ndarray, table: np.ndarray, token: np.ndarray, column: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, table) after table[rows[token], column] = value for each change, without changing the rows of other tokens.

    Copy on write: each of these tokens gets a copy of its row with its changes, and tokens with the same row and the same
    changes share the copy.
    """
    changed, which, counts = np.unique(token, return_inverse=True, return_counts=True)
    order = np.argsort(which, kind="stable")
    nth = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)  # number of the change among its token's
    # Per changed token: its row, then its changes as (column, value) pairs; -1 fills up.
    keys = np.full((len(changed), 1 + 2 * counts.max(initial=0)), -1)
    keys[:, 0] = rows[changed]
    keys[which[order], 1 + 2 * nth], keys[which[order], 2 + 2 * nth] = column[order], value[order]
    _, first, copy = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    copy = copy.reshape(-1)  # NumPy 2.0 returns it with another shape
    copies = table[rows[changed[first]]]
    copies[copy[which], column] = value
    rows = rows.copy()
    rows[changed] = len(table) + copy
    return rows, np.concatenate([table, copies])
