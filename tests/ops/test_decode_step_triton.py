"""decode_step's Triton kernels, interpreted where there is no GPU: the bits of the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton.language as tl

import decodestep as ds
from decodestep.ops.decode_step import steps as s
from decodestep.ops.decode_step import triton
from decodestep.ops.decode_step.triton import draw, listed, quick, raced
from support import decode_step_cases as cases
from support import triton_interpreter as gpu
from support.triton_interpreter import guard_zones  # noqa: F401
from test_decode_step import (  # noqa: F401
    ids,
    test_a_row_without_a_candidate_has_no_token,
    test_a_step_does_not_bring_back_what_a_step_before_dropped,
    test_a_token_that_is_named_twice_is_changed_twice,
    test_greedy_takes_the_first_maximum,
    test_hand_examples,
    test_log_probabilities_before_and_after_the_steps,
    test_normalise_gives_log_probabilities,
    test_patches_change_their_tokens_alone,
    test_refuses,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # infinities and NaN have their stated meanings


@pytest.fixture(autouse=True)
def _on_the_device(monkeypatch):
    gpu.serve(monkeypatch, "decode_step")


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks a row and several programs, with few tokens."""
    whole = triton.Workspace
    monkeypatch.setattr(triton, "Workspace", lambda b, v, d, block=128: whole(b, v, d, block=block, programs=6))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(10))
def test_random_calls_have_the_bits_of_the_reference(seed, monkeypatch):
    monkeypatch.setattr(cases, "VOCABULARIES", (1, 2, 15, 17, 100, 200, 300))
    logits, steps, options = cases.call(np.random.default_rng(seed))
    result = ds.decode_step(gpu.on_device(logits), steps, **{"need_processed": True, **options}, backend="triton")
    want = ds.decode_step(np.array(logits), steps, **{"need_processed": True, **options}, backend="reference")
    assert result.tokens.tolist() == want.tokens.tolist()
    np.testing.assert_array_equal(gpu.on_host(result.processed), want.processed)
    assert result.logprobs == want.logprobs


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(100, 120))
def test_random_calls_give_the_tokens_of_the_reference(seed, monkeypatch):
    monkeypatch.setattr(cases, "VOCABULARIES", (1, 2, 17, 300, 1000))
    logits, steps, options = cases.call(np.random.default_rng(seed))
    options = {name: options[name] for name in ("greedy", "seed", "position")}
    got = ds.decode_step(gpu.on_device(logits), steps, **options, backend="triton")
    assert got.tokens.tolist() == ds.decode_step(np.array(logits), steps, **options, backend="reference").tokens.tolist()


@pytest.mark.skipif(gpu.DEVICE == "cuda", reason="a compiled kernel keeps the constants that it was compiled with")
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (draw, "_SLACK", 50.0),  # every race is too close for estimates
        (raced, "_ERROR_OF_WEIGHT", 1.0),  # no sum decides
        (raced, "_ERROR_OF_ADDITION", 1.0),
        (listed, "_ESTIMATE", 1.0),
        (quick, "_LARGEST_SCORE", 0.0),  # every row is left to the general steps
    ],
)
def test_what_estimates_leave_open_is_decided_exactly(module, name, value, monkeypatch):
    monkeypatch.setattr(module, name, tl.constexpr(value))
    rng = np.random.default_rng(4)
    logits = rng.normal(0, 2, (6, 150)).astype(np.float32)
    logits[3] = np.round(logits[3])
    rows = [
        [s.TopK(30), s.TopP(0.7)],
        [s.TopP(0.4)],
        [s.Temperature(0.7), s.TopP(0.8), s.MinP(0.1)],
        [s.TopK(9)],
        [],
        [s.MinP(0.2)],
    ]
    got = ds.decode_step(gpu.on_device(logits), rows, seed=range(6), position=7, backend="triton")
    assert got.tokens.tolist() == ds.decode_step(logits, rows, seed=range(6), position=7, backend="reference").tokens.tolist()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("few_rows", [0, 32])
