"""The native core under random calls, and calls whose arrays change: as it is, and with the address and undefined-behaviour
sanitizers."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuzz_changes
import fuzz_native
from decodestep import _native
from support import core_builds, processes
from support.native_call_arguments import Held, Source, Temporary, built
from support.project import ROOT, TESTS

# The C++ runtime comes too: its exceptions must be there when the sanitizer looks for them.
LIBRARIES = {"address,undefined": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}


def test_every_entry_point_is_called():
    entries = {name for name, value in vars(_native).items() if not name.startswith("_") and callable(value)}
    assert entries == set(fuzz_native.CALLS) | fuzz_native.WITHOUT_ARGUMENTS | fuzz_native.ADDRESSES


REFUSES_NO_VALUE = {"token_ids", "tensor_scatter_in_place"}  # every value is right; what it declines is refused in Python
CALLS_OF_EACH = 150  # of which several are right, several wrong in a value, and several wrong in a type


def test_random_calls_return_or_refuse():
    counts = fuzz_native.run(_native, calls=CALLS_OF_EACH * len(fuzz_native.CALLS), seed=1)
    for name in fuzz_native.CALLS:
        refuses_values = counts[f"{name}: ValueError"] or name in REFUSES_NO_VALUE
        assert counts[f"{name}: result"] and refuses_values and counts[f"{name}: TypeError"], name


def temporary(value: Any, outputs: Collection[str] = ()) -> Any:
    """The arguments with a Temporary for every array but those."""
    if isinstance(value, np.ndarray):
        return Temporary(value) if value.size else value
    if isinstance(value, Held):
        return Held(value.name, temporary(value.arguments))
    if type(value) is dict:
        return {key: item if key in outputs else temporary(item) for key, item in value.items()}
    return type(value)(map(temporary, value)) if type(value) in (list, tuple) else value


EXACTLY_NUMPY = {"decode_step", "step_rows", "Row", "tensor_scatter", "tensor_scatter_in_place"}  # take no other arrays
WRITES_NO_ARRAY = {
    "Decoder",
    "History",
    "SequenceEndings",
    "accept_tokens",
    "append_token",
    "continuations",
    "endings",
    "followers",
    "pin_workers",
    "tally",
    "token_ids",
    "truncate_history",
}


@pytest.mark.parametrize("name", sorted(fuzz_native.CALLS.keys() - EXACTLY_NUMPY - WRITES_NO_ARRAY))
def test_what_arrays_export_is_held_through_a_call(name):
    compared = 0
    for number in range(20):
        given, plain, exported = (fuzz_native.CALLS[name](Source(2, number)) for _ in range(3))
        for call in (plain, exported):  # tokens with one place are written in an order
            call.update({"threads": 1} if "threads" in call else {})
        try:
            getattr(_native, name)(**{key: built(_native, value) for key, value in plain.items()})
        except ValueError:  # some are refused
            continue
        arrays = {key: value for key, value in plain.items() if isinstance(value, np.ndarray)}
        written = {key: array.tobytes() for key, array in arrays.items() if array.tobytes() != given[key].tobytes()}
        arguments = temporary(exported, written)
        getattr(_native, name)(**{key: built(_native, value) for key, value in arguments.items()})
        written.pop("costs", None)  # times
        assert {key: arguments[key].tobytes() for key in written} == written, number
        compared += len(written)
    assert compared


def changes_during_calls(*options: str, **environment: str) -> None:
    """In a process of its own: before arrays were copied, most entry points crashed."""
    command = [sys.executable, str(TESTS / "fuzz_changes.py"), *options]
    fuzz = processes.run(command, env=os.environ | environment, timeout=600)
    assert fuzz.returncode == 0, fuzz.stderr[-5000:]
    for name in fuzz_changes.CALLS:
        assert f"{name}: result" in fuzz.stdout, fuzz.stdout


def test_arrays_that_change_during_a_call():
    changes_during_calls("--seconds", "4")


def build(sanitizers: str, tier: str) -> tuple[Path, dict[str, str]]:
    """The core built with them for a tier, in a folder that keeps its objects, so that a later run compiles what has changed;
    and the environment that chooses the tier and loads the sanitizers before Python's own memory is handed out."""
    directory = ROOT / "build" / f"{sanitizers.replace(',', '-')}-{tier}"
    core = core_builds.compiled(directory, SANITIZE=sanitizers, TIERS=tier)
    libraries = [processes.run(["g++", f"-print-file-name={name}"], check=True).stdout.strip()
                 for name in (*LIBRARIES[sanitizers], "libstdc++.so")]  # fmt: skip
    if not all(os.path.isabs(library) for library in libraries):
        pytest.skip("the compiler has no sanitizer libraries")
    return core, {**os.environ, "LD_PRELOAD": ":".join(os.path.realpath(library) for library in libraries),
                  "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1", "DECODESTEP_ISA": tier}  # fmt: skip


@pytest.fixture(scope="module")
def sanitized():
    return build("address,undefined", _native.isa())


def run_tests_with_threads(core: Path, environment: dict[str, str]) -> None:
    files = [str(TESTS / f"{name}.py") for name in ("core/test_parallel", "ops/test_decoder_forward_threads")]
    # The contexts that are cut and shared in every way; others do nothing that these do not.
    chosen = "operators or callers or (contexts and 600)"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *files]
    ran = processes.run(command, cwd=ROOT, env=environment | {"DECODESTEP_TEST_CORE": str(core)}, timeout=900)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-5000:]


def make_random_calls(core: Path, environment: dict[str, str]) -> None:
    calls = str(CALLS_OF_EACH * len(fuzz_native.CALLS))
    command = [sys.executable, str(TESTS / "fuzz_native.py"), "--calls", calls, "--core", str(core)]
    fuzz = processes.run(command, env=environment, timeout=600)
    assert fuzz.returncode == 0, fuzz.stderr[-5000:]
    assert f"calls on {environment['DECODESTEP_ISA']}" in fuzz.stdout


@pytest.mark.slow
def test_random_calls_under_sanitizers(sanitized):
    make_random_calls(*sanitized)


@pytest.mark.slow
@pytest.mark.tiers
def test_random_calls_on_the_baseline_under_sanitizers():
    if _native.isa() == "baseline":
        pytest.skip("the other test runs on it")
    make_random_calls(*build("address,undefined", "baseline"))


@pytest.mark.slow
def test_arrays_that_change_during_a_call_under_sanitizers(sanitized):
    core, environment = sanitized
    changes_during_calls("--seconds", "6", "--core", str(core), **environment)


@pytest.mark.slow
def test_threads_under_sanitizers(sanitized):
    run_tests_with_threads(*sanitized)


@pytest.mark.slow
@pytest.mark.skipif("DECODESTEP_THREAD_SANITIZER" not in os.environ, reason="a second build: where the environment asks for it")
def test_threads_under_the_thread_sanitizer():
    run_tests_with_threads(*build("thread", _native.isa()))
