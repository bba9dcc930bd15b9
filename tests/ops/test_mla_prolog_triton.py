"""mla_prolog's Triton kernels, interpreted where there is no GPU: every scenario in every cache layout, against the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton.language as tl

import decodestep as ds
from decodestep.ops.mla_prolog import triton as prolog
from decodestep.ops.mla_prolog.triton import rows
from decodestep.weights import LinearPanels, PackedWeight, PanelWeight
from support import mla_prolog_cases as cases
from support import triton_interpreter as gpu
from support.mla_prolog_oracle import oracle
from support.triton_interpreter import guard_zones  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ROWS = PackedWeight.from_array(np.zeros((48, 32), cases.BF16))

COMBINATIONS = [
    (scenario, mode, merged)
    for scenario in cases.SCENARIOS
    for mode in cases.MODES
    for merged in (True, False)
    if cases.legal(scenario, mode, merged)
]


def on_device(arguments):
    return {name: gpu.on_device(v) if isinstance(v, np.ndarray) else v for name, v in arguments.items()}


def call(arguments, version=3, **more):
    """As `cases.call`, on the device."""
    made = cases.call(on_device(arguments), version, backend="triton", **more)
    return {name: gpu.on_host(value) for name, value in made.items()}


@pytest.mark.parametrize("number", range(len(COMBINATIONS)), ids=lambda n: "-".join(map(str, COMBINATIONS[n])))
def test_every_scenario_in_every_layout(number):
    scenario, mode, merged = COMBINATIONS[number]
    rng = np.random.default_rng(number)
    real = np.float32 if number % 4 == 3 and not scenario.endswith("TILE") else cases.BF16
    sizes = {"B": 2, "lengths": [2, 3] if merged and mode.startswith("PA_BLK") else None}
    arguments = cases.make(rng, scenario, mode, merged, real=real, nz_weights=number % 2 == 1, smooth=number % 3 > 0, **sizes)
    arguments |= {"qc_qr_scale": 1.5, "kc_scale": 0.75, "query_norm_flag": True}
    want = oracle(arguments, scenario=scenario)
    cases.agree(call(arguments), want)


def test_first_versions_and_rounding_half_away():
    rng = np.random.default_rng(1)
    for version, scenario, more in ((1, "PARTIAL_KV", {}), (2, "FULL_KV", {"rounding": "half_away"})):
        arguments = cases.make(rng, scenario, "PA_NZ")
        cases.agree(call(arguments, version, **more), oracle(arguments, more.get("rounding", "half_even"), scenario))


def test_heads_that_are_all_rotated():
    rng = np.random.default_rng(2)
    arguments = cases.make(rng, real=np.float32, D=0, Hckv=32, N=4, He=32, Hcq=32)
    arguments["kv_cache"] = arguments["kv_cache"][:, ::-1]
    first, second = cases.copied(arguments), cases.copied(arguments)
    want = cases.call(first, backend="reference")
    got = call(second)
    assert not got["query"].any()
    np.testing.assert_allclose(got["query_rope"], want["query_rope"], atol=1e-5)


def test_caches_keep_what_no_token_names_and_what_lies_between():
    rng = np.random.default_rng(3)
    arguments = cases.make(rng, "PARTIAL_KV", "PA_BSND", B=1, S=2)
    arguments["cache_index"] = np.array([5, 5])
    made = on_device(arguments)
    wide = torch.full((2, *made["kv_cache"].shape), 99, dtype=torch.int8, device=gpu.DEVICE)
    wide[1] = made["kv_cache"]
    made["kv_cache"] = wide[1]
    before = wide.clone()
    ds.mla_prolog_v3(**made, backend="triton")
    changed = (wide != before).reshape(2, -1, wide.shape[-1]).any(-1)
    assert changed.nonzero().tolist() == [[1, 5]]
    want = oracle(arguments, scenario="PARTIAL_KV")
    assert np.abs(gpu.on_host(made["kv_cache"]).astype(int) - want["kv_cache"].astype(int)).max() <= 1


WIDE = {"He": 208, "Hcq": 144, "Hckv": 80, "N": 3}  # several steps of a depth, and tiles that are not full


@pytest.mark.parametrize("scenario", ["NO_QUANT", "FULL_KV"])
@pytest.mark.parametrize("nz_weights", [False, True])
def test_depths_in_parts(scenario, nz_weights):
    sizes = WIDE | ({"He": 224, "Hcq": 160, "Hckv": 96, "N": 4} if nz_weights else {})
    arguments = cases.make(np.random.default_rng(4), scenario, nz_weights=nz_weights, **sizes)
    cases.agree(call(arguments, 2), oracle(arguments, scenario=scenario))


@pytest.mark.parametrize("real", [cases.BF16, np.float32])
@pytest.mark.parametrize("change", [{}, {"programs": 10, "most_rows": 16}], ids=str)
def test_a_token_has_the_same_bits_among_others(real, change, monkeypatch):
    """In a wider tile than alone, and, with fewer programs, where each adds the parts of its sums itself."""
    for dtype, tiles in prolog.TILES.items():
        monkeypatch.setitem(prolog.TILES, dtype, replace(tiles, **change))
    tokens = 37
    arguments = cases.make(np.random.default_rng(5), B=tokens, S=1, blocks=tokens, real=real, negative=False, **WIDE)
    arguments["cache_index"] = np.random.default_rng(6).permutation(tokens * 4)[:tokens]
    of_tokens = ("token_x", "rope_sin", "rope_cos", "cache_index")
    first, one, last = cases.copied(arguments), cases.copied(arguments), tokens - 1
    many = call(first)
    alone = call(one | {name: one[name][last:] for name in of_tokens})
    for name in ("query", "query_rope"):
        assert many[name][last].tobytes() == alone[name][0].tobytes()


@pytest.mark.parametrize("scenario", ["NO_QUANT", "PARTIAL_KV", "FULL_KV"])
def test_strides_change_nothing(scenario):
    arguments = cases.make(np.random.default_rng(9), scenario, nz_weights=True)
    want, made = call(arguments), on_device(arguments)
    apart = {name: gpu.strided(v) for name, v in made.items() if isinstance(v, torch.Tensor) and not name.endswith("_cache")}
    got = call(made | apart)
    for name, value in want.items():
        assert value is None or got[name].tobytes() == value.tobytes(), name


def test_a_run_allocates_nothing_and_waits_for_nothing(monkeypatch):
    """So that a graph can hold it: what it reads may be overwritten between replays, by slots outside of the caches too.
    Of tokens with one slot the last is kept, in whatever order they run."""
    gpu.last_programs_first(monkeypatch)
    monkeypatch.setattr(rows, "_SLOTS", tl.constexpr(4))  # that are compared at a time
    arguments = cases.make(np.random.default_rng(7), **WIDE) | {"cache_index": np.arange(9)}
    other = cases.make(np.random.default_rng(8), **WIDE) | {"cache_index": np.array([7, 7, 30, -1, 30, 7, 2, 32, 0])}
    made = on_device(arguments)
    prepared = prolog.prepare(ds.mla_prolog_v3, **made)
    for name in ("token_x", "rope_sin", "rope_cos", "cache_index"):
        made[name].copy_(gpu.on_device(other[name]))

    with monkeypatch.context() as patch:
        gpu.forbid_allocations(patch)
        gpu.forbid_copies_to_host(patch, 0)
        results = prepared.run()
    replayed = arguments | {name: other[name] for name in ("token_x", "rope_sin", "rope_cos")}
    replayed["cache_index"] = np.where(other["cache_index"] < 32, other["cache_index"], -1)
    got = {name: gpu.on_host(value) for name, value in results._asdict().items()}
    got |= {name: gpu.on_host(made[name]) for name in ("kv_cache", "kr_cache")}
    cases.agree(got, oracle(replayed, scenario="NO_QUANT"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda kv, kr: {"kv_cache": kv[:1].expand(8, -1, -1, -1)},
            "kv_cache must be of elements that do not overlap in memory",
        ),
        (
            lambda kv, kr: {"kr_cache": kr[:1].expand(8, -1, -1, -1)},
            "kr_cache must be of elements that do not overlap in memory",
        ),
        (lambda kv, kr: {"kr_cache": kv[..., :32]}, "kv_cache must be apart from kr_cache in memory"),
        (lambda kv, kr: {"token_x": kv.view(-1, 64)[:9, :48]}, "kv_cache must be apart from token_x in memory"),
    ],
)
def test_caches_have_memory_of_their_own(change, message):
    arguments = on_device(cases.make(np.random.default_rng(0)))
    arguments |= change(arguments["kv_cache"], arguments["kr_cache"])
    with pytest.raises(ValueError, match=message):
        ds.mla_prolog_v3(**arguments, backend="triton")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache_index": np.full(9, 32)}, "cache_index must be below 32"),
        ({"kv_cache": np.zeros((8, 4, 1, 63), cases.BF16)}, "kv_cache must be bfloat16 of shape 8x4x1x64"),
        ({"weight_dq": np.zeros((48, 31), cases.BF16)}, "weight_uq_qr must be|rmsnorm_gamma_cq must be"),
        ({"rope_sin": torch.zeros(9, 32, device="meta")}, "rope_sin must be on"),
        ({"cache_mode": "PA"}, "cache_mode must be one of"),
        ({"smooth_scales_cq": np.ones((1, 32), np.float32)}, "smooth_scales_cq must be None"),
        ({"weight_dq": PanelWeight.from_array(np.zeros((48, 32), cases.BF16))}, "weight_dq must be a tensor on"),
        ({"weight_dq": ROWS}, "weight_dq must be a tensor on"),
        ({"weight_dq": LinearPanels.pack(ROWS)}, "weight_dq must be a tensor on"),
    ],
)
def test_bad_arguments_are_refused_as_on_the_cpu(change, message):
    arguments = on_device(cases.make(np.random.default_rng(0)) | change)
    before = arguments["kv_cache"].clone()
    with pytest.raises(ValueError, match=message):
        ds.mla_prolog_v3(**arguments, backend="triton")
    assert torch.equal(arguments["kv_cache"].view(torch.int16), before.view(torch.int16))