def test_winners_that_fail_again_and_again(few_rows, monkeypatch):
    """Rows that take two, three and four races: by these seeds the winners before are outside of the nucleus."""
    monkeypatch.setattr(triton, "_FEW_ROWS", few_rows)
    logits = np.tile(np.random.default_rng(12).normal(0, 0.1, 200).astype(np.float32), (3, 1))
    rows, seeds = [[s.TopP(0.5)]] * 3, [4, 2, 3]
    got = ds.decode_step(gpu.on_device(logits), rows, seed=seeds, backend="triton")
    assert got.tokens.tolist() == ds.decode_step(logits, rows, seed=seeds, backend="reference").tokens.tolist()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("strips", [16, 4096])
def test_rows_whose_candidates_no_list_holds(strips, monkeypatch):
    """Of more strips than are compared, and with more ties than the list has places."""
    monkeypatch.setattr(triton, "_MOST_STRIPS", strips)
    logits = np.stack([np.arange(600) / 8, np.zeros(600)]).astype(np.float32)
    rows = [[s.TopK(5)]] * 2
    got = ds.decode_step(gpu.on_device(logits), rows, seed=[1, 2], backend="triton")
    assert got.tokens.tolist() == ds.decode_step(logits, rows, seed=[1, 2], backend="reference").tokens.tolist()


LN = np.log(np.array([0.125, 0.5, 0.125, 0.25], np.float32))
EVERY_KIND = [
    [s.Penalise(ids(0, 1, 0), 2.0), s.TopP(0.6)],
    [s.Add(ids(3, 0, 3), np.array([1.5, -1.0, 1.0])), s.TopP(0.5)],
    [s.Lift(ids(1, 2), 0.5), s.MinP(0.4, keep=3)],
    [s.Ban(ids(1, 1)), s.TopK(1, keep=2)],
    [s.Allow(ids(3, 0, 1)), s.Typical(0.5)],
    [s.Ban(ids(2)), s.Force(ids(2)), s.Normalise()],
    [s.Temperature(1e-40), s.TopP(0.8)],
    [s.Epsilon(0.2), s.Normalise()],
    [s.Eta(0.9, keep=2)],
    [s.TopH(0.9, top=3)],
    [s.TopNSigma(1.0)],
    [s.Xtc(0.2, 1.0, 2**63 + 7)],
    [s.Xtc(0.1, 1.0, 7, (3, 99, 0))],
    [s.Ban(ids(0, 1, 2, 3))],
    [],
]


def test_every_kind_of_step_in_one_batch():
    logits = np.stack([LN] * len(EVERY_KIND))
    options = {"seed": 2**64 - 1, "position": 2**32 - 1, "need_processed": True, "top_logprobs": [2] * len(logits)}
    got = ds.decode_step(gpu.on_device(logits), EVERY_KIND, backend="triton", **options)
    want = ds.decode_step(logits, EVERY_KIND, backend="reference", **options)
    np.testing.assert_array_equal(gpu.on_host(got.processed), want.processed)
    assert got.tokens.tolist() == want.tokens.tolist()
    assert got.logprobs == want.logprobs


@pytest.mark.parametrize("programs", [1, 64])
def test_a_token_does_not_depend_on_how_many_programs_share_its_row(programs):
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(3, 3000)).astype(np.float16)
    logits[1, [5, 2000, 2999]] = np.inf  # of these one wins, wherever its program is
    logits[2] = -np.inf
    want = ds.decode_step(logits, [[]] * 3, seed=[1, 2, 3], position=9).tokens
    work = triton.Workspace(3, 3000, gpu.DEVICE, block=256, programs=programs)
    assert (work.parts == 1) == (programs == 1)
    column = [gpu.on_device(np.array(c)) for c in (np.zeros(3, np.int8), np.array([1, 2, 3]), np.array([9, 9, 9]))]
    table = triton.device_table([[]] * 3, 3000, gpu.DEVICE)
    assert triton.launch(gpu.on_device(logits), table, *column, work).tolist() == want.tolist()


