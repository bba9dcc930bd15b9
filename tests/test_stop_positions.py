"""Where tokens can stand in stop strings: equal to the tables of transformers' class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers.generation.stopping_criteria as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from decodestep.stopping.byte_alphabet import BYTE_OF
from processor_cases import same_error
from stop_positions import StopStringCriteriaWithTables

OURS, THEIRS = StopStringCriteriaWithTables, hf.StopStringCriteria


def test_by_hand():
    tokens, ids = ["op", "op-shop", "p", "xst", "", "no"], [5, 0, 1, 2, 3, 4]
    positions, overlaps = OURS._stop_string_get_matching_positions(tokens, ids, ["stop"])
    assert positions == {"stop": {2: [2], 3: [1, 2, 3]}}
    assert overlaps == {"stop": {5: [2], 0: [2], 1: [1]}}
    rows, most_positions, most_overlaps = OURS._stop_string_create_embedding_vec(tokens, ids, ["stop"])
    assert (most_positions, most_overlaps, rows.dtype) == (3, 1, np.int32)
    assert rows.tolist() == [
        [-1, -1, -1, 2, 7],
        [-1, -1, -1, 1, 1],
        [2, -1, -1, -1, 3],
        [1, 2, 3, -1, 0],
        [-1, -1, -1, -1, 2],
        [-1, -1, -1, 2, 2],
        [-1, -1, -1, -1, -1],
    ]


def same_tables(tokens: list[Any], ids: list[int], stops: list[Any]) -> None:
    arguments = {"token_list": tokens, "token_indices": ids, "stop_strings": stops}
    ours, theirs = (c._stop_string_get_matching_positions(**arguments) for c in (OURS, THEIRS))
    assert ours == theirs
    if not any(theirs[1].values()):
        same_error(*(lambda c=c: c._stop_string_create_embedding_vec(**arguments) for c in (OURS, THEIRS)))
        return
    (rows, *most), (expected, *expected_most) = (c._stop_string_create_embedding_vec(**arguments) for c in (OURS, THEIRS))
    assert most == expected_most
    assert expected.dtype == torch.int32 and rows.dtype == np.int32
    assert np.array_equal(rows, expected.numpy())


# Two letters, so that much repeats; letters of one to four bytes, and half of a surrogate pair.
ALPHABETS = ["ab", "ab é끝🙂\n\ud83d"]


@pytest.mark.parametrize("alphabet", ALPHABETS, ids=["ab", "unicode"])
@pytest.mark.parametrize("in_bytes", [False, True], ids=["text", "bytes"])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_equal_transformers(alphabet, in_bytes, data):
    """Empty tokens and strings, strings given twice, and ids with gaps, out of order and given twice."""

    def texts(longest: int, most: int) -> st.SearchStrategy[list[str]]:
        return st.lists(st.text(alphabet, max_size=longest), max_size=most)

    tokens: list[Any] = data.draw(texts(6, 12))
    stops: list[Any] = data.draw(texts(8, 4))
    ids = data.draw(st.lists(st.integers(0, 20), min_size=len(tokens), max_size=len(tokens)))
    if in_bytes:
        tokens, stops = ([text.encode("utf-8", "surrogatepass") for text in texts] for texts in (tokens, stops))
        cut = data.draw(st.integers(0, 3))
        tokens = [token[cut:] for token in tokens]  # parts of characters
    same_tables(tokens, ids, stops)


@pytest.mark.parametrize("stops", [["end", "end"], ["", "end"], [""], [], ["\u2603"], ["a", "aa", "aaa"]], ids=repr)
def test_strings_twice_and_strings_of_nothing(stops):
    tokens = ["", "a", "aa", "baa", "end", "ending", "nd", "the end", "끝"]
    same_tables(tokens, list(range(len(tokens))), stops)
    same_tables([], [], stops)


@settings(max_examples=300, deadline=None)
@given(
    token=st.text("aĠé끝\x00<", max_size=5) | st.from_regex(r"<0x[0-9a-gA-G+ ]{0,3}>?\n?", fullmatch=True),
    mode=st.sampled_from(["byte_level", "byte_fallback", None]),
    decoder=st.sampled_from([BYTE_OF, None]),
)
def test_the_bytes_of_a_token(token, mode, decoder):
    assert OURS._token_to_bytes(token, mode, decoder) == THEIRS._token_to_bytes(token, mode, decoder)
