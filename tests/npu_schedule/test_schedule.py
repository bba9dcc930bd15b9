"""MlaProlog's schedule: its programs compute what the reference does, and the checker knows what each flag is for."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import decodestep as ds
from decodestep._base.checks import RequestError
from decodestep.npu_schedule import (
    Core,
    Design,
    Flag,
    SetFlag,
    WaitFlag,
    audit,
    check,
    execution,
    graph_of,
    interleaving,
    mla_prolog_schedule,
    simulate,
)
from decodestep.npu_schedule.extent import instructions
from decodestep.npu_schedule.frame import build_frame
from support.mla_prolog_cases import INT8_SCENARIOS, V2, legal
from support.schedule_cases import SMALL, agrees, build_call, build_schedule, mutated, reference, same_bits
from support.schedule_interleavings import truth

SIZES = [(1, 1, 1), (7, 8, 3), (129, 1, 2), (130, 9, 5)]  # tokens, heads, cube cores


@pytest.mark.parametrize("scenario", V2)
@pytest.mark.parametrize(("tokens", "heads", "cubes"), SIZES)
def test_results_are_the_references(scenario, tokens, heads, cubes):
    call = build_call(scenario, "PA_BSND" if heads == 1 else "PA_NZ", tokens, heads)
    kept = call["kv_cache"].copy()
    schedule = build_schedule(scenario, tokens, heads, cubes)
    agrees(simulate(schedule, call), reference(call))
    assert (call["kv_cache"] == kept).all()
    report = check(schedule)
    assert report.ok, str(report)


@pytest.mark.parametrize("scenario", INT8_SCENARIOS)
@pytest.mark.parametrize("mode", ["PA_BSND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ", "BSND", "TND"])
def test_every_cache_mode(scenario, mode):
    if not legal(scenario, mode, merged=mode != "BSND"):
        pytest.skip("no such call")
    sizes = {"hckv": 256} if scenario.endswith("TILE") else {}
    call = build_call(scenario, mode, 5, 2, **sizes)
    agrees(simulate(build_schedule(scenario, 5, 2, 2, **sizes), call), reference(call), sizes.get("hckv", 64))


@pytest.mark.parametrize("scenario", ["NO_QUANT", "FULL_KV"])
def test_any_legal_order_computes_the_same_bits(scenario):
    schedule, call = build_schedule(scenario, 130, 9, 3), build_call(scenario, "PA_BSND", 130, 9)
    graph = graph_of(schedule)
    rng = random.Random(4)
    one = simulate(schedule, call)
    for order in (execution(graph), execution(graph, lambda possible: rng.randrange(len(possible)))):
        assert same_bits(simulate(schedule, call, order=order), one)


@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("scenario", ["PARTIAL", "FULL_KV"])
def test_any_group_of_vector_cores_is_correct(scenario, group):
    call = build_call(scenario, "PA_BSND", 5, 8)
    schedule = build_schedule(scenario, 5, 8, 2, group)
    assert check(schedule).ok
    agrees(simulate(schedule, call), reference(call))


def test_empty_caches_and_no_tokens():
    plan = ds.mla_prolog_plan(3, 2, empty_cache=True, aic=2, aiv=4, **SMALL)
    call = build_call("NO_QUANT", "PA_BSND", 3, 2)
    call |= {"kv_cache": call["kv_cache"][:0], "kr_cache": call["kr_cache"][:0]}
    schedule = mla_prolog_schedule(plan)
    agrees(simulate(schedule, call), reference(call))
    verdicts = {v.flag: v.needed for v in audit(schedule)}
    assert not verdicts["MM_CKVKR"] and not verdicts["VEC_ALL_CKVKR"] and verdicts["MM_CQ"]
    nothing = mla_prolog_schedule(ds.mla_prolog_plan(0, 2))
    assert set(nothing.programs.values()) == {()} and check(nothing).ok


DESIGNS = [
    Design(overlap=True),
    Design(overlap=True, join="copies", preload=True),
    Design(join="copies", ckvkr_first=True, step=32),
    Design(ckvkr_from_last=True, cq_columns=16, ckvkr_columns=32, step=50),
]


@pytest.mark.parametrize("scenario", ["NO_QUANT", "PARTIAL", "FULL_KV"])
@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_other_designs_compute_the_same(scenario, design):
    schedule = build_schedule(scenario, 150, 8, 3, design=design)
    report = check(schedule)
    assert report.ok, str(report)
    call = build_call(scenario, "PA_BSND", 150, 8)
    agrees(simulate(schedule, call), reference(call))


@pytest.mark.parametrize("scenario", V2)
def test_at_the_sizes_of_the_device(scenario):
    schedule = mla_prolog_schedule(ds.mla_prolog_plan(129, 16, scenario=scenario))
    report = check(schedule)
    assert report.ok and not report.overflows


def test_the_published_design_races_between_steps():
    published = Design(join="none")
    report = check(build_schedule("NO_QUANT", 129, 2, 3, design=published))
    assert report.races and not report.deadlocks
    assert {race.tile.buffer for race in report.races} == {"ckvkr"}
    assert "in order with CKVKR_DONE" in str(report)
    assert check(build_schedule("NO_QUANT", 128, 2, 3, design=published)).ok
    assert not check(build_schedule("FULL", 129, 8, 3, design=published)).ok


# Flags


@pytest.mark.parametrize(("scenario", "heads"), [("NO_QUANT", 3), ("PARTIAL", 3), ("FULL_KV", 3), ("FULL_KV", 8)])
def test_without_any_flag_an_interleaving_computes_something_else_or_none_does(scenario, heads):
    schedule = build_schedule(scenario, 129, heads, 3)
    call = build_call(scenario, "PA_BSND", 129, heads)
    right = simulate(schedule, call)
    needed = set()
    for verdict in audit(schedule):
        report, edited = verdict.report, schedule.without(verdict.flag)
        assert not report.deadlocks
        orders = [interleaving(report.graph, late) for race in report.races[:1] for late in (race.first, race.then)]
        if verdict.needed:
            needed.add(verdict.flag)
            assert any(not same_bits(simulate(edited, call, order=order), right) for order in orders), verdict
        else:
            rng = random.Random(1)
            orders = [execution(report.graph, lambda possible, rng=rng: rng.randrange(len(possible))) for _ in range(2)]
            assert all(same_bits(simulate(edited, call, order=order), right) for order in orders), verdict
    assert {"MM_CQ", "VEC_ALL_CQ", "VEC_ALL_NORM", "RMSNORM_CQ", "MM_CKVKR", "VEC_ALL_CKVKR"} <= needed


def test_what_is_redundant_on_one_core_of_each_kind():
    verdicts = {v.flag: v for v in audit(build_schedule("NO_QUANT", 2, 2, 1, 1))}
    assert {flag for flag, v in verdicts.items() if not v.needed} == {
        "VEC_ALL_CQ",
        "VEC_ALL_NORM",
        "VEC_ALL_CKVKR",
        "VEC_ALL_QCQR",
    }
    assert "redundant" in str(verdicts["VEC_ALL_CQ"])
    assert "cube 0 writes qcqr" in str(verdicts["CUBE_ALL"])  # one core, but two of its pipes


@pytest.mark.slow
def test_every_single_set_and_wait_removed():
    schedule = build_schedule("NO_QUANT", 2, 1, 2, 1)
    right, outcomes = truth(graph_of(schedule)), set()
    assert not right.races and not right.stuck
    for core in schedule.cores:
        for position, instruction in enumerate(schedule.programs[core]):
            if isinstance(instruction, (SetFlag, WaitFlag)):
                report = check(schedule.drop(core, position))
                outcomes.add("deadlock" if report.deadlocks else "race" if report.races else "left" if report.leftovers else "")
                if isinstance(instruction, SetFlag):
                    assert report.deadlocks and str(core) in str(report), (core, position)
                else:
                    assert report.races or report.leftovers, (core, position)
    assert outcomes == {"deadlock", "race", "left"}


def compare(schedule) -> str:
    """Check against all interleavings. Returns what there was to find; "" for schedules with too many states."""
    report, want = check(schedule), truth(graph_of(schedule))
    if want is None:
        return ""
    assert {event for event in report.graph.takes if event in want.stuck} >= {d.event for d in report.deadlocks}
    assert bool(report.deadlocks) == bool(want.stuck)
    assert {(min(r.first, r.then), max(r.first, r.then)) for r in report.races} == want.races
    assert bool(report.leftovers) == bool(want.left)
    if not want.stuck:
        for name in schedule.flags:
            waits = [e for e in report.graph.takes if report.graph.events[e].instruction.flag == name]
            assert report.highest[name] == max((want.highest[report.graph.takes[e][0]] for e in waits), default=0)
    return "deadlock" if want.stuck else "race" if want.races else "left" if want.left else "right"


def is_schedule(edited) -> bool:
    """Whether no core uses a value before it makes it, which is refused, not run."""
    try:
        graph_of(edited)
    except RequestError:
        return False
    return True


@pytest.mark.slow
def test_mutations_against_every_interleaving():
    rng, outcomes = random.Random(11), []
    bases = [
        build_schedule("NO_QUANT", 2, 1, 1, 1),
        build_schedule("PARTIAL", 2, 1, 1, 1),
        build_schedule("FULL_KV", 2, 1, 1, 1),
    ]
    bases.append(build_schedule("NO_QUANT", 129, 1, 1, 1))
    while len(outcomes) < 100:
        edited = rng.choice(bases)
        for _ in range(rng.randrange(1, 3)):
            edited = mutated(edited, rng)
        if is_schedule(edited):
            outcomes.append(compare(edited))
    assert min(outcomes.count(kind) for kind in ("race", "deadlock", "right")) > 5


def test_a_counter_with_two_sources_may_be_raised_by_either():
    """One wait for a counter that two cores' flags raise: neither is sure to have come. Two waits: both are."""
    base = build_schedule("NO_QUANT", 2, 1, 2, 1)
    flags = {"ONE": Flag(3, 2), "ALL": Flag(3, 0)}
    cube, first, other = Core("cube", 0), Core("vector", 0), Core("vector", 1)
    load, store = base.programs[first][0], None
    for instruction in base.programs[cube]:
        if hasattr(instruction, "target"):
            store = instruction
            break
    made = base.programs[cube][: base.programs[cube].index(store) + 1]
    read = replace(load, source=store.target)
    for waits, ordered in ((1, False), (2, True)):
        programs = {
            cube: (*made, SetFlag("ONE", "FIX")),
            Core("cube", 1): (),
            first: (SetFlag("ALL", "MTE3"), *[WaitFlag("ONE")] * waits, read),
            other: (SetFlag("ALL", "MTE3"), WaitFlag("ALL")),
        }
        schedule = replace(base, flags=flags, programs=programs)
        assert compare(schedule) == ("right" if ordered else "race")