def test_a_launch_allocates_nothing_and_waits_for_nothing(monkeypatch):
    """So that a graph can hold it: what it reads may be overwritten between replays."""
    logits = gpu.on_device(np.stack([LN, LN]))
    work = triton.Workspace(2, 4, gpu.DEVICE)
    steps = [[[s.TopP(p)], []] for p in (0.3, 1.0)]
    tables = [triton.device_table(each, 4, gpu.DEVICE) for each in steps]
    greedy = torch.zeros(2, dtype=torch.int8, device=gpu.DEVICE)
    positions = torch.zeros(2, dtype=torch.int64, device=gpu.DEVICE)
    seeds = gpu.on_device(np.array([1, 1]))
    want = [ds.decode_step(np.stack([LN, LN]), each, seed=1, backend="reference").tokens.tolist() for each in steps]
    assert want == [[1, 3], [3, 3]]

    with monkeypatch.context() as patch:
        gpu.forbid_allocations(patch)
        gpu.forbid_copies_to_host(patch, 0)
        triton.launch(logits, tables[0], greedy, seeds, positions, work)
    assert work.tokens.tolist() == want[0]
    for name in ("floats", "ways", "amounts"):
        getattr(tables[0], name).copy_(getattr(tables[1], name))
    assert triton.launch(logits, tables[0], greedy, seeds, positions, work).tolist() == want[1]


@pytest.mark.parametrize("need_scores", [False, True])
def test_a_workspace_serves_smaller_calls(need_scores):
    rng = np.random.default_rng(11)
    logits = rng.normal(0, 2, (3, 300)).astype(np.float32)
    rows = [[s.Ban(ids(7, 8)), s.TopP(0.4)], [s.Penalise(ids(5), 1.3), s.TopK(5)], [s.Temperature(0.7)]]
    work = triton.Workspace(5, 700, gpu.DEVICE, block=128, programs=6)
    column = [gpu.on_device(np.array(c)) for c in (np.zeros(3, np.int8), np.array([1, 2, 3]), np.array([9, 9, 9]))]
    table = triton.device_table(rows, 300, gpu.DEVICE)
    got = triton.launch(gpu.on_device(logits), table, *column, work, need_scores=need_scores)
    want = ds.decode_step(logits, rows, seed=[1, 2, 3], position=9, backend="reference").tokens
    assert got.tolist() == want.tolist()


WAYS = {"listed": (9, 0.9), "raced": (300, 0.4), "plain": (300, 1.0), "general": (280, 0.4)}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("later", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_a_launch_serves_a_later_table_whose_rows_go_another_way(first, later):
    logits = np.random.default_rng(5).normal(0, 2, (1, 300)).astype(np.float32)
    rows = [[[s.TopK(k), s.TopP(p)]] for k, p in (WAYS[first], WAYS[later])]
    ours, theirs = (triton.device_table(row, 300, gpu.DEVICE) for row in rows)
    work = triton.Workspace(1, 300, gpu.DEVICE)
    greedy, seeds, positions = (gpu.on_device(np.array(c)) for c in (np.zeros(1, np.int8), np.array([3]), np.array([9])))
    there = gpu.on_device(logits)

    def token(row, seed):
        return ds.decode_step(logits, row, seed=seed, position=9, backend="reference").tokens.tolist()

    before = token(rows[0], 3)
    assert triton.launch(there, ours, greedy, seeds, positions, work).tolist() == before
    for name in ("integers", "floats", "ways", "amounts"):
        getattr(ours, name).copy_(getattr(theirs, name))
    seed = next(seed for seed in range(4, 100) if token(rows[1], seed) != before)
    seeds.fill_(seed)
    assert triton.launch(there, ours, greedy, seeds, positions, work).tolist() == token(rows[1], seed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 3, dtype=torch.int32)}, "logits must be float32 or float16 or bfloat16"),
        ({"logits": torch.zeros(2, 3, dtype=torch.float64)}, "logits must be float32 or float16 or bfloat16"),
        ({"logits": torch.zeros(2, 0)}, "V >= 1"),
        ({"steps": [[]]}, "steps must be given for 2 rows"),
        ({"steps": [[], [s.Ban(ids(3))]]}, "steps must be about at most 3 ids"),
        ({"seed": -1}, "seed must be integers in"),
        ({"logits": np.zeros((2, 3), np.float32)}, "needs torch tensors on a GPU"),
    ],
)
def test_bad_arguments_are_refused_as_on_the_cpu(change, message):
    arguments = {"logits": torch.zeros(2, 3), "steps": [[], []], **change}
    if isinstance(arguments["logits"], torch.Tensor):
        arguments["logits"] = arguments["logits"].to(gpu.DEVICE)
    with pytest.raises(ValueError, match=message):
        ds.decode_step(**arguments, backend="triton")


def test_without_the_interpreter_a_tensor_on_the_cpu_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="needs torch tensors on a GPU"):
        ds.decode_step(torch.zeros(1, 3), [[]], backend="triton")
