"""gated_delta_rule by hand, against float64, transformers' recurrent and chunked forms, and its own limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import decodestep as ds
from support.recurrent_calls import (
    OPERATORS,
    assert_nan_stays,
    assert_nan_stays_in_its_column,
    assert_refused,
    assert_results,
    normal,
    widened,
    with_nan,
)

BACKENDS = ["cpu", "reference"]
RULES = ["linear", "gated", "delta", "gated_delta"]
V, TURNED = np.zeros((9, 4, 24), np.float32), np.zeros((1, 4, 24, 16), np.float32)
attend = OPERATORS["gated_delta_rule"]
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def call(rng, tokens=9, heads=4, key_heads=2, key_width=16, width=24, rule="gated_delta", decay=1.0, by_row=False):
    """Arguments of one row; `decay` is the mean of -decay."""
    made = {"query": normal(rng, tokens, key_heads, key_width), "key": normal(rng, tokens, key_heads, key_width),
            "value": normal(rng, tokens, heads, width), "state": normal(rng, 1, heads, key_width, width),
            "scale": key_width**-0.5, "update_rule": rule, "l2_norm": True}  # fmt: skip
    if "gated" in rule:
        made["decay"] = (-decay * rng.exponential(size=(tokens, heads, key_width)[: 2 + by_row])).astype(np.float32)
    if "delta" in rule:
        made["beta"] = rng.uniform(size=(tokens, heads)).astype(np.float32)
    return made


def truth(made):
    """The results and the state in float64: the decayed, corrected state is a product of matrices and the old one."""
    made = widened(made)
    query, key, value, state = (made[name] for name in ("query", "key", "value", "state"))
    tokens, heads, _ = value.shape
    out, left = np.empty(value.shape), np.empty(state.shape[1:])
    if made["l2_norm"]:
        query, key = (a / np.sqrt(np.square(a).sum(-1, keepdims=True) + 1e-6) for a in (query, key))
    for h in range(heads):
        g = h % key.shape[1] if made.get("head_map") == "tiled" else h // (heads // key.shape[1])
        s = state[0, h]
        for t in range(tokens):
            k = key[t, g]
            decay = made["decay"][t, h] if "decay" in made else 0.0
            beta = made["beta"][t, h] if "beta" in made else None
            forget = np.diag(np.exp(np.broadcast_to(decay, k.shape)))
            correct = np.eye(len(k)) - (0 if beta is None else beta) * np.outer(k, k)
            s = correct @ forget @ s + (1 if beta is None else beta) * np.outer(k, value[t, h])
            out[t, h] = made["scale"] * query[t, g] @ s
        left[h] = s
    return out, left


@each_backend
def test_by_hand(backend):
    """Two orthogonal keys, numbers that are exact: a state of two rows, of which each token reads one."""
    key = np.array([[[1, 0]], [[0, 1]], [[1, 0]]], np.float32)
    value = np.array([[[8, 4]], [[2, 6]], [[0, 16]]], np.float32)
    beta, decay = np.array([[1], [0.5], [0.5]], np.float32), np.zeros((3, 1), np.float32)
    state = np.zeros((1, 1, 2, 2), np.float32)
    out = ds.gated_delta_rule(2 * key, key, value, state, decay, beta, scale=0.5, backend=backend)
    assert out[:, 0].tolist() == [[8, 4], [1, 3], [4, 10]]  # the last corrects half of what the first has written
    assert state[0, 0].tolist() == [[4, 10], [1, 3]]
    forgotten = np.full((1, 1), -np.inf, np.float32)
    out = ds.gated_delta_rule(key[:1], key[:1], value[:1], state, forgotten, beta[:1], scale=1, backend=backend)
    assert out[0, 0].tolist() == [8, 4] and state[0, 0].tolist() == [[8, 4], [0, 0]]
    out = ds.gated_delta_rule(key[:1], key[:1], value[:1], state, scale=1, update_rule="linear", backend=backend)
    assert out[0, 0].tolist() == [16, 8]
    out = ds.gated_delta_rule(key[:1], key[:1], value[:1], state, forgotten, scale=1, update_rule="gated", backend=backend)
    assert out[0, 0].tolist() == [8, 4]
    out = ds.gated_delta_rule(
        key[:1], key[:1], value[:1] / 2, state, beta=beta[1:2], scale=-1, update_rule="delta", backend=backend
    )
    assert out[0, 0].tolist() == [-6, -3]


@each_backend
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (4, 2, 16, 24), (3, 1, 33, 65), (2, 2, 7, 130), (6, 3, 128, 128)])
def test_against_float64(backend, rule, by_row, sizes, rng):
    heads, key_heads, key_width, width = sizes
    for tokens in (0, 1, 2, 11):
        made = call(rng, tokens, heads, key_heads, key_width, width, rule, by_row=by_row)
        for options in ({}, {"head_map": "tiled", "l2_norm": rule not in ("delta", "gated_delta"), "scale": 0.125}):
            if not options.get("l2_norm", True):
                made["key"] /= np.float32(key_width)
            assert_results(attend(made, **options, backend=backend), truth({**made, **options}))


@each_backend
@pytest.mark.parametrize("decay", [0.01, 0.1, 1.0, 5.0, 20.0])
def test_long_rows_keep_their_digits(backend, decay, rng):
    """The error of 2000 tokens is that of few, whether the state forgets slowly or at once."""
    made = call(rng, 2000, 1, 1, 32, 16, decay=decay)
    out, state = attend(made, backend=backend)
    expected, left = truth(made)
    assert np.abs(out - expected).max() < 2e-6 * np.abs(expected).max()
    assert np.abs(state[0] - left).max() < 2e-6 * np.abs(left).max()


def test_a_decay_of_each_row_and_one_for_all_have_the_same_bits(rng):
    made = call(rng, 7)
    by_row = np.repeat(made["decay"][:, :, None], 16, axis=2)
    for a, b in zip(attend(made), attend(made, decay=by_row), strict=True):
        np.testing.assert_array_equal(a, b)


@each_backend
def test_limits_of_decay_and_beta(backend, rng):
    made = call(rng, 3, 2, 1, 16, 8)
    nothing, one = np.zeros((3, 2), np.float32), np.ones((3, 2), np.float32)
    _, state = attend(made, decay=nothing, beta=nothing, backend=backend)  # neither forgets nor writes
    np.testing.assert_array_equal(state, made["state"])
    _, state = attend(made, decay=nothing - np.inf, beta=nothing, backend=backend)
    assert not state.any()
    _, state = attend(made, decay=nothing - 300, beta=nothing, backend=backend)  # e^-300 is no float32
    assert not state.any()
    out, state = attend(made, decay=nothing, beta=one, backend=backend)  # a key recalls what it has just written
    k = made["key"][-1, 0].astype(np.float64)
    recalled = k / np.sqrt(k @ k) @ state[0].astype(np.float64)
    assert np.abs(recalled - made["value"][-1]).max() < 1e-5
    zeros = {"key": made["key"] * 0, "decay": nothing}
    _, state = attend(made, **zeros, backend=backend)  # a zero key writes nothing and recalls nothing; no 0 / 0
    np.testing.assert_array_equal(state, made["state"])
    out, _ = attend(made, query=made["query"] * 0, backend=backend)
    assert not out.any()
    out, _ = attend(made, scale=0.0, backend=backend)
    assert not out.any()


@each_backend
def test_nan_and_infinities_stay_in_their_heads_and_columns(backend, rng):
    made = call(rng, 5, 4, 2)
    calm = attend(made, backend=backend)
    for name, place, heads, first in (
        ("decay", (1, 2), [2], 1),
        ("beta", (2, 1), [1], 2),
        ("key", (1, 0, 3), [0, 1], 1),
        ("query", (3, 1, 0), [2, 3], 3),
    ):
        out, state = attend(made, **{name: with_nan(made[name], place)}, backend=backend)
        assert_nan_stays((out, state), calm, heads, first)
        assert (np.isnan(state[0, heads]) == (name != "query")).all()
    out, state = attend(made, value=with_nan(made["value"], (2, 1, 7)), backend=backend)
    assert_nan_stays_in_its_column(out, calm[0], 2, 1, 7)
    assert np.isnan(state[0, 1, :, 7]).all()
    held = made["state"].copy()
    held[0, 0, 2, 3] = np.inf  # and a decay to 0 gives NaN there, as 0 * inf does
    out, state = attend(made, state=held, decay=made["decay"] - np.inf, backend=backend)
    assert np.isnan(out[:, 0, 3]).all() and np.isnan(state[0, 0, 2, 3])
    assert np.isfinite(np.delete(out, 3, 2)).all()


@pytest.mark.parametrize("form", ["recurrent", "chunk"])
@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5"])
def test_against_transformers(form, family, rng):
    modeling = pytest.importorskip(f"transformers.models.{family}.modeling_{family}")
    theirs = getattr(modeling, f"torch_{form}_gated_delta_rule")
    made = call(rng, 75, 6, 2, 32, 24)
    out, state = attend(made)
    repeated = {name: np.repeat(made[name], 3, axis=1) for name in ("query", "key")}
    tensors = {name: torch.from_numpy({**made, **repeated}[name][None].copy()) for name in ("query", "key", "value", "beta")}
    other, left = theirs(
        **tensors, g=torch.from_numpy(made["decay"][None]), initial_state=torch.from_numpy(made["state"].copy()),
        output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    assert np.abs(out - other[0].numpy()).max() < 5e-6 * np.abs(out).max()
    assert np.abs(state - left.numpy()).max() < 5e-6 * np.abs(state).max()


def test_float64_gives_the_loops_numbers(rng):
    made = call(rng, 6)
    out, state = attend(widened(made))
    assert out.dtype == state.dtype == np.float64
    assert_results((out, state), truth(made))


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("query must be float32 or float64; got float16 9x2x16", {"query": np.zeros((9, 2, 16), np.float16)}),
        (r"query must be of shape \(T, Hk, dk\) with Hk >= 1; got float32 9x16", {"query": np.zeros((9, 16), np.float32)}),
        (r"query must be of shape \(T, Hk, dk\) with Hk >= 1; got float32 9x0x16", {"query": np.zeros((9, 0, 16), np.float32)}),
        ("key must be of shape 9x2x16; got float32 9x2x15", {"key": np.zeros((9, 2, 15), np.float32)}),
        ("key must be float32; got float64 9x2x16", {"key": np.zeros((9, 2, 16))}),
        ("key must be a NumPy array or a torch tensor; got NoneType", {"key": None}),
        (r"value must be of shape \(9, H, dv\), H a multiple of 2; got float32 9x3x24", {"value": V[:, :3]}),
        (r"value must be of shape \(9, H, dv\), H a multiple of 2; got float32 8x4x24", {"value": V[:8]}),
        (r"decay must be of shape \(9, 4\) or \(9, 4, 16\); got float32 9x2", {"decay": np.zeros((9, 2), np.float32)}),
        (r"decay must be of shape \(9, 4\) or \(9, 4, 16\); got float32 9x4x24", {"decay": np.zeros((9, 4, 24), np.float32)}),
        ("beta must be of shape 9x4; got float32 9x1", {"beta": np.zeros((9, 1), np.float32)}),
        ("beta must be float32; got float64 9x4", {"beta": np.zeros((9, 4))}),
        ("decay must be given for the rule 'gated_delta'; got None", {"decay": None}),
        ("beta must be given for the rule 'delta'; got None", {"update_rule": "delta", "decay": None, "beta": None}),
        ("decay must be None for the rule 'delta'; got float32 9x4", {"update_rule": "delta"}),
        ("beta must be None for the rule 'gated'; got float32 9x4", {"update_rule": "gated"}),
        ("decay must be None for the rule 'linear'; got float32 9x4", {"update_rule": "linear"}),
        ("update_rule must be one of 'linear', 'gated', 'delta', 'gated_delta'; got 'kda'", {"update_rule": "kda"}),
        ("scale must be a finite number; got None", {"scale": None}),
        ("scale must be a finite number; got nan", {"scale": np.nan}),
        ("l2_norm must be a bool; got 1", {"l2_norm": 1}),
        ("head_map must be one of 'grouped', 'tiled'; got 'repeated'", {"head_map": "repeated"}),
        (r"state must be float32 of shape \(S, 4, 16, 24\); got float32 1x4x24x16", {"state": TURNED}),
    ],
)  # fmt: skip
def test_refusals(message, changed, rng):
    assert_refused(attend, call(rng), message, changed)