def test_a_flag_set_by_the_wrong_pipe_tells_too_early():
    schedule = build_schedule("NO_QUANT", 2, 1, 1, 1)
    core = Core("cube", 0)
    at = next(n for n, i in enumerate(schedule.programs[core]) if isinstance(i, SetFlag))
    edited = schedule.edit(core, at, [SetFlag("MM_CQ", "MTE2")])
    assert "cube 0 writes cq" in str(check(edited))


def test_one_cache_row_for_two_tokens_is_a_race():
    schedule = build_schedule("NO_QUANT", 4, 1, 2)
    assert check(schedule, np.array([3, 7, -1, -1])).ok
    report = check(schedule, np.array([3, 7, 3, -1]))
    assert {race.tile.buffer for race in report.races} == {"kv_cache", "kr_cache"} and report.races[0].tile.rows == (3, 4)


def test_counters_that_rise_above_the_devices_limit():
    report = check(build_schedule("PARTIAL", 2, 40, 1))
    assert report.ok and len(report.overflows) == 3
    assert report.highest["QCQR_SPLIT_N"] == 16 and report.highest["DEQUANT_QC_SPLIT_N"] == 40
    assert not check(build_schedule("PARTIAL", 2, 40, 1), flag_limit=40).overflows


# Refusals


def plan_with(**changes):
    return replace(ds.mla_prolog_plan(4, 2, aic=2, aiv=4, **SMALL), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"block_dim": 0},
        {"steps": (3,)},
        {"steps": (0, 4)},
        {"vector_blocks": (1,) * 5},
        {"vector_blocks": (4, 0)},
        {"matmuls": ()},
        {"block_dim": 1},
        {"key": ds.MlaPrologTilingKey(1, 1, 0, 1)},
        {"key": ds.MlaPrologTilingKey(1, 2, 0, 0, 1)},
    ],
    ids=str,
)
def test_plans_that_cannot_be_are_refused(changes):
    with pytest.raises(ValueError, match="^mla_prolog_schedule: "):
        mla_prolog_schedule(plan_with(**changes))


