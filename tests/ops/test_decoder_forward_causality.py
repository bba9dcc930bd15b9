"""decoder_forward: what lies in the cache at other positions than a token's own past has no effect, whatever it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep.weights import Format, PackedWeight
from support.decoder_forward_cases import Sizes, copied, step, weights
from support.tolerances import assert_close

SIZES = [Sizes(layers=1), Sizes(heads=6, kv_heads=1, head_dim=16, hidden=96), Sizes(heads=3, kv_heads=3)]
TOKENS = ("token_ids", "sequence", "positions")


def forward(call, which, **changes):
    """The logits of some of a call's tokens, all of them wanted."""
    some = {name: call[name][which] for name in TOKENS}
    return ds.decoder_forward(**{**call, **some, "wanted": np.arange(len(which)), **changes})


def with_bad_token(w, bad):
    """Weights whose last token has a row of `bad` in the embedding: its keys and values are NaN."""
    values = w.embedding.dense(np.float32)
    values[:, -1] = bad
    return replace(w, embedding=PackedWeight.from_array(values))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("before", [1, 2, 5, 15, 16, 17, 255, 256, 257])
def test_a_later_position_that_is_not_finite_changes_no_bit(before, sizes, bad, rng):
    call = step(with_bad_token(weights(sizes, Format.F32, rng), bad), [before + 2], rng)
    call["token_ids"] = np.append(np.arange(before) % (sizes.vocab - 1), [sizes.vocab - 1, 0])
    places = np.arange(before + 2)
    expected = forward(copied(call), places[:before])
    assert np.isfinite(expected).all()
    for cuts in ([], [1], [before], [before // 2, before], list(range(1, before + 2)) if before < 20 else [before - 1]):
        for threads in (1, 2):
            with ds.use_threads(threads):
                cache = copied(call)
                logits = np.concatenate([forward(cache, part) for part in np.split(places, cuts) if len(part)])
            assert np.isnan(logits[before:]).all()  # who sees the bad one
            assert np.array_equal(logits[:before].view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_position_written_again_keeps_the_others(backend, rng):
    call = step(weights(Sizes(), Format.F32, rng), [5], rng)
    if backend == "reference":  # in float64: the order of NumPy's sums follows the shapes
        call |= {name: call[name].astype(np.float64) for name in ("sin", "cos")}
    expected = forward(call, np.arange(5), backend=backend)
    written = copied(call)
    forward(written, np.array([2]), backend=backend)
    if backend == "cpu":
        for name in ("keys", "values"):
            assert np.array_equal(written[name].view(np.uint16), call[name].view(np.uint16))
        assert np.array_equal(forward(written, np.array([4])), expected[4:])
    else:
        assert_close(forward(written, np.array([4]), backend=backend), expected[4:])


@given(st.data())
@settings(max_examples=40)
def test_positions_are_written_again_in_any_order(data):
    """A sequence of any rewrites of what stands already, some in one call: every token has its bits each time."""
    seed, length = data.draw(st.integers(0, 99)), data.draw(st.integers(1, 40))
    rng = np.random.default_rng(seed)
    call = step(weights(SIZES[seed % 3], Format.Q8_0, rng), [length], rng)
    expected = forward(call, np.arange(length))
    for _ in range(3):
        again = np.array(data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=8, unique=True)))
        assert np.array_equal(forward(call, again), expected[again])
    assert np.array_equal(forward(call, np.array([length - 1])), expected[-1:])


@pytest.mark.parametrize("left", [np.nan, np.inf, 3e38])
def test_a_page_goes_from_one_sequence_to_another_as_it_is(left, rng):
    """Also beside tokens of other sequences, and with what an infinite value or the largest ones leave."""
    call = step(weights(Sizes(), Format.BF16, rng), [37], rng)
    expected = forward(copied(call), np.arange(37))
    for name in ("keys", "values"):
        call[name][:] = left
    for first in range(0, 37, 6):
        part = np.arange(first, min(first + 6, 37))
        assert np.array_equal(forward(call, part), expected[part])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("cut", [1, 15, 16])
def test_a_prefix_that_the_call_writes_serves_the_sequences_that_share_it(cut, backend, rng):
    """The bits are those of calls one after another, whatever the order of the tokens in the call."""
    call = step(weights(Sizes(), Format.F32, rng), [20, 20], rng)
    if backend == "reference":  # in float64: the order of NumPy's sums follows the shapes
        call |= {name: call[name].astype(np.float64) for name in ("sin", "cos")}
    ids, table = call["token_ids"].copy(), call["page_table"].copy()
    ids[20 : 20 + cut], table[1, 0] = ids[:cut], table[0, 0]
    call |= {"token_ids": ids, "page_table": table}
    first, second = np.arange(cut), np.arange(20 + cut, 40)
    apart = copied(call)
    expected = [forward(apart, which, backend=backend) for which in (first, second)]
    for threads in (1, 2):
        for order in (np.arange(len(first) + len(second)), rng.permutation(len(first) + len(second))):
            with ds.use_threads(threads):
                logits = forward(copied(call), np.concatenate([first, second])[order], backend=backend)
            if backend == "cpu":
                assert np.array_equal(logits, np.concatenate(expected)[order])
            else:
                assert_close(logits, np.concatenate(expected)[order])
