"""Small calls of MlaProlog with their schedules, edits of schedules, and what to compare results by."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import decodestep as ds
from decodestep.npu_schedule import Design, Flag, Schedule, SetFlag, WaitFlag, mla_prolog_schedule
from support.mla_prolog_cases import copied, make, parts
from support.tolerances import assert_close

SMALL = {"hidden": 48, "hcq": 32, "hckv": 64, "nope": 16, "rope": 32}
NAMES = ("query", "query_rope", "kv_cache", "kr_cache", "dequant_scale_q_nope")


def call_of(scenario: str, mode: str, tokens: int, heads: int, seed: int = 0, **sizes: Any) -> dict[str, Any]:
    """Arguments of mla_prolog_v3 in which no two tokens share a cache row."""
    rng = np.random.default_rng(seed)
    made = SMALL | sizes
    symbols = {"He": made["hidden"], "Hcq": made["hcq"], "Hckv": made["hckv"], "D": made["nope"], "Dr": made["rope"]}
    block = made.get("block", 16)
    merged = mode != "BSND"
    call = make(rng, scenario, mode, merged, B=1, S=tokens, N=heads, block=block, blocks=tokens // block + 2, **symbols)
    rows = (tokens // block + 2) * block
    if mode in ("PA_BSND", "PA_NZ"):
        slots = rng.permutation(rows)[:tokens]
        call["cache_index"] = np.where(rng.random(tokens) < 0.1, -1, slots)
    elif mode.startswith("PA_BLK"):
        call["cache_index"] = rng.permutation(tokens // block + 2)[: len(call["cache_index"])]
    return call


def schedule_of(
    scenario: str, tokens: int, heads: int, cubes: int, group: int = 2, design: Design | None = None, **sizes: Any
) -> Schedule:
    known = scenario.removesuffix("_TILE")  # tiles change what the cache rows hold, not who computes them
    plan = ds.mla_prolog_plan(tokens, heads, scenario=known, aic=cubes, aiv=cubes * group, **(SMALL | sizes))
    return mla_prolog_schedule(plan, design, group=group)


def reference(call: dict[str, Any]) -> dict[str, np.ndarray]:
    made = copied(call)
    result = ds.mla_prolog_v3(**made, backend="reference")
    return {**result._asdict(), "kv_cache": made["kv_cache"], "kr_cache": made["kr_cache"]}


def agrees(simulated: Any, want: dict[str, np.ndarray], latent: int = 64, rope: int = 32) -> None:
    """int8 within one unit, the others within their dtype's tolerance, as sums are added in another order."""
    for name in NAMES:
        got = getattr(simulated, name)
        if got is None:
            assert want.get(name) is None
            continue
        expected = parts(name, np.asarray(want[name]).reshape(got.shape), latent, rope)
        for part, actual in parts(name, got, latent, rope).items():
            if actual.dtype == np.int8:
                assert np.abs(actual.astype(int) - expected[part].astype(int)).max(initial=0) <= 1, part
            elif part == "dequant_scale_q_nope" or part == "tile_scale":  # follows the largest of bfloat16 values
                np.testing.assert_allclose(actual, expected[part], rtol=2.0**-7)
            else:
                assert_close(actual, expected[part])


def same_bits(a: Any, b: Any) -> bool:
    """Whether two simulations computed the same: every legal order of a schedule adds in the same order."""
    pairs = [(getattr(a, name), getattr(b, name)) for name in NAMES]
    return all(x is y or x.tobytes() == y.tobytes() for x, y in pairs)


def mutated(schedule: Schedule, rng: random.Random) -> Schedule:
    """One random edit of flags or of the order of instructions; it need not leave a schedule."""
    core = rng.choice(schedule.cores)
    program = schedule.programs[core]
    flagged = [n for n, i in enumerate(program) if isinstance(i, (SetFlag, WaitFlag))]
    at = rng.choice(flagged)
    instruction = program[at]
    match rng.randrange(7):
        case 0:
            return schedule.drop(core, at)
        case 1:
            return schedule.insert(core, at, instruction)
        case 2:
            other = rng.randrange(max(0, at - 3), min(len(program), at + 4))
            return schedule.swap(core, at, other)
        case 3:
            return schedule.without(instruction.flag)
        case 4:
            name = rng.choice(list(schedule.flags))
            flag = Flag(rng.choice((6, 7, 9)), schedule.flags[name].mode)
            return Schedule(schedule.plan, schedule.design, schedule.sizes, {**schedule.flags, name: flag}, schedule.programs)
        case 5:
            if isinstance(instruction, SetFlag):
                pipes = ("MTE2", "M", "FIX") if core.kind == "cube" else ("MTE2", "V", "MTE3")
                return schedule.edit(core, at, [SetFlag(instruction.flag, rng.choice(pipes), instruction.step)])
            return schedule.edit(core, at, [WaitFlag(rng.choice(list(schedule.flags)), instruction.step)])
    moved = rng.randrange(len(program))
    return schedule.swap(core, at, moved)