@pytest.mark.parametrize(
    "design",
    [{"step": 0}, {"join": "hope"}, {"cq_columns": 8}, {"core_heads": 0}, {"overlap": True, "join": "none"}, {"preload": 1}],
    ids=str,
)
def test_designs_that_cannot_be_are_refused(design):
    with pytest.raises(ValueError, match="^mla_prolog_schedule: .* must be"):
        mla_prolog_schedule(plan_with(), Design(**design))


@pytest.mark.parametrize(
    "sizes",
    [{"tokens": 2**20}, {"heads": 10**9}, {"hidden": 10**12}, {"hcq": 10**12}, {"nope": 10**12}, {"aic": 10**9}],
    ids=str,
)
def test_programs_too_long_to_be_checked_are_not_begun(sizes):
    plan = ds.mla_prolog_plan(**({"tokens": 32, "heads": 32} | sizes))
    with pytest.raises(ValueError, match=r"^mla_prolog_schedule: plan must be of a schedule of at most \d+ instructions, on"):
        mla_prolog_schedule(plan)
    with pytest.raises(ValueError, match="^mla_prolog_schedule: plan must be of a schedule"):
        mla_prolog_schedule(ds.mla_prolog_plan(32, 32), group=10**9)


@pytest.mark.parametrize("scenario", V2)
@pytest.mark.parametrize(("tokens", "heads", "cubes"), [*SIZES, (300, 128, 2), (4, 40, 5)])
def test_the_length_of_programs_is_known_before(scenario, tokens, heads, cubes):
    plan = ds.mla_prolog_plan(tokens, heads, scenario=scenario, aic=cubes, aiv=3 * cubes)
    for design in (Design(), Design(preload=True, overlap=True, step=50)):
        schedule = mla_prolog_schedule(plan, design, group=3)
        length = sum(map(len, schedule.programs.values()))
        assert length <= instructions(build_frame(plan, schedule.sizes, design)) <= 4 * length


