"""The tiling key and the host's plan, by the numbers of the published design."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodestep as ds
from decodestep.ops.mla_prolog.plan import MlaPrologPlan

Key = ds.MlaPrologTilingKey
KEYS = [
    (Key(1, 1, 0), 17),  # no quantisation, PA_BSND
    (Key(2, 1, 0), 18),  # no quantisation, PA_NZ
    (Key(1, 2, 0, 1), 1057),  # PARTIAL
    (Key(2, 2, 1, 1), 1122),  # PARTIAL with quantised caches, PA_NZ
    (Key(1, 2, 3, 1), 1249),  # FULL with a quantised cache
    (Key(1, 1, 0, 0, 0, 1), 4113),  # empty caches
    (Key(0, 0, 0, 0, 0, 2), 8192),  # no tokens
    (Key(1, 2, 0, 0, 1), 2081),
]


@pytest.mark.parametrize(("key", "number"), KEYS)
def test_a_key_encodes_to_its_number_and_back(key, number):
    assert key.encode() == number and Key.decode(number) == key


def test_no_tokens_leave_nothing_else_in_the_key():
    assert Key(2, 2, 3, 1, 0, 2).encode() == 8192
    with pytest.raises(ValueError, match=r"^MlaPrologTilingKey: key must be 8192 where there are no tokens; got 8193"):
        Key.decode(8193)


# (scenario, cache mode, tokens, merged): the keys of the published host's own tests of July 2026, with 24 and 48 cores.
KEYS_2026 = [
    (("FULL_KV", "PA_BSND", 8, False), 1836321),
    (("FULL", "PA_BSND", 8, False), 1836257),
    (("FULL_KV", "PA_BLK_NZ", 8, False), 1836324),
    (("NO_QUANT", "TND", 16, True), 1835024),
    (("PARTIAL", "BSND", 11776, False), 1836128),
    (("PARTIAL_TILE", "TND", 512, True), 1836384),
    (("FULL_TILE", "PA_BSND", 8, True), 1836449),
    (("PARTIAL_KV", "PA_BLK_NZ", 9650, True), 1852580),
    (("NO_QUANT", "PA_NZ", 128, True), 1835026),
    (("MXFP8", "PA_BSND", 31, True), 1836513),
    (("MXFP8_KV", "PA_NZ", 128, True), 1836578),
    (("MXFP8_TILE", "PA_BSND", 8, False), 1836641),
]


@pytest.mark.parametrize(("call", "number"), KEYS_2026)
def test_the_keys_of_2026(call, number):
    scenario, mode, tokens, merged = call
    for limits in ("2026", "latest"):
        key = ds.mla_prolog_plan(tokens, 32, scenario=scenario, cache_mode=mode, merged=merged, limits=limits).key
        assert key.encode() == number and Key.decode(number) == key


def test_a_plan_of_2026():
    """At least 64 columns of cq for a core; tokens shared among the cores; no tokens; one vector core to a cube core."""
    assert splits(ds.mla_prolog_plan(8, 32, aic=48, aiv=96))["MatmulCq"] == (32, 48)
    assert splits(ds.mla_prolog_plan(8, 32, aic=48, aiv=96, limits="2026"))["MatmulCq"] == (64, 24)
    few, many = (ds.mla_prolog_plan(t, 128, scenario="MXFP8", limits="2026") for t in (8191, 8192))
    assert few.key.split_m_mode == 0 and many.key.split_m_mode == 1 and many.key.dequant_optional == 1
    assert splits(many) == {"MatmulCq": (1536, 24), "MatmulCkvKr": (576, 24), "MatmulQcQr": (24576, 24), "MatmulQn": (512, 24)}
    heads_part = 128 * 192 * 4 + 2 * 128 * 128 * 2 + 32
    assert many.workspace_bytes == 24 * 128 * (1536 * 6 + 576 * 4 + heads_part)
    assert ds.mla_prolog_plan(1, 1, scenario="FP8", limits="2026").key.dequant_optional == 1
    assert ds.mla_prolog_plan(0, 1, scenario="FP8", limits="2026").key.encode() == 8192 | 7 << 18
    assert ds.mla_prolog_plan(1, 1, aic=24, aiv=24, limits="2026").key.cv_mode == 6
    for more in ({"aiv": 24, "scenario": "FULL"}, {"aiv": 24, "cache_mode": "TND"}, {"aiv": 30}):
        with pytest.raises(ValueError, match="^mla_prolog_plan: aiv must be"):
            ds.mla_prolog_plan(1, 1, limits="2026", **more)


@given(st.integers(0, 2**14 - 1))
def test_every_key_returns(number):
    if number >> 10 & 3 == 3 or (number >> 12 == 2 and number != 8192):
        with pytest.raises(ValueError, match="must be"):
            Key.decode(number)
    else:
        assert Key.decode(number).encode() == number


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ((16, 0, 0), "cache_mode"),
        ((-1, 0, 0), "cache_mode"),
        ((1, 4, 0), "scenario"),
        ((1, 1, 16), "quant_mode"),
        ((1, 1, 0, 2), "dequant_optional"),
        ((1, 1, 0, 0, 2), "group_compute_optional"),
        ((1, 1, 0, 0, 0, 4), "empty_tensor_mode"),
        ((1.0, 1, 0), "cache_mode"),
        (("1", 1, 0), "cache_mode"),
        ((1, 1, 0, 1, 1), "group_compute_optional"),
        ((1, 1, 0, 0, 0, 0, 4, 0, 7), "actual_seq_len_mode"),
        ((1, 1, 0, 0, 0, 0, 0, 0, 5), "cv_mode"),
        ((1, 1, 0, 0, 0, 0, 1), "cv_mode"),
    ],
)
def test_fields_outside_their_width_are_refused(fields, name):
    with pytest.raises(ValueError, match=f"^MlaPrologTilingKey: {name} must be"):
        Key(*fields)


@pytest.mark.parametrize("key", [-1, 1 << 14, 1 << 26, 5 << 18, 1.0, "17", True])
def test_numbers_that_are_no_key_are_refused(key):
    with pytest.raises(ValueError, match=r"^MlaPrologTilingKey: key must be"):
        Key.decode(key)


def splits(plan: MlaPrologPlan) -> dict[str, tuple[int, int]]:
    return {m.name: (m.columns, m.blocks) for m in plan.matmuls}


def test_the_published_example():
    plan = ds.mla_prolog_plan(32, 32)
    assert splits(plan) == {"MatmulCq": (64, 24), "MatmulCkvKr": (64, 9), "MatmulQcQr": (256, 24), "MatmulQn": (512, 16)}
    assert plan.matmuls[3].heads == 2 and plan.key.encode() == 17 and plan.block_dim == 24
    plan = ds.mla_prolog_plan(32, 128, scenario="PARTIAL")
    assert splits(plan)["MatmulQcQr"] == (1152, 22) and splits(plan)["MatmulQn"] == (512, 22)
    assert plan.matmuls[3].heads == 6 and plan.key.encode() == 1057


def test_products_steps_and_vector_blocks_of_a_plan():
    plan = ds.mla_prolog_plan(300, 32, aiv=48)
    assert [(m.m, m.k, m.n, m.batch) for m in plan.matmuls] == [
        (128, 7168, 1536, 1),
        (128, 7168, 576, 1),
        (128, 1536, 6144, 1),
        (128, 128, 512, 32),
    ]
    assert plan.steps == (128, 128, 44)
    assert plan.vector_blocks == (3,) * 32 + (2,) * 16 and sum(plan.vector_blocks) == 128
    assert ds.mla_prolog_plan(5, 32).vector_blocks == (1,) * 5 and ds.mla_prolog_plan(5, 32).steps == (5,)
    assert ds.mla_prolog_plan(5, 128).step_heads_dequant == 64 and ds.mla_prolog_plan(5, 128, nope=192).step_heads_dequant == 16


def test_few_cores_split_the_latents_too():
    assert splits(ds.mla_prolog_plan(8, 32, aic=8))["MatmulCkvKr"] == (80, 8)
    assert splits(ds.mla_prolog_plan(8, 32, aic=9))["MatmulCkvKr"] == (64, 9)
    assert splits(ds.mla_prolog_plan(8, 32, aic=8, scenario="FULL"))["MatmulCkvKr"] == (96, 6)


@pytest.mark.parametrize(
    ("scenario", "heads", "mode", "number"),
    [
        ("NO_QUANT", 32, "PA_NZ", 18),
        ("PARTIAL", 4, "PA_BSND", 33),
        ("PARTIAL", 8, "PA_BSND", 1057),
        ("PARTIAL_KV", 8, "PA_NZ", 1122),
        ("FULL", 64, "PA_BSND", 1185),
        ("FULL_KV", 64, "PA_BSND", 1249),
    ],
)
def test_the_key_of_a_call(scenario, heads, mode, number):
    assert ds.mla_prolog_plan(4, heads, scenario=scenario, cache_mode=mode).key.encode() == number


def test_the_workspace_has_room_for_every_stage():
    def bytes_of(scenario: str, heads: int = 32) -> int:
        return ds.mla_prolog_plan(200, heads, scenario=scenario).workspace_bytes

    heads_part = 32 * 192 * 4 + 32 * 128 * 2
    assert bytes_of("NO_QUANT") == 128 * (1536 * 4 + 576 * 2 + heads_part)
    assert bytes_of("PARTIAL") == 128 * (1536 * 4 + 576 * 2 + heads_part + 32)
    assert bytes_of("FULL") == 128 * (1536 * 6 + 576 * 4 + heads_part + 32)
    assert bytes_of("FULL_KV") == 128 * (1536 * 6 + 576 * 4 + 32 * 512 * 2 + heads_part + 32)
    assert bytes_of("PARTIAL", 4) == 128 * (1536 * 4 + 576 * 2 + 4 * 192 * 4 + 4 * 128 * 2)


def test_empty_calls_have_no_products():
    plan = ds.mla_prolog_plan(0, 32, scenario="FULL_KV", empty_cache=True)
    assert plan.key.encode() == 8192 and plan.block_dim == 1 and plan.workspace_bytes == 0 and not plan.matmuls
    assert plan.steps == ()
    plan = ds.mla_prolog_plan(2, 32, empty_cache=True)
    assert plan.key.encode() == 4113 and [m.name for m in plan.matmuls] == ["MatmulCq", "MatmulQcQr", "MatmulQn"]


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"tokens": -1}, "tokens"),
        ({"tokens": 2**20 + 1}, "tokens"),
        ({"tokens": 10**18}, "tokens"),
        ({"heads": 0}, "heads"),
        ({"hidden": 1.5}, "hidden"),
        ({"aic": 0}, "aic"),
        ({"empty_cache": None}, "empty_cache"),
        ({"scenario": "PARTIAL_TILE"}, "scenario"),
        ({"cache_mode": "TND"}, "cache_mode"),
        ({"scenario": "HIF8", "limits": "2026"}, "scenario"),
        ({"limits": "2027"}, "limits"),
        ({"merged": 1}, "merged"),
    ],
)
def test_refusals(wrong, name):
    with pytest.raises(ValueError, match=f"^mla_prolog_plan: {name} must be"):
        ds.mla_prolog_plan(**{"tokens": 1, "heads": 8} | wrong)


def test_a_key_without_options_and_of_numpys_integers():
    assert Key(1, 1, 0) == Key(1, 1, 0, 0, 0, 0) and Key(1, 1, 0).encode() == 17
    assert type(Key(np.int64(1), 1, 0).cache_mode) is int
