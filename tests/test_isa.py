"""Every build of the kernels that this machine can run passes the kernels' own tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import processes
from builds import printed_under
from decodestep import _native

ROOT = Path(__file__).parent.parent
STEMS = (
    "decode_step",
    "linear",
    "mla_attention",
    "mla_prolog",
    "mla_prolog_panels",
    "decoder_forward",
    "decoder_forward_latent",
    "expert_router",
    "mixture_of_experts",
    "rms_norm",
    "swiglu",
    "top_k_top_p_sample_native",
)
KERNELS = [f"tests/test_{stem}.py" for stem in STEMS]
# What compares builds is run once for all; statistics of draws that other tests compare bit by bit, and comparisons with
# transformers, need one build.
CHOSEN = "not every_build and not draws_follow and not against_transformers"
ASK = "from decodestep import _native; print(_native.isa())"


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_kernels_on(isa):
    if isa == _native.isa():
        pytest.skip("the tests themselves run on it")
    assert printed_under(isa, ASK) == isa
    environment = {**os.environ, "DECODESTEP_ISA": isa}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN, *KERNELS]
    tests = processes.run(command, cwd=ROOT, env=environment, timeout=1800)
    assert tests.returncode == 0, tests.stdout[-3000:]


@pytest.mark.parametrize("name", ["avx9", "AVX2", ""])
def test_a_name_that_this_machine_lacks_is_refused(name):
    environment = {**os.environ, "DECODESTEP_ISA": name}
    refused = processes.run([sys.executable, "-c", ASK], env=environment)
    assert refused.returncode == 1
    message = refused.stderr.splitlines()[-1]
    assert message.startswith("ImportError: isa: DECODESTEP_ISA must be one of baseline") and message.endswith(
        f"; got '{name}'"
    )
