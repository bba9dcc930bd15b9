"""A host that rounds otherwise, or flushes subnormals, changes no bit of a model."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep._base.float_environment import default_floats

UP = {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine())  # FE_UPWARD of the C library
pytestmark = pytest.mark.skipif(UP is None or ctypes.util.find_library("m") is None, reason="no rounding mode to be set")
NEAREST = np.float32(0.7)  # below it
SMALLEST = np.float32(2.0**-126)  # that is no subnormal


@contextmanager
def changed_floats() -> Iterator[None]:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    assert library.fesetround(UP) == 0 and torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        library.fesetround(0)


def seven_tenths() -> np.float32:
    return np.float32(7) / np.float32(10)


def test_a_block_has_the_default_and_gives_back_what_it_found():
    with changed_floats():
        rounded_up = seven_tenths()
        with default_floats():
            with default_floats():
                assert seven_tenths() == NEAREST
            assert seven_tenths() == NEAREST and SMALLEST / np.float32(2) > 0
        assert seven_tenths() == rounded_up > NEAREST and SMALLEST / np.float32(2) == 0
        with contextlib.suppress(KeyError), default_floats():
            raise KeyError
        assert seven_tenths() == rounded_up
    assert seven_tenths() == NEAREST


def results(path, **options):
    """What a model gives that is loaded anew, of a prompt, sampled and by beams."""
    model = ds.load(path, **options)
    penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.3, "typical_p": 0.9}
    sampled = [ds.SamplingParams(seed=i, temperature=0.7, logprobs=3, max_new_tokens=8, **penalties) for i in range(3)]
    search = ds.SamplingParams(num_beams=3, do_sample=False, logprobs=3, max_new_tokens=6)
    found = ds.generate(model, ["abc"] * 4, [*sampled, search])
    return model.logits(range(40)).tobytes(), [(one.token_ids, one.logprobs) for one in found]


@pytest.mark.parametrize(("kind", "options"), [("Q4_0", {}), ("F16", {}), ("F16", {"dtype": "float32"})])
def test_a_model_of_a_host_with_changed_floats(tiny_file, kind, options):
    path = tiny_file(kind=kind)
    expected = results(path, **options)
    with changed_floats():
        found = results(path, **options)
    assert found == expected
