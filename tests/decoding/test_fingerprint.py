"""The digest of a decoder's weights: the same for every load, and another one wherever a tensor is another one."""

from __future__ import annotations

import re

import numpy as np
import pytest
import safetensors.torch

import decodestep as ds
from decodestep.decoding.fingerprint import fingerprint
from support import family_models
from support.families import CASES

WIDE = {"hidden_size": 64, "intermediate_size": 96}
SOME = ["qwen3", "lfm2", "qwen3_moe", "deepseek_v32"]
assert set(SOME) <= set(CASES)


def of(path, **options):
    return ds.load(path, cache_bytes=2**22, **options).decoder.fingerprint


def assert_every_tensor_counts(path, **options):
    file = path / "model.safetensors"
    tensors, before, seen = safetensors.torch.load_file(file), of(path, **options), set()
    assert of(path, **options) == before
    for name, values in tensors.items():
        kind = re.sub(r"\d+", "0", name)
        if kind not in seen:
            seen.add(kind)
            changed = values.clone()
            changed.view(-1)[-1] += 1
            safetensors.torch.save_file(tensors | {name: changed}, file)
            assert of(path, **options) != before, name


@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}], ids=str)
@pytest.mark.parametrize("family", [pytest.param(each, marks=() if each in SOME else pytest.mark.slow) for each in CASES])
def test_every_tensor_of_every_family_counts(tmp_path, family, options):
    sizes = family_models.ALIGNED.get(family, WIDE)
    assert_every_tensor_counts(family_models.save(family_models.build_model(family, 0, **sizes), tmp_path / "model"), **options)


def test_every_byte_of_an_array_counts(rng):
    for size in (1, 63, 64, 65, 2**20, 2**20 + 64, 2**20 + 100):
        values = rng.integers(0, 256, size).astype(np.uint8)
        before, found = fingerprint(values), set()
        for place in {0, size // 2, size - 1}:
            values[place] ^= 1
            found.add(fingerprint(values))
            values[place] ^= 1
        assert before not in found and fingerprint(values) == before


def test_shapes_types_and_order_count():
    a, b = np.arange(6, dtype=np.int32), np.arange(6, dtype=np.float32)
    values = [
        a,
        a.reshape(2, 3),
        a.view(np.uint32),
        (a, b),
        (b, a),
        (a, a),
        (a, a.copy()),
        (a,),
        ((a,),),
        1,
        1.0,
        "1",
        None,
        True,
    ]
    assert len({fingerprint(each) for each in values}) == len(values)


def test_arrays_that_cannot_be_written_and_those_with_gaps_have_the_digest_of_their_values():
    a = np.arange(300, dtype=np.float32).reshape(10, 30)
    frozen = a.copy()
    frozen.setflags(write=False)
    assert fingerprint(frozen) == fingerprint(a) == fingerprint(np.repeat(a, 2, axis=1)[:, ::2])


def test_what_has_no_digest_is_refused():
    with pytest.raises(TypeError, match="fingerprint: values must be arrays, plain values, tuples and dataclasses; got object"):
        fingerprint((1, object()))
