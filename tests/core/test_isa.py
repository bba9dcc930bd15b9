"""Every build of the kernels that this machine can run passes the kernels' own tests."""

from __future__ import annotations

import os
import platform
import re
import sys

import pytest

from decodestep import _native
from support import processes
from support.core_builds import TIERS, compiled, make, printed_under
from support.project import ROOT

STEMS = (
    "causal_conv1d",
    "decode_step",
    "lightning_indexer",
    "linear",
    "mla_attention",
    "mla_prolog",
    "mla_prolog_panels",
    "decoder_forward",
    "decoder_forward_latent",
    "decoder_forward_recurrent",
    "expert_router",
    "mixture_of_experts",
    "gated_delta_rule",
    "state_operators",
    "rms_norm",
    "sparse_mla_attention",
    "selective_state_update",
    "swiglu",
    "top_k_top_p_sample_native",
)
KERNELS = [*(f"tests/ops/test_{stem}.py" for stem in STEMS), "tests/weights/test_quantise_blocks.py"]
# What compares tiers is run once for all; statistics of draws that other tests compare bit by bit, and comparisons with
# transformers, need one build.
CHOSEN = "not tiers and not draws_follow and not against_transformers"
ASK = "from decodestep import _native; print(_native.isa())"


@pytest.mark.tiers
@pytest.mark.parametrize("isa", TIERS)
def test_the_kernels_tests_pass_on(isa):
    if isa == _native.isa():
        pytest.skip("the tests themselves run on it")
    assert printed_under(isa, ASK) == isa
    run_kernels({"DECODESTEP_ISA": isa})


def run_kernels(environment):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN, *KERNELS]
    tests = processes.run(command, cwd=ROOT, env=os.environ | environment, timeout=7200)
    assert tests.returncode == 0, tests.stdout[-3000:]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    if "DECODESTEP_EMULATE_AVX512" not in os.environ or _native.isa() == "baseline":
        pytest.skip("minutes to compile: where the environment asks for it, on a machine with AVX2")
    return compiled(tmp_path_factory.mktemp("emulated"), EMULATE_AVX512="ON")


@pytest.mark.parametrize("isa", ["avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16"])
def test_kernels_on_emulated(emulated, isa):
    """What a machine lacks, by tests/core/emulated_avx512.h."""
    run_kernels({"DECODESTEP_ISA": isa, "DECODESTEP_TEST_CORE": str(emulated)})


@pytest.mark.slow
@pytest.mark.parametrize(("wanted", "built"), [("native", ("baseline", TIERS[-1])), (TIERS[-1], (TIERS[-1],))])
def test_a_build_has_the_tiers_that_it_is_given(tmp_path, wanted, built):
    make(tmp_path, "help", f"DECODESTEP_TIERS={wanted}")
    header = (tmp_path / "generated" / "core" / "tiers.h").read_text()
    assert re.findall(r"X\((\w+), true\)", header) == list(dict.fromkeys(built))


@pytest.mark.slow
def test_arm_is_asked_for_in_the_compilers_words(tmp_path):
    """g++ for x86, like zig's compiler, knows no processor or architecture of that name."""
    make(tmp_path, "help", "COMPILES_FOR_X86=OFF", "COMPILES_FOR_ARM=ON", "DECODESTEP_TIERS=all")
    flags = "-march=armv8.2-a" if platform.machine() == "aarch64" else "-mcpu=generic+v8_2a"
    build = (tmp_path / "build.ninja").read_text()
    assert set(re.findall(r"-m(?:arch|cpu)=\S+", build)) == {flags + "+dotprod", flags + "+dotprod+i8mm"}


@pytest.mark.parametrize("name", ["avx9", "AVX2", ""])
def test_a_name_that_this_machine_lacks_is_refused(name):
    environment = {**os.environ, "DECODESTEP_ISA": name}
    refused = processes.run([sys.executable, "-c", ASK], env=environment)
    assert refused.returncode == 1
    message = refused.stderr.splitlines()[-1]
    rule = f"must be one of {', '.join(TIERS)}, which this core and this machine have"
    assert message == f"ImportError: isa: DECODESTEP_ISA {rule}; got '{name}'"


def test_a_tier_without_kernels_here_is_refused_and_not_replaced():
    """Each of the table: what this machine has is named as something to build, what it lacks as something that it lacks."""
    rows = [line.split() for line in (ROOT / "csrc" / "core" / "tiers.txt").read_text().splitlines()]
    names = [row[1] for row in rows if row and row[0] in ("any", "x86", "arm")]
    assert set(TIERS) <= set(names)
    for name in set(names) - set(TIERS):
        refused = processes.run([sys.executable, "-c", ASK], env={**os.environ, "DECODESTEP_ISA": name})
        message = refused.stderr.splitlines()[-1]
        assert "isa: this core is not built for " + name in message or message.endswith(f"; got '{name}'")
