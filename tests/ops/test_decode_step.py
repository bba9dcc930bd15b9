"""decode_step: hand examples of every step, the distribution of draws, independence of rows, log-probabilities."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import decodestep as ds
from decodestep._base import exact_math
from decodestep.ops.decode_step import steps as s
from support import decode_step_cases as cases


def ids(*values):
    return np.array(values, np.int64)


def processed(logits, *steps, position=0):
    return ds.decode_step(np.asarray(logits, np.float32)[None], [steps], position=position, need_processed=True).processed[0]


def kept(logits, *steps, position=0):
    return np.flatnonzero(processed(logits, *steps, position=position) > -np.inf).tolist()


LN = np.log(np.array([0.125, 0.5, 0.125, 0.25], np.float32))


@pytest.mark.parametrize(
    ("steps", "want"),
    [
        ([], [0, 1, 2, 3]),
        ([s.TopK(2)], [1, 3]),
        ([s.TopK(3)], [0, 1, 2, 3]),  # both ties of the third value
        ([s.TopK(9)], [0, 1, 2, 3]),
        ([s.TopK(1, keep=2)], [1, 3]),
        ([s.TopP(0.0)], [1]),
        ([s.TopP(0.4)], [1]),
        ([s.TopP(0.6)], [1, 3]),
        ([s.TopP(0.8)], [0, 1, 3]),  # of the tied tokens the lower id
        ([s.TopP(0.1, keep=2)], [1, 3]),
        ([s.TopP(1.0)], [0, 1, 2, 3]),
        ([s.MinP(0.4)], [1, 3]),
        ([s.MinP(1.0)], [1]),
        ([s.MinP(1.0, keep=3)], [0, 1, 3]),
        ([s.TopK(2), s.TopP(0.6)], [1]),  # 2/3 of what top-k left
        ([s.Penalise(ids(1), 4.0)], [0, 1, 2, 3]),
        ([s.Penalise(ids(1), 4.0), s.TopK(1)], [3]),
        ([s.Temperature(0.25), s.MinP(0.1)], [1]),
        ([s.Epsilon(0.2)], [1, 3]),
        ([s.Epsilon(0.9)], [1]),
        ([s.Epsilon(0.9, keep=3)], [0, 1, 2, 3]),  # ties of the third are protected together
        ([s.Eta(0.9)], [1]),  # entropy 1.21 nats: sqrt(0.9) * e^-1.21 = 0.28
        ([s.TopH(0.3)], [1]),
        ([s.Add(np.array([1]), np.array([9e3])), s.TopH(0.9)], [1]),  # the others' probability is 0
        ([s.TopH(1.0, top=2)], [1, 3]),
        ([s.TopNSigma(1.0)], [1]),
        ([s.TopNSigma(9.0)], [0, 1, 2, 3]),
        ([s.Ban(ids(1, 3))], [0, 2]),
        ([s.AllowBits(np.array([0b10010], np.int32))], [1]),
        ([s.AllowBits(np.array([-2], np.int32)), s.Ban(ids(1)), s.AllowBits(np.array([0b1110], np.int32))], [2, 3]),
        ([s.AllowBits(np.array([0], np.int32)), s.Force(ids(2))], [2]),
        ([s.Allow(ids(3, 0))], [0, 3]),
        ([s.Ban(ids(2)), s.Force(ids(2))], [2]),
        ([s.Xtc(0.2, 1.0, 7)], [0, 2, 3]),  # of 0.5 and 0.25 the less likely stays
        ([s.Xtc(0.3, 1.0, 7)], [0, 1, 2, 3]),  # one alone above the threshold stays
        ([s.Xtc(0.2, 0.0, 7)], [0, 1, 2, 3]),
        ([s.Xtc(0.1, 1.0, 7)], [2]),  # of all four
        ([s.Xtc(0.1, 1.0, 7, (3, 3, 99))], [2, 3]),  # the special one stays too
        ([s.Xtc(0.2, 1.0, 7, (3,))], [0, 2, 3]),  # which counts as likely, and here is the least likely itself
        ([s.Xtc(0.1, 1.0, 7, (0, 1, 2, 3))], [0, 1, 2, 3]),
        ([s.Ban(ids(0, 1, 2, 3))], []),
    ],
)
def test_hand_examples(steps, want):
    assert kept(LN, *steps) == want


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_what_is_exactly_at_a_bound_is_within(backend):
    def kept(logits, step):
        logits = np.array([logits], np.float32)
        scores = ds.decode_step(logits, [[step]], need_processed=True, backend=backend).processed
        return np.flatnonzero(scores > -np.inf).tolist()

    low = exact_math.exp(-1.0)
    least = float(low / ((1 + low) + (1 + low)))  # the probability of the last two, in the order in which they are summed
    assert kept([0, 0, -1, -1], s.Epsilon(least)) == [0, 1, 2, 3]
    assert kept([0, 0, -1, -1], s.Xtc(least, 1.0, 7)) == [3]
    most = float(exact_math.exp(-exact_math.log(1 + low)))
    assert kept([0, -1], s.Typical(most)) == [0]


def test_patches_change_their_tokens_alone():
    logits = [1.0, -2.0, 4.0, 0.0]
    np.testing.assert_array_equal(processed(logits, s.Penalise(ids(0, 1), 2.0)), [0.5, -4.0, 4.0, 0.0])
    np.testing.assert_array_equal(processed(logits, s.Add(ids(3, 0), np.array([1.5, -1.0]))), [0.0, -2.0, 4.0, 1.5])
    np.testing.assert_array_equal(processed(logits, s.Lift(ids(1, 2), 0.5)), [1.0, -1.0, 6.0, 0.0])
    np.testing.assert_array_equal(processed(logits, s.Add(ids(1), np.array([-np.inf]))), [1.0, -np.inf, 4.0, 0.0])
    np.testing.assert_array_equal(processed(logits, s.Force(ids(1))), [-np.inf, 0.0, -np.inf, -np.inf])


def test_a_token_that_is_named_twice_is_changed_twice():
    logits = [1.0, -2.0, 4.0, 0.0]
    np.testing.assert_array_equal(processed(logits, s.Penalise(ids(0, 1, 0), 2.0)), [0.25, -4.0, 4.0, 0.0])
    np.testing.assert_array_equal(processed(logits, s.Add(ids(3, 0, 3), np.array([1.5, -1.0, 1.0]))), [0.0, -2.0, 4.0, 2.5])
    np.testing.assert_array_equal(processed(logits, s.Lift(ids(1, 1), 0.5)), [1.0, -0.5, 4.0, 0.0])
    assert kept(LN, s.Ban(ids(1, 1))) == [0, 2, 3]


def test_many_patched_tokens_are_found_again():
    """The table in which they are found is full when a patch of many new ones comes."""
    few, many = np.arange(20), np.arange(40, 440)
    steps = [s.Penalise(few, 1.3), s.Penalise(few, 1.2), s.Add(many, np.ones(400)), s.Penalise(many[:30], 1.1)]
    logits = np.random.default_rng(0).standard_normal((1, 600), np.float32)
    want = ds.decode_step(logits, [steps], need_processed=True, backend="reference")
    assert np.array_equal(ds.decode_step(logits, [steps], need_processed=True).processed, want.processed)


def test_a_step_does_not_bring_back_what_a_step_before_dropped():
    assert kept(LN, s.TopK(2), s.Add(ids(0), np.array([100.0]))) == [1, 3]
    assert kept(LN, s.Ban(ids(1)), s.Penalise(ids(1), 0.01)) == [0, 2, 3]


def test_normalise_gives_log_probabilities():
    np.testing.assert_allclose(processed(LN + 3, s.Normalise()), LN, rtol=1e-6)
    far_apart = np.array([3.4e38, -3.4e38, 0.0], np.float32)  # a log-probability of -6.8e38 is no float32
    np.testing.assert_array_equal(processed(far_apart, s.Normalise()), np.array([0.0, -np.inf, -3.4e38], np.float32))


def test_greedy_takes_the_first_maximum():
    logits = np.array([[1, 3, 3, 2], [np.nan, -np.inf, 0, -1]], np.float32)
    assert ds.decode_step(logits, [[], []], greedy=True).tokens.tolist() == [1, 2]
    assert ds.decode_step(logits, [[s.Ban(ids(1))], []], greedy=[True, True]).tokens.tolist() == [2, 2]


def test_a_row_without_a_candidate_has_no_token():
    logits = np.array([[-np.inf] * 3, [np.nan] * 3, [1, 2, 3]], np.float32)
    steps = [
        [],
        [s.TopP(0.5), s.TopK(1), s.MinP(0.1), s.Typical(0.5), s.Eta(0.1), s.TopH(0.5), s.Temperature(2.0)],
        [s.Ban(ids(0, 1, 2))],
    ]
    for greedy in (False, True):
        result = ds.decode_step(logits, steps, greedy=greedy, top_logprobs=[1, 1, 1])
        assert result.tokens.tolist() == [-1, -1, -1]
        assert result.logprobs == (None, None, None)


def test_infinite_logits_share_the_draw():
    logits = np.array([[0, np.inf, 5, np.inf]], np.float32)
    for steps in ([], [s.Temperature(0.5)], [s.TopP(0.9)], [s.TopK(2), s.MinP(0.5)], [s.Typical(0.9)]):
        drawn = {int(ds.decode_step(logits, [steps], seed=seed).tokens[0]) for seed in range(40)}
        assert drawn == {1, 3}, steps


@pytest.mark.parametrize("temperature", [1e-30, 1e-300, 5e-324])
def test_a_vanishing_temperature_takes_the_maximum(temperature):
    logits = np.array([[-3, 2, 1.999, 0], [0, 0, -1, -2]], np.float32)
    steps = [[s.Temperature(temperature), s.TopP(0.9)], [s.Temperature(temperature)]]
    assert ds.decode_step(logits, steps).tokens[0] == 1
    drawn = {int(ds.decode_step(logits, steps, seed=seed).tokens[1]) for seed in range(40)}
    assert drawn == {0, 1}  # exact ties stay a fair draw


@pytest.mark.parametrize("vocab", [5, 1000])
@pytest.mark.parametrize("temperature", [0.5, 1e-4])
def test_scores_that_overflow_below_a_forbidden_maximum_are_drawn_from(temperature, vocab):
    """A row that repair has filled with the lowest finite score, but for one token, which is then forbidden."""
    logits = np.full((1, vocab), np.finfo(np.float32).min)
    logits[0, 3] = 1.0
    steps = [[s.Ban(ids(3)), s.Temperature(temperature)]]
    expected = [int(ds.decode_step(logits, steps, seed=seed, backend="reference").tokens[0]) for seed in range(20)]
    assert [int(ds.decode_step(logits, steps, seed=seed).tokens[0]) for seed in range(20)] == expected
    assert -1 not in expected and 3 not in expected and len(set(expected)) > 1


CHAINS = [
    [],
    [s.Temperature(0.6)],
    [s.TopK(5)],
    [s.TopP(0.8)],
    [s.MinP(0.1)],
    [s.Typical(0.7)],
    [s.Eta(0.05)],
    [s.TopH(0.6)],
    [s.TopNSigma(1.0)],
    [s.Penalise(ids(0, 3, 5), 1.4), s.Temperature(1.3)],
    [s.TopK(8), s.TopP(0.9), s.MinP(0.02)],
    [s.Ban(ids(1, 2)), s.Add(ids(7), np.array([1.0])), s.TopP(0.95)],
]


@pytest.fixture(scope="module")
def noise():
    """Of a row of 12 tokens at a million positions: what is drawn from its scores, without the cost of filtering each time."""
    return ds.random.gumbel(11, np.arange(1_000_000)[:, None], np.arange(12)[None, :])


@pytest.mark.slow
@pytest.mark.parametrize("steps", CHAINS, ids=str)
def test_draws_follow_the_processed_distribution(steps, noise):
    logits = (np.random.default_rng(4).standard_normal(12)).astype(np.float32)
    scores = processed(logits, *steps)
    alive = np.flatnonzero(scores > -np.inf)
    weight = np.exp(scores[alive].astype(np.float64))
    tokens = alive[np.argmax(scores[alive].astype(np.float64) + noise[:, alive], axis=1)]
    assert chisquare(np.bincount(tokens, minlength=12)[alive], len(noise) * weight / weight.sum()).pvalue > 1e-4
    some = ds.decode_step(np.tile(logits, (50, 1)), [steps] * 50, seed=11, position=np.arange(50)).tokens
    np.testing.assert_array_equal(some, tokens[:50])


def test_the_coin_of_xtc_is_fair_and_its_own():
    steps = [[s.Xtc(0.2, 0.3, seed)] for seed in range(4000)]
    result = ds.decode_step(np.tile(LN, (4000, 1)), steps, need_processed=True, position=3)
    cut = np.isneginf(result.processed[:, 1])
    assert abs(cut.mean() - 0.3) < 0.03
    coins = ds.random.uniform(np.arange(4000), 3, ds.random.XTC_COIN)
    np.testing.assert_array_equal(cut, coins < 0.3)


@settings(max_examples=30)
@given(st.data())
def test_a_row_does_not_depend_on_its_mates(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    batch, vocab = data.draw(st.integers(1, 6)), 40
    logits = (rng.standard_normal((batch, vocab)) * 3).astype(np.float32)
    steps = [CHAINS[i] for i in rng.integers(0, len(CHAINS), batch)]
    greedy, seed, position = rng.integers(0, 2, batch) == 1, rng.integers(0, 2**63, batch), rng.integers(0, 2**32, batch)
    together = ds.decode_step(logits, steps, greedy=greedy, seed=seed, position=position).tokens
    for b in range(batch):
        row = slice(b, b + 1)
        alone = ds.decode_step(logits[row], steps[row], greedy=greedy[row], seed=seed[row], position=position[row])
        assert alone.tokens[0] == together[b]


def test_log_probabilities_before_and_after_the_steps():
    result = ds.decode_step(LN[None], [[s.TopK(2)]], greedy=True, top_logprobs=[3]).logprobs[0]
    np.testing.assert_allclose([result.raw, result.processed], [math.log(0.5), math.log(2 / 3)], rtol=1e-6)
    assert [token for token, _ in result.top_raw] == [1, 3, 0]
    assert [token for token, _ in result.top_processed] == [1, 3]
    none, empty = ds.decode_step(np.tile(LN, (2, 1)), [[], []], top_logprobs=[None, 0]).logprobs
    assert none is None
    assert empty.top_raw == ()
    for dropped in (-np.inf, np.nan):
        forced = ds.decode_step(np.array([[0, dropped]], np.float32), [[s.Force(ids(1))]], top_logprobs=[1]).logprobs[0]
        assert (forced.raw, forced.processed) == (-math.inf, 0.0)
    lowered = np.array([[0, -3e38, -1]], np.float32)  # to -inf, where the second token is none any more
    left = ds.decode_step(lowered, [[s.Temperature(0.5)]], top_logprobs=[3]).logprobs[0]
    assert [token for token, _ in left.top_processed] == [0, 2] and len(left.top_raw) == 3


def test_half_precision_and_torch():
    logits = np.random.default_rng(1).standard_normal((3, 30)).astype(np.float32)
    steps = [[s.TopK(9)]] * 3
    want = ds.decode_step(logits.astype(np.float16).astype(np.float32), steps, seed=4).tokens
    tokens = ds.decode_step(torch.tensor(logits).half(), steps, seed=torch.tensor(4)).tokens
    assert isinstance(tokens, torch.Tensor)
    assert tokens.tolist() == want.tolist()
    rounded = torch.tensor(logits).bfloat16()
    assert (
        ds.decode_step(rounded, steps, seed=4).tokens.tolist() == ds.decode_step(rounded.float(), steps, seed=4).tokens.tolist()
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_rows_have_empty_results(dtype):
    result = ds.decode_step(
        np.zeros((0, 3), dtype), [], greedy=[], seed=[], position=[], top_logprobs=[], need_processed=True, backend="reference"
    )
    assert result.tokens.shape == (0,) and result.processed.shape == (0, 3) and result.logprobs == ()


def test_logits_are_not_written_to():
    logits = np.random.default_rng(1).standard_normal((1, 30)).astype(np.float32)
    before = logits.copy()
    ds.decode_step(logits, [CHAINS[-1]], need_processed=True)
    np.testing.assert_array_equal(logits, before)


BAD = [
    ("logits", {"logits": np.zeros(3, np.float32)}),
    ("logits", {"logits": np.zeros((1, 0), np.float32)}),
    ("logits", {"logits": np.zeros((1, 3), np.int64)}),
    ("steps", {"steps": [[]]}),
    ("steps", {"steps": [["top_k"], []]}),
    ("steps", {"steps": [[s.Ban(ids(3))], []]}),
    ("steps", {"steps": [[s.Ban(ids(-1))], []]}),
    ("steps", {"steps": [[s.Ban([1])], []]}),
    ("AllowBits.bits", {"steps": [[s.AllowBits(np.array([1, 1], np.int32))], []]}),
    ("AllowBits.bits", {"steps": [[s.AllowBits(np.array([], np.int32))], []]}),
    ("AllowBits.bits", {"steps": [[s.AllowBits(np.array([1], np.int64))], []]}),
    ("AllowBits.bits", {"steps": [[s.AllowBits([1])], []]}),
    ("Add.values", {"steps": [[s.Add(ids(1, 2), np.array([1.0]))], []]}),
    ("Penalise.factor", {"steps": [[s.Penalise(ids(1), 0.0)], []]}),
    ("Temperature.temperature", {"steps": [[s.Temperature(0.0)], []]}),
    ("TopK.k", {"steps": [[s.TopK(0)], []]}),
    ("TopK.k", {"steps": [[s.TopK("3")], []]}),
    ("TopP.p", {"steps": [[s.TopP(1.7)], []]}),
    ("MinP.p", {"steps": [[s.MinP(math.nan)], []]}),
    ("Typical.mass", {"steps": [[s.Typical(1.0)], []]}),
    ("TopNSigma.n", {"steps": [[s.TopNSigma(-1.0)], []]}),
    ("Xtc.seed", {"steps": [[s.Xtc(0.1, 0.1, -1)], []]}),
    ("Xtc.special_tokens", {"steps": [[s.Xtc(0.1, 0.1, 1, [2])], []]}),
    ("Xtc.special_tokens", {"steps": [[s.Xtc(0.1, 0.1, 1, (-1,))], []]}),
    ("Xtc.special_tokens", {"steps": [[s.Xtc(0.1, 0.1, 1, (2**31,))], []]}),
    ("seed", {"seed": -1}),
    ("seed", {"seed": 2**64}),
    ("seed", {"seed": True}),
    ("seed", {"seed": [1, 2, 3]}),
    ("position", {"position": 2**32}),
    ("greedy", {"greedy": 1}),
    ("greedy", {"greedy": [True, False, True]}),
    ("top_logprobs", {"top_logprobs": [-1, 0]}),
    ("top_logprobs", {"top_logprobs": [1]}),
    ("top_logprobs", {"top_logprobs": 1.5}),
    ("TopK.k", {"steps": [[s.TopK(2**63)], []]}),
    ("TopP.keep", {"steps": [[s.TopP(0.5, 2**64)], []]}),
    ("steps", {"steps": None}),
    ("steps", {"steps": [None, None]}),
    ("greedy", {"greedy": None}),
    ("greedy", {"greedy": [[True], [True, False]]}),
    ("seed", {"seed": None}),
    ("position", {"position": None}),
    ("need_processed", {"need_processed": 1}),
    ("backend", {"backend": "triton"}),
]


@pytest.mark.parametrize(("name", "options"), BAD)
def test_refuses(name, options):
    options = {"logits": np.zeros((2, 3), np.float32), "steps": [[], []], **options}
    with pytest.raises(ValueError, match=rf"^decode_step: {name} must be .*; got "):
        ds.decode_step(options.pop("logits"), options.pop("steps"), **options)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_scalars_are_for_all_rows(backend):
    logits = np.random.default_rng(0).normal(size=(3, 9)).astype(np.float32)
    whole = ds.decode_step(logits, [[]] * 3, greedy=True, seed=2**64 - 1, position=5, top_logprobs=2, backend=backend)
    by_row = ds.decode_step(
        logits, [[]] * 3, greedy=[True] * 3, seed=[2**64 - 1] * 3, position=[5] * 3, top_logprobs=[2] * 3, backend=backend
    )
    assert whole.tokens.tolist() == by_row.tokens.tolist() and whole.logprobs == by_row.logprobs


@pytest.mark.parametrize("seed", range(8))
def test_the_core_is_the_reference_bit_for_bit(seed):
    for call in range(250):
        logits, steps, options = cases.call(np.random.default_rng([seed, call]))
        with np.errstate(all="ignore"):
            want = ds.decode_step(logits, steps, backend="reference", **options)
        for threads in (1, 2):
            with ds.use_threads(threads):
                got = ds.decode_step(logits, steps, backend="cpu", **options)
            np.testing.assert_array_equal(got.tokens, want.tokens, err_msg=f"{seed} {call}")
            assert got.logprobs == want.logprobs, (seed, call)
            if want.processed is not None:
                np.testing.assert_array_equal(got.processed, want.processed, err_msg=f"{seed} {call}")


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [32000, 128256])
def test_the_core_is_the_reference_on_wide_rows(vocab):
    rng = np.random.default_rng(vocab)
    history = rng.choice(vocab, 1000, replace=False).astype(np.int64)
    patches, scale = [s.Penalise(history, 1.2), s.Add(history[::3].copy(), np.full(334, -0.5))], s.Temperature(0.8)
    logits = rng.normal(0, 2.5, (6, vocab)).astype(np.float32)
    logits[1] = np.round(logits[1])  # ties
    logits[2] *= 20  # a narrow head
    logits[3] = 0.0
    chain, sums = [s.TopK(50), s.TopP(0.9), s.MinP(0.05)], [s.Typical(0.9, 3), s.Eta(3e-4)]
    for filters in ([], chain, [s.TopP(0.9)], [s.TopP(0.3), s.MinP(0.02)], [s.MinP(0.05)], sums):
        for head in ([], [scale], [*patches, scale]):
            for position in range(2 if vocab < 100_000 else 1):
                steps = [[*head, *filters]] * len(logits)
                want = ds.decode_step(logits, steps, seed=5, position=position, backend="reference").tokens
                np.testing.assert_array_equal(ds.decode_step(logits, steps, seed=5, position=position).tokens, want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_list_from_a_guessed_threshold_misses_no_part_of_the_row(dtype):
    # 257 strips of 64 tokens, so a strip is left over beside four parts, and three tokens beside the strips.
    vocab = 16451
    edges = [4096 * part + at for part in range(4) for at in (0, 63, 4095)] + [16384, 16447, 16448, 16450]
    rng = np.random.default_rng(4)
    logits = rng.normal(0, 2.5, (3, vocab)).astype(np.float32)
    logits[0, edges] = 20 + rng.random(len(edges))
    logits[1, edges] = np.nan
    steps = [[s.TopK(40)]] * 3
    rows = logits.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    want = ds.decode_step(rows, steps, seed=1, need_processed=True, backend="reference")
    got = ds.decode_step(rows, steps, seed=1, need_processed=True, backend="cpu")
    np.testing.assert_array_equal(got.processed, want.processed)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    assert set(edges) <= set(np.flatnonzero(got.processed[0] > -np.inf))


def test_patched_tokens_are_listed_down_to_the_threshold_of_the_others():
    # Far below zero a threshold may be rounded up by as much as tells many of these tokens apart.
    for seed in range(30):
        rng = np.random.default_rng(seed)
        logits, patched = rng.normal(-100, 2.5, (16, 3000)).astype(np.float32), rng.permutation(3000)[:1500].astype(np.int64)
        added = s.Add(patched, rng.normal(0, 1, 1500).astype(np.float32))
        steps = [[added, s.Temperature(0.7), s.TopP(0.4)]] * 16
        want = ds.decode_step(logits, steps, seed=seed, backend="reference").tokens
        np.testing.assert_array_equal(ds.decode_step(logits, steps, seed=seed, backend="cpu").tokens, want)


def test_beside_infinite_scores_normalising_leaves_no_others():
    row, steps = np.array([[np.inf, 1.0, 2.0]], np.float32), [[s.Normalise(), s.Ban(ids(0)), s.TopNSigma(1.0)]]
    for backend in ("cpu", "reference"):
        assert ds.decode_step(row, steps, backend=backend).tokens[0] == -1


def test_a_contiguous_row_is_not_copied_and_others_are_read_right():
    logits = np.arange(12, dtype=np.float32).reshape(2, 6)
    for view in (logits, logits[:, ::2], logits[::-1], logits[:, ::-1], np.asfortranarray(logits)):
        want = view.argmax(1)
        np.testing.assert_array_equal(ds.decode_step(view, [[], []], greedy=True, backend="cpu").tokens, want)
