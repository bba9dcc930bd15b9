"""selective_state_update by hand, against float64, transformers' mixer, and gated_delta_rule, of which it is a case."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep._base import exact_math
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
from support.tolerances import assert_close

BACKENDS = ["cpu", "reference"]
TURNED = np.zeros((1, 4, 24, 16), np.float32)
update = OPERATORS["selective_state_update"]
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def call(rng, tokens=9, heads=4, groups=2, state_width=16, width=24):
    return {"x": normal(rng, tokens, heads, width), "dt": normal(rng, tokens, heads),
            "a": -np.exp(normal(rng, heads)), "b": normal(rng, tokens, groups, state_width),
            "c": normal(rng, tokens, groups, state_width), "state": normal(rng, 1, heads, state_width, width),
            "d": normal(rng, heads), "dt_bias": normal(rng, heads)}  # fmt: skip


def truth(made):
    """In float64, as the sum over all earlier tokens: nothing is carried along."""
    x, dt, a, b, c, state = (made[name].astype(np.float64) for name in ("x", "dt", "a", "b", "c", "state"))
    tokens, heads, _ = x.shape
    d, bias = (np.zeros(heads) if made.get(name) is None else made[name].astype(np.float64) for name in ("d", "dt_bias"))
    step = np.log1p(np.exp(dt + bias))
    y, left = np.empty(x.shape), np.empty(state.shape[1:])
    for h in range(heads):
        g = h // (heads // b.shape[1])
        until = np.concatenate([[0], np.cumsum(step[:, h])]) * a[h]  # the logarithm of what is left of the first state
        for t in range(tokens + 1):
            s = np.exp(until[t]) * state[0, h]
            for j in range(t):
                s = s + np.exp(until[t] - until[j + 1]) * step[j, h] * np.outer(b[j, g], x[j, h])
            if t:
                y[t - 1, h] = c[t - 1, g] @ s + d[h] * x[t - 1, h]
        left[h] = s
    return y, left


@each_backend
def test_by_hand(backend):
    """Steps above 20, where softplus is the identity; a decay of 1 and one to 0."""
    x, b = np.array([[[1, 2]], [[3, 4]]], np.float32), np.array([[[1, 0]], [[1, 1]]], np.float32)
    c, dt = np.array([[[2, 0]], [[1, 10]]], np.float32), np.array([[32], [64]], np.float32)
    state = np.array([[[[5, 6], [7, 8]]]], np.float32)
    y = ds.selective_state_update(x, dt, np.zeros(1, np.float32), b, c, state, backend=backend)
    assert state[0, 0].tolist() == [[5 + 32 + 192, 6 + 64 + 256], [7 + 192, 8 + 256]]
    assert y[:, 0].tolist() == [[74, 140], [229 + 1990, 326 + 2640]]
    rates = np.full(1, -np.inf, np.float32)
    y = ds.selective_state_update(x[:1], dt[:1], rates, b[:1], c[:1], state, d=np.float32([100]), backend=backend)
    assert state[0, 0].tolist() == [[32, 64], [0, 0]] and y[0, 0].tolist() == [164, 328]


@each_backend
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (4, 2, 16, 24), (3, 1, 33, 65), (4, 4, 7, 130), (2, 1, 128, 64)])
def test_against_float64(backend, sizes, rng):
    heads, groups, state_width, width = sizes
    for tokens in (0, 1, 2, 18, 40):  # around the sixteen whose steps are found together
        made = call(rng, tokens, heads, groups, state_width, width)
        for options in ({}, {"d": None, "dt_bias": None}):
            assert_results(update(made, **options, backend=backend), truth({**made, **options}))


@each_backend
def test_softplus_keeps_its_digits(backend):
    """From steps that are almost 0 to those that are the token's number itself."""
    dt = np.array([-np.inf, -80, -40, -20, -3, -1, -0.5, 0, 0.3, 1, 19.99, 20, 20.01, 88, 1000], np.float32)[:, None]
    one = np.ones((len(dt), 1, 1), np.float32)
    states = np.zeros((len(dt), 1, 1, 1), np.float32)
    step = ds.selective_state_update(one, dt, np.zeros(1, np.float32), one, one, states, backend=backend)[:, 0, 0]
    expected = np.log1p(np.exp(np.minimum(dt[:, 0].astype(np.float64), 30)))
    expected = np.where(dt[:, 0] > 30, dt[:, 0], expected)
    assert (np.abs(step - expected) <= 2e-7 * expected).all() and step[0] == 0 and step[-1] == 1000


