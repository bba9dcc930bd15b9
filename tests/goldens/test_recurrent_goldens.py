"""Operators with states against the CPU references that CANN publishes of its own."""

from __future__ import annotations

import numpy as np
import pytest

import decodestep as ds
from support import goldens

REPOSITORY = "ops-transformer"
RECURRENT = "attention/recurrent_gated_delta_rule/tests/pytest/recurrent_gated_delta_rule_golden.py"
CHUNKED = "attention/chunk_gated_delta_rule/tests/pytest/chunk_gated_delta_rule_golden.py"
CONVOLUTION = "mamba/causal_conv1d/tests/assets/golden.py"
# heads of keys and of values, their widths, and the rows' numbers of tokens
SIZES = [(1, 1, 16, 16, [1]), (2, 6, 24, 40, [3, 1, 8]), (4, 8, 128, 128, [2, 5]), (8, 32, 7, 18, [2, 2])]


def near(ours, theirs, bound):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= bound * np.abs(theirs).max()


def inputs_of(sizes, rng):
    """q, k, v, beta, g: normalised queries and keys, values up to 10, and decays from 0 to -1, as in the vendor's cases."""
    keys, heads, rows, columns, lengths = sizes
    tokens = sum(lengths)
    q, k = (rng.uniform(-1, 1, (tokens, keys, rows)) for _ in range(2))
    q, k = (each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (q, k))
    beta, g = (rng.uniform(*bounds, (tokens, heads)) for bounds in ((0, 1), (-1, 0)))
    v = rng.uniform(-10, 10, (tokens, heads, columns))
    return [each.astype(np.float32) for each in (q, k, v, beta, g)]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("accepted", [False, True], ids=["", "after drafts"])
@pytest.mark.parametrize("decays", ["none", "of heads", "of rows", "both"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_recurrent_gated_delta_rule(sizes, decays, accepted, rng):
    """Its state is transposed, and has a place for every token: a row begins with that of the last token that was accepted."""
    golden = goldens.load(REPOSITORY, RECURRENT)
    import torch

    lengths = sizes[-1]
    q, k, v, beta, g = inputs_of(sizes, rng)
    tokens, heads, rows = len(q), v.shape[1], q.shape[2]
    gk = rng.uniform(-1, 0, (tokens, heads, rows)).astype(np.float32)
    g = g if decays in ("of heads", "both") else None
    gk = gk if decays in ("of rows", "both") else None
    states = rng.uniform(-10, 10, (tokens + 3, heads, v.shape[2], rows)).astype(np.float32)
    places = rng.permutation(len(states))[:tokens]
    firsts = np.cumsum([0, *lengths[:-1]])
    last = np.array([rng.integers(1, length + 1) for length in lengths]) if accepted else np.ones(len(lengths), int)
    scale = rows**-0.5
    given = [None if a is None else torch.tensor(a) for a in (q, k, v, states, beta, g, gk)]
    theirs, kept = golden.cpu_recurrent_gated_delta_rule(
        *given[:5],
        scale,
        torch.tensor(lengths),
        torch.tensor(places),
        num_accepted_tokens=torch.tensor(last) if accepted else None,
        g=given[5],
        gk=given[6],
    )
    decay = np.zeros((tokens, heads), np.float32) if g is None and gk is None else g
    decay = decay if gk is None else gk + (0 if decay is None else decay[..., None])
    state, ours = states.swapaxes(2, 3).copy(), np.empty_like(v)
    for first, length, start in zip(firsts, lengths, last, strict=True):
        read = places[first + start - 1]
        for t in range(first, first + length):
            one = slice(t, t + 1)
            ours[one] = ds.gated_delta_rule(
                q[one], k[one], v[one], state, decay[one], beta[one], scale=scale, slots=[read], into=[places[t]]
            )
            read = places[t]
    near(ours, theirs, 1e-6)
    near(state.swapaxes(2, 3), kept, 1e-6)


@pytest.mark.parametrize("sizes", [*SIZES, (2, 4, 32, 48, [37, 64, 1, 130])], ids=str)
def test_chunk_gated_delta_rule(sizes, rng):
    golden = goldens.load(REPOSITORY, CHUNKED)
    import torch

    lengths = sizes[-1]
    q, k, v, beta, g = inputs_of(sizes, rng)
    state = rng.uniform(0, 1, (len(lengths), v.shape[1], q.shape[2], v.shape[2])).astype(np.float32)
    given = [torch.tensor(a)[None] for a in (q, k, v, g, beta)]
    theirs, kept = golden.chunk_gated_delta_rule_npu(
        *given, initial_state=torch.tensor(state), cu_seqlens=torch.tensor(np.cumsum([0, *lengths]))
    )
    ours = ds.gated_delta_rule(q, k, v, state, g, beta, lengths, scale=q.shape[2] ** -0.5)
    near(ours, theirs[0], 2e-6)
    near(state, kept, 2e-6)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize(("lengths", "drafts"), [([1], 0), ([7, 1, 2, 30], 0), ([4, 4], 0), ([4, 4], 3), ([5, 7], 2)], ids=str)
def test_causal_conv1d(lengths, activation, drafts, rng):
    """With drafts its rows of states have more inputs, of which a row reads those before the last token that was accepted."""
    golden = goldens.load(REPOSITORY, CONVOLUTION)
    taps, channels, rows = 4, 37, len(lengths)
    x = rng.normal(size=(sum(lengths), channels)).astype(np.float32)
    weight, bias = rng.normal(size=(taps, channels)).astype(np.float32), rng.normal(size=channels).astype(np.float32)
    states = rng.normal(size=(rows + 2, taps - 1 + drafts, channels)).astype(np.float32)
    places = 1 + rng.permutation(rows)
    accepted = rng.integers(1, drafts + 2, rows)
    kept, theirs = golden.CausalConv1d(
        x,
        weight,
        states,
        bias,
        np.cumsum([0, *lengths]).astype(np.int32),
        places.astype(np.int32),
        np.ones(rows, np.int32),
        accepted.astype(np.int32) if drafts else None,
        activation_mode=activation or "none",
    )
    begins = (accepted if drafts else np.ones(rows, int)) - 1
    state = np.stack([states[place, first : first + taps - 1] for place, first in zip(places, begins, strict=True)])
    ours = ds.causal_conv1d(x, weight.T, state, lengths, bias=bias, activation=activation)
    near(ours, theirs, 1e-6)
    np.testing.assert_array_equal(state, kept[places][:, -(taps - 1) :])