def test_schedules_that_are_none_are_refused():
    schedule = build_schedule("NO_QUANT", 2, 1, 1, 1)
    core = Core("cube", 0)
    last = len(schedule.programs[core])
    call = build_call("NO_QUANT", "PA_BSND", 2, 1)
    for instruction, words in (
        (WaitFlag("MM_KV"), "flag must be one of .*; got 'MM_KV'"),
        (SetFlag("MM_CQ", "MTE3"), "pipe must be one of MTE2, M, FIX; got 'MTE3'"),
        ("wait", "program of cube 0 must be of instructions"),
    ):
        edited = schedule.insert(core, last, instruction)
        for use in (check, lambda s: simulate(s, call)):
            with pytest.raises(ValueError, match=f"^schedule: {words}"):
                use(edited)
    with pytest.raises(ValueError, match=r"^schedule: schedule must be free of deadlocks; got one in which cube 0 waits for"):
        simulate(schedule.insert(core, last, WaitFlag("RMSNORM_CQ")), call)
    with pytest.raises(ValueError, match=r"^schedule: flag must be one of"):
        schedule.without("MM_KV")
    with pytest.raises(ValueError, match=r"^schedule: position must be in \[0"):
        schedule.drop(core, last)


def test_instructions_that_no_core_can_execute():
    schedule, call = build_schedule("NO_QUANT", 2, 1, 1, 1), build_call("NO_QUANT", "PA_BSND", 2, 1)
    core, at = Core("cube", 0), {}
    for position, instruction in enumerate(schedule.programs[core]):
        at.setdefault(type(instruction).__name__, position)
    program = schedule.programs[core]
    load, compute, store = (program[at[kind]] for kind in ("Load", "Compute", "Store"))
    for edited, words in (
        (replace(load, source=load.source._replace(buffer="attic")), "tile to read must be of one of"),
        (replace(load, source=load.source._replace(rows=(0, 3))), "tile must be within token_x, 2 x 48"),
        (replace(store, target=store.target._replace(buffer="token_x")), "tile to write must be of one of"),
        (replace(compute, job=compute.job._replace(kernel="Guess")), "kernel must be one of"),
        (replace(compute, inputs=compute.inputs[:1]), r"inputs and outputs of MatmulCq must be \(2, 1\)"),
    ):
        with pytest.raises(ValueError, match=f"^simulate: {words}"):
            simulate(schedule.edit(core, at[type(edited).__name__], [edited]), call)


def test_calls_of_other_sizes_are_refused():
    schedule = build_schedule("NO_QUANT", 2, 1, 1, 1)
    for call in (
        build_call("NO_QUANT", "PA_BSND", 3, 1),
        build_call("PARTIAL", "PA_BSND", 2, 1),
        build_call("NO_QUANT", "PA_BSND", 2, 2),
    ):
        with pytest.raises(ValueError, match="^simulate: .* as in the schedule|^simulate: scenario must be"):
            simulate(schedule, call)
    call = build_call("NO_QUANT", "PA_BSND", 2, 1)
    with pytest.raises(ValueError, match="^simulate: order must be"):
        simulate(schedule, call, order=execution(graph_of(schedule))[::-1])