def test_the_core_finds_softplus_in_float64(rng):
    """Operation for operation as `exact_math`: the same bits on every machine."""
    dt = np.concatenate([normal(rng, 500) * 5, np.linspace(-3, 3, 301, dtype=np.float32)])[:, None]
    one = np.ones((len(dt), 1, 1), np.float32)
    step = ds.selective_state_update(one, dt, np.zeros(1, np.float32), one, one, np.zeros((len(dt), 1, 1, 1), np.float32))
    e = exact_math.exp(dt[:, 0].astype(np.float64))
    small, large = np.where(e < 0.4, e, 0.0), np.where(e < 0.4, 1.0, e)
    found = np.where(e < 0.4, exact_math._two_atanh(small / (2 + small)), exact_math.log(1 + large))
    np.testing.assert_array_equal(step[:, 0, 0], np.where(dt[:, 0] > 20, dt[:, 0], found.astype(np.float32)))


@each_backend
def test_limits(backend, rng):
    made = call(rng, 3)
    nothing = {"dt": np.full((3, 4), -np.inf, np.float32)}  # a step of 0 neither forgets nor writes
    _, state = update(made, **nothing, backend=backend)
    np.testing.assert_array_equal(state, made["state"])
    y, state = update(made, b=made["b"] * 0, a=made["a"] * np.float32(1e6), backend=backend)
    assert not state.any()
    assert_close(y, made["d"].astype(float)[:, None] * made["x"])
    y, _ = update(made, c=made["c"] * 0, d=None, backend=backend)
    assert not y.any()


@each_backend
def test_nan_stays_in_its_heads_and_columns(backend, rng):
    made = call(rng, 5)
    calm = update(made, backend=backend)
    for name, place, heads, first in (
        ("dt", (1, 2), [2], 1),
        ("a", (3,), [3], 0),
        ("b", (2, 0, 3), [0, 1], 2),
        ("c", (4, 1, 0), [2, 3], 4),
        ("d", (1,), [1], 0),
    ):
        found = update(made, **{name: with_nan(made[name], place)}, backend=backend)
        assert_nan_stays(found, calm, heads, first)
        assert (np.isnan(found[1][0, heads]).any(axis=(1, 2)) == (name not in "cd")).all()
    y, _ = update(made, x=with_nan(made["x"], (2, 1, 7)), backend=backend)
    assert_nan_stays_in_its_column(y, calm[0], 2, 1, 7)


def test_it_is_a_gated_rule(rng):
    """With c for the query, b for the key, the step times x for the value; the same bits, since its kernel is the same."""
    made = call(rng, 20)
    y, state = update(made, d=None)
    unit = np.ones((20, 4, 1), np.float32)  # softplus alone
    step = ds.selective_state_update(
        unit, made["dt"] + made["dt_bias"], made["a"] * 0, np.ones((20, 1, 1), np.float32), np.ones((20, 1, 1), np.float32),
        np.zeros((20, 4, 1, 1), np.float32),
    )  # fmt: skip
    held = made["state"].copy()
    out = ds.gated_delta_rule(
        made["c"], made["b"], step * made["x"], held, step[:, :, 0] * made["a"], scale=1, update_rule="gated"
    )
    np.testing.assert_array_equal(out, y)
    np.testing.assert_array_equal(held, state)


