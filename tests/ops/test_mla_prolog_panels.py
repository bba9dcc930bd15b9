"""PanelWeight, and the native core on weights in every form: equal to the reference, and the same bits among themselves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep.weights import LinearPanels, PackedWeight
from support.mla_prolog_cases import BF16, INT8_SCENARIOS, MODES, agree, call, copied, legal, make

WEIGHTS = ("weight_dq", "weight_uq_qr", "weight_dkv_kr", "weight_uk")


def in_panels(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {name: ds.PanelWeight.from_array(arguments[name]) for name in WEIGHTS}


def as_bits(a: Any) -> np.ndarray:
    return np.ascontiguousarray(a).view(np.uint8)


def assert_same_bits(got: dict[str, Any], want: dict[str, Any]) -> None:
    for name, value in want.items():
        if value is None:
            assert got[name] is None
        else:
            np.testing.assert_array_equal(as_bits(got[name]), as_bits(value), err_msg=name)


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return rng.integers(-128, 128, shape).astype(dtype)


# The weight itself.


@given(st.integers(0, 2**32), st.integers(1, 150), st.integers(1, 150), st.sampled_from([np.float32, BF16, np.int8]))
def test_weights_come_back(seed, K, N, dtype):
    rng = np.random.default_rng(seed)
    w = random_array(rng, (K, N), dtype)
    packed = ds.PanelWeight.from_array(w)
    assert packed.shape == (K, N) and packed.dtype == dtype and packed.data.ctypes.data % 64 == 0
    np.testing.assert_array_equal(packed.dense(), w)
    np.testing.assert_array_equal(ds.PanelWeight.from_array(ds.to_nz(w), (K, N)).data.view(np.uint8), as_bits(packed.data))
    several = random_array(rng, (3, K, N), dtype)
    np.testing.assert_array_equal(ds.PanelWeight.from_array(several).dense(), several)
    np.testing.assert_array_equal(ds.PanelWeight.from_array(np.asfortranarray(w)[::-1]).dense(), w[::-1])


def test_a_panel_by_hand():
    w = np.arange(5 * 66).reshape(5, 66).astype(BF16)
    rows = ds.PanelWeight.from_array(w).data.astype(int).reshape(3, 16, 32, 2)  # panels, groups of two inputs, columns
    assert rows[0, 1, 7].tolist() == w[2:4, 7].astype(int).tolist()
    assert rows[0, 2, 7].tolist() == [w[4, 7], 0] and not rows[2, :, 2:].any() and not rows[:, 3:].any()
    assert rows[2, 0, 1].tolist() == w[:2, 65].astype(int).tolist()
    assert rows[1, 0, 31].tolist() == w[:2, 63].astype(int).tolist()
    small = np.full((6, 2), [[1, -2]], np.int8)
    data = ds.PanelWeight.from_array(small).data.view(np.uint8).reshape(8, 32, 4)  # groups of four inputs, columns
    assert data[:3, 0].tolist() == [[129] * 4, [129, 129, 128, 128], [128] * 4]
    assert data[:2, 1].tolist() == [[126] * 4, [126, 126, 128, 128]] and (data[:, 2:] == 128).all()


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_panels_are_those_of_linear(dtype):
    w = np.random.default_rng(3).standard_normal((77, 70), np.float32).astype(dtype)
    panels = LinearPanels.pack(PackedWeight.from_array(w))
    np.testing.assert_array_equal(as_bits(ds.PanelWeight.from_array(w).data), panels.data)


@pytest.mark.parametrize(
    ("weight", "shape", "rule"),
    [
        (np.zeros((4, 4)), None, "weight must be a matrix"),
        (np.zeros(4, np.float32), None, "weight must be a matrix"),
        (np.zeros((4, 0), np.int8), None, "weight must be a matrix, matrices or NZ storage with no axis of 0"),
        ([[1.0]], None, "weight must be a NumPy array"),
        (np.zeros((4, 4), np.int8), (4, 4), "shape must be of a matrix within NZ"),
        (np.zeros((1, 1, 16, 32), np.int8), (17, 4), "shape must be of a matrix within NZ"),
    ],
)
def test_refusals(weight, shape, rule):
    with pytest.raises(ValueError, match=f"^PanelWeight: {rule}"):
        ds.PanelWeight.from_array(weight, shape)


def test_the_operator_checks_shape_and_type():
    arguments = make(np.random.default_rng(0))
    for name in WEIGHTS:
        longer = ds.PanelWeight.from_array(np.ones((*arguments[name].shape[:-1], 7), BF16))
        with pytest.raises(ValueError, match="must be"):
            call(copied(arguments) | {name: longer})
    other = ds.PanelWeight.from_array(arguments["weight_dq"].astype(np.float32))
    with pytest.raises(ValueError, match="weight_dq must be bfloat16 of shape 48x32, or its NZ storage .*; got a PanelWeight"):
        call(copied(arguments) | {"weight_dq": other})


# The operator on it.


@pytest.mark.parametrize("scenario", INT8_SCENARIOS)
def test_every_scenario_and_mode(scenario):
    for mode in MODES:
        merged = mode != "BSND"
        if not legal(scenario, mode, merged):
            continue
        arguments = make(np.random.default_rng(31), scenario, mode, merged) | dict(query_norm_flag=True)
        want = call(copied(arguments), backend="reference")
        plain = copied(arguments)
        got, again = call(in_panels(plain), backend="cpu"), call(arguments, backend="cpu")
        agree(got, want, Counter())
        assert_same_bits(again, got)
        by_reference = call(in_panels(copied(arguments)), backend="reference")
        assert by_reference["query"].dtype == got["query"].dtype


@settings(max_examples=80)
@given(st.data())
def test_every_shape_form_and_thread_count(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scenario = draw(st.sampled_from(INT8_SCENARIOS))
    real = BF16 if scenario.endswith("TILE") else draw(st.sampled_from([np.float32, BF16]))
    sizes = dict(
        He=draw(st.integers(1, 300)),
        Hcq=draw(st.integers(1, 150)),
        N=draw(st.integers(1, 5)),
        D=draw(st.integers(1, 140)),
        Hckv=draw(st.integers(1, 90)),
        Dr=2 * draw(st.integers(1, 9)),
        lengths=[draw(st.sampled_from([0, 1, 2, 3, 5, 6, 7, 12, 13, 17, 31, 128, 129, 200]))],
    )
    arguments = make(rng, scenario, real=real, blocks=60, **sizes)
    nz = {name: ds.to_nz(arguments[name]) for name in WEIGHTS[:3]}
    if nz["weight_dq"].shape[0] * nz["weight_dq"].shape[3] != sizes["Hcq"]:  # its padding would count as columns
        del nz["weight_dq"]
    want = call(copied(arguments), backend="reference")
    results = []
    for threads in (1, 2):
        for weights in ({}, nz, {name: ds.PanelWeight.from_array(arguments[name]) for name in WEIGHTS}):
            with ds.use_threads(threads):
                results.append(call(copied(arguments) | weights, backend="cpu"))
    agree(results[0], want, Counter(), rope=sizes["Dr"])
    for other in results[1:]:
        assert_same_bits(other, results[0])


@pytest.mark.parametrize(("scenario", "real"), [("NO_QUANT", np.float32), ("NO_QUANT", BF16), ("FULL_KV", BF16)])
@pytest.mark.parametrize("hidden", [96, 3300])
def test_a_token_does_not_depend_on_its_batch(scenario, real, hidden):
    """With many inputs the sums of a batch wait in memory for chunk after chunk of the weights, those of a token do not."""
    rng = np.random.default_rng(5)
    arguments = in_panels(make(rng, scenario, real=real, He=hidden, lengths=[150], negative=False, blocks=60))
    arguments["cache_index"] = np.arange(150)
    want = call(copied(arguments))
    for t in (0, 47, 149):
        one = copied(arguments)
        for name in ("token_x", "rope_sin", "rope_cos", "cache_index", "dequant_scale_x"):
            if name in one:
                one[name] = one[name][t : t + 1]
        got = call(one)
        for name in ("query", "query_rope", "dequant_scale_q_nope"):
            if want[name] is not None:
                np.testing.assert_array_equal(as_bits(got[name][0]), as_bits(want[name][t]))
        np.testing.assert_array_equal(as_bits(got["kv_cache"].reshape(-1, 64)[t]), as_bits(want["kv_cache"].reshape(-1, 64)[t]))


@pytest.mark.parametrize("scenario", ["NO_QUANT", "PARTIAL_KV"])
def test_caches_of_any_strides(scenario):
    for mode in ("PA_BSND", "PA_NZ"):
        arguments = in_panels(make(np.random.default_rng(9), scenario, mode))
        want = call(copied(arguments))
        spread = dict(arguments)
        for name in ("kv_cache", "kr_cache"):
            blocks, rows, _, width = arguments[name].shape
            room = np.zeros((2 * blocks, width, rows, 2), arguments[name].dtype)
            spread[name] = room[::-2, :, :, 1].transpose(0, 2, 1)[:, ::-1, None]
            spread[name][:] = arguments[name]
        assert_same_bits(call(spread), want)
