"""The decoder's step on emulated ARM processors: the bits of this machine, where it has a fused multiply-add."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import decodestep as ds
import processes
from builds import compiled
from decoder_cases import Sizes, copied, step, weights
from decodestep import _native
from decodestep.ops.decoder_forward.group_cache import TYPES
from decodestep.weights import Format, PackedWeight

BFLOAT16, FLOAT16, INT8 = TYPES
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
CROSS = ("CMAKE_SYSTEM_NAME=Linux", "CMAKE_SYSTEM_PROCESSOR=aarch64", f"CMAKE_CXX_COMPILER={COMPILER}")
# By tier a processor that has no more.
PROCESSORS = {"neon": "cortex-a53", "neon_dotprod": "cortex-a76", "neon_i8mm": "max"}
CALLS = {Format.F32: FLOAT16, Format.BF16: BFLOAT16, Format.Q8_0: INT8}  # the type of the cache
CACHE_TYPES = [None, FLOAT16, BFLOAT16, INT8]  # by the numbers of csrc/attention/cache_type.h


def write_call(path: Path, format_: Format, cache: np.dtype, rng: np.random.Generator) -> None:
    """A call, one of whose tokens is NaN, and what it gives here."""
    w = weights(Sizes(), format_, rng)
    embedding = w.embedding.dense(np.float32)
    embedding[:, -1] = np.nan
    w = replace(w, embedding=PackedWeight.from_array(embedding))
    call = step(w, [300, 5, 40], rng, cache=cache)
    call["token_ids"] %= w.vocab_size - 1
    call["token_ids"][200] = w.vocab_size - 1
    before = copied(call)
    logits = ds.decoder_forward(**call)
    pages, table = call["keys"].shape[2], call["page_table"]
    sizes = [
        w.hidden,
        w.heads,
        w.kv_heads,
        w.head_dim,
        w.layers[0].feed_forward.width,
        w.vocab_size,
        len(w.layers),
        pages,
        table.shape[1],
        format_,
        CACHE_TYPES.index(cache),
    ]
    arrays = [np.array(sizes, np.uint64), np.array([w.norm_eps, w.scale], np.float32)]
    for layer in w.layers:
        block = layer.feed_forward
        products = (*layer.attention.products(), block.gate, block.up, block.down)
        arrays += [layer.attention_norm, layer.ffn_norm, *(product.data for product in products)]
    arrays += [w.norm, w.logits.data, w.embedding.rows]
    arrays += [call[name].astype(np.int64) for name in ("token_ids", "sequence", "positions", "page_table", "wanted")]
    arrays += [call["sin"], call["cos"], before["keys"], before["values"], call["keys"], call["values"], logits]
    path.write_bytes(b"".join(np.int64(array.nbytes).tobytes() + array.tobytes() for array in arrays))


@pytest.fixture(scope="module")
def decoder_test(tmp_path_factory):
    """The program for ARM, and the files of calls that it is to run."""
    if not (shutil.which(COMPILER) and shutil.which(EMULATOR)):
        pytest.skip(f"needs {COMPILER} and {EMULATOR}")
    directory, rng = tmp_path_factory.mktemp("arm"), np.random.default_rng(5)
    program = compiled(directory / "build", *CROSS, target="decoder_test", OPTIMISATION="-O1")
    for format_, cache in CALLS.items():
        write_call(directory / format_.name, format_, cache, rng)
    return [str(program), *(str(directory / format_.name) for format_ in CALLS)]


@pytest.mark.skipif(_native.isa() == "baseline", reason="x86's baseline rounds a product and its sum one after the other")
@pytest.mark.parametrize("tier", ["baseline", *PROCESSORS])
def test_a_step_has_the_same_bits_on_arm(decoder_test, tier):
    wanted = ["-E", "DECODESTEP_ISA=baseline"] if tier == "baseline" else []
    command = [EMULATOR, "-cpu", PROCESSORS.get(tier, "max"), *wanted, *decoder_test]
    ran = processes.run(command, timeout=600)
    assert (ran.returncode, ran.stdout) == (0, f"{tier}: passed\n"), ran.stdout + ran.stderr