def test_against_transformers(rng):
    """The whole mixer in both of its forms, all tokens and one more with the states kept, with our operators in its place."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer, Mamba2Model

    config = transformers.Mamba2Config(
        hidden_size=24, num_heads=6, head_dim=8, expand=2, n_groups=2, state_size=16, conv_kernel=4, chunk_size=8,
        num_hidden_layers=1, vocab_size=32, time_step_limit=(0.0, float("inf")),
    )  # fmt: skip
    torch.manual_seed(0)
    model = Mamba2Model(config).eval()
    mixer = next(m for m in model.modules() if isinstance(m, Mamba2Mixer))
    hidden = torch.randn(21, 24)
    entered = []
    mixer.register_forward_pre_hook(lambda _, args, kwargs: entered.append((args[0] if args else kwargs["hidden_states"])[0]),
                                    with_kwargs=True)  # fmt: skip
    results = []
    mixer.register_forward_hook(lambda _, args, kwargs, made: results.append(made[0]), with_kwargs=True)
    with torch.no_grad():
        first = model(inputs_embeds=hidden[None, :20], use_cache=True)
        model(inputs_embeds=hidden[None, 20:], cache_params=first.cache_params, use_cache=True)
        convolved_state, state = np.zeros((1, 3, 48 + 2 * 32), np.float32), np.zeros((1, 6, 16, 8), np.float32)
        for inputs, theirs in zip(entered, results, strict=True):
            z, xbc, dt = mixer.in_proj(inputs).split([48, 48 + 2 * 32, 6], dim=-1)
            weight, bias = mixer.conv1d.weight[:, 0].numpy(), mixer.conv1d.bias.numpy()
            xbc = ds.causal_conv1d(xbc, weight, convolved_state, bias=bias, activation="silu")
            x, b, c = xbc.split([48, 32, 32], dim=-1)
            y = ds.selective_state_update(
                x.unflatten(1, (6, 8)), dt, -torch.exp(mixer.A_log), b.unflatten(1, (2, 16)), c.unflatten(1, (2, 16)), state,
                d=mixer.D, dt_bias=mixer.dt_bias,
            )  # fmt: skip
            ours = mixer.out_proj(mixer.norm(y.flatten(1), z))
            assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


def test_float64_gives_the_loops_numbers(rng):
    made = call(rng, 6)
    y, state = update(widened(made))
    assert y.dtype == state.dtype == np.float64
    assert_results((y, state), truth(made))


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("x must be float32 or float64; got float16 9x4x24", {"x": np.zeros((9, 4, 24), np.float16)}),
        (r"x must be of shape \(T, H, P\); got float32 9x24", {"x": np.zeros((9, 24), np.float32)}),
        ("dt must be of shape 9x4; got float32 9x4x1", {"dt": np.zeros((9, 4, 1), np.float32)}),
        ("dt must be float32; got float64 9x4", {"dt": np.zeros((9, 4))}),
        ("a must be of shape 4; got float32 1", {"a": np.zeros(1, np.float32)}),
        ("a must be a NumPy array or a torch tensor; got NoneType", {"a": None}),
        (r"b must be of shape \(9, G, N\), G a divisor of 4; got float32 9x3x16", {"b": np.zeros((9, 3, 16), np.float32)}),
        (r"b must be of shape \(9, G, N\), G a divisor of 4; got float32 9x0x16", {"b": np.zeros((9, 0, 16), np.float32)}),
        (r"b must be of shape \(9, G, N\), G a divisor of 4; got float32 9x16", {"b": np.zeros((9, 16), np.float32)}),
        ("c must be of shape 9x2x16; got float32 9x2x15", {"c": np.zeros((9, 2, 15), np.float32)}),
        ("d must be of shape 4; got float32 4x24", {"d": np.zeros((4, 24), np.float32)}),
        ("dt_bias must be float32; got float64 4", {"dt_bias": np.zeros(4)}),
        (r"state must be float32 of shape \(S, 4, 16, 24\); got float32 1x4x24x16", {"state": TURNED}),
    ],
)  # fmt: skip
def test_refusals(message, changed, rng):
    assert_refused(update, call(rng), message, changed)
