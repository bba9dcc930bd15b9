"""Where a token can stand in a stop string, counted from its end: the tables that transformers' class is built on.

`StopStringCriteria` reads tokens through an automaton and never builds them. They are here under transformers' names, so that
its own tests of these functions can be run on `StopStringCriteriaWithTables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import AnyStr

import numpy as np

from decodestep._base.checks import require
from decodestep.stopping import StopStringCriteria
from decodestep.stopping.token_text import matching_mode, token_bytes

# stop string -> token id -> numbers in ascending order, for the tokens that have any.
Places = dict[AnyStr, dict[int, list[int]]]


def matching_positions(
    token_list: Sequence[AnyStr], token_indices: Sequence[int], stop_strings: Sequence[AnyStr]
) -> tuple[Places[AnyStr], Places[AnyStr]]:
    """Where each token can stand inside each stop string, and how much of the string's end it can hold.

        positions[stop][id]: for each place before the end, how many characters of stop follow the token
        overlaps[stop][id]:  for each place at or over the end, how many characters of stop the token holds

    token_list, stop_strings: all text, or all bytes.
    token_indices: the id of each token; of tokens with one id, the last that has a place counts.

    A token may begin before the string does. The empty token has every place before the end.

    Source: transformers 5.23's StopStringCriteria._stop_string_get_matching_positions.
    """
    positions: Places[AnyStr] = {stop: {} for stop in stop_strings}
    overlaps: Places[AnyStr] = {stop: {} for stop in stop_strings}
    for stop in positions:
        for token, index in zip(token_list, token_indices, strict=False):  # the shorter decides, as for transformers
            inside = [after for after in range(1, len(stop)) if _agree(token, stop[:-after])]
            # n: the token's first n characters end the string, or reach back past its beginning. The empty string has no end.
            heads = range(1, len(token) + bool(stop))
            held = [min(n, len(stop)) for n in heads if _agree(token[:n], stop)]
            if inside:
                positions[stop][index] = inside
            if held:
                overlaps[stop][index] = held
    return positions, overlaps


def embedding_vectors(
    token_list: Sequence[AnyStr], token_indices: Sequence[int], stop_strings: Sequence[AnyStr]
) -> tuple[np.ndarray, int, int]:
    """`matching_positions` as one row per id: (rows, the most positions P, the most overlaps E).

        rows[id] = P positions for each stop string, E overlaps for each stop string, the token's length;  padded with -1

    The arguments are those of `matching_positions`, with ids from 0. rows is int32 [max id + 2, S * (P + E) + 1], its last row,
    of -1 alone, for ids that are no token. P is 1 where no token has a position. It is a NumPy array, where transformers
    returns a tensor.
    Raises ValueError where no token can end any stop string.

    Source: transformers 5.23's StopStringCriteria._stop_string_create_embedding_vec.
    """
    positions, overlaps = matching_positions(token_list, token_indices, stop_strings)
    ended = any(overlaps.values())
    require(ended, "StopStringCriteria", "stop_strings", "one that some token of the tokenizer can end", stop_strings)
    most_positions, most_overlaps = _most(positions), _most(overlaps)
    strings = len(stop_strings)
    rows = np.full((max(token_indices) + 2, strings * (most_positions + most_overlaps) + 1), -1, np.int32)
    for table, begin, width in [(positions, 0, most_positions), (overlaps, strings * most_positions, most_overlaps)]:
        for i, stop in enumerate(stop_strings):
            first = begin + i * width
            for index, numbers in table[stop].items():
                rows[index, first : first + len(numbers)] = numbers
    for token, index in zip(token_list, token_indices, strict=False):
        rows[index, -1] = len(token)
    return rows, most_positions, most_overlaps


def _agree(one: AnyStr, other: AnyStr) -> bool:
    """Whether one of two texts is the end of the other."""
    return one.endswith(other) or other.endswith(one)


def _most(places: Places[AnyStr]) -> int:
    return max((len(numbers) for of_tokens in places.values() for numbers in of_tokens.values()), default=1)


class StopStringCriteriaWithTables(StopStringCriteria):
    _get_stop_string_matching_mode = staticmethod(matching_mode)
    _token_to_bytes = staticmethod(token_bytes)
    _stop_string_get_matching_positions = staticmethod(matching_positions)
    _stop_string_create_embedding_vec = staticmethod(embedding_vectors)
