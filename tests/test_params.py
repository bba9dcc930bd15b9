"""SamplingParams: every field is checked, and the message names the legal interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from decodestep import SamplingParams

BAD = {
    "max_new_tokens": [0, -1, 1.5, True, "3"],
    "do_sample": [None, 1],
    "temperature": [-0.1, math.nan, math.inf, "1", None],
    "top_k": [-1, 1.0, True],
    "top_p": [-0.1, 1.7, math.nan, None],
    "min_p": [-0.1, 1.1, math.nan],
    "repetition_penalty": [0, -1.0, math.inf],
    "seed": [-1, 2**64, 0.5, True, None],
    "stop_strings": [("",), (1,), ["a", ""], ""],
    "max_time": [0, -1, math.nan, math.inf],
    "ignore_eos": [0],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_refuses(name, value):
    with pytest.raises(ValueError, match=rf"^SamplingParams: {name} must be .*; got "):
        SamplingParams(**{name: value})


def test_every_field_has_refusals():
    assert set(BAD) == set(SamplingParams.__dataclass_fields__)


def test_accepts_the_ends_of_each_interval():
    SamplingParams(max_new_tokens=1, temperature=0, top_k=0, top_p=0, min_p=1, seed=2**64 - 1, max_time=1e-9)
    SamplingParams(top_p=np.float32(0.5), top_k=np.int64(3), seed=np.uint64(7))


def test_stop_strings_come_as_one_string_or_several():
    assert SamplingParams(stop_strings="ab").stop_strings == ("ab",)
    assert SamplingParams(stop_strings=["a", "b"]).stop_strings == ("a", "b")


def test_greedy():
    assert SamplingParams(do_sample=False).greedy
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams().greedy
