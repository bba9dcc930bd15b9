"""The decoder's step and products of every format on emulated ARM processors: the bits of this machine, where it has a fused
multiply-add."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import decodestep as ds
from decodestep.ops.decoder_forward.group_cache import TYPES
from decodestep.weights import Format, LinearPanels, PackedWeight
from support import processes
from support.core_builds import make, needs_fused
from support.decoder_forward_cases import Sizes, copied, step, weights
from support.packed_weights import weight

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
        products = (*layer.mixer.products(), block.gate, block.up, block.down)
        arrays += [layer.attention_norm, layer.ffn_norm, *(product.data for product in products)]
    arrays += [w.norm, w.logits.data, w.embedding.rows]
    arrays += [call[name].astype(np.int64) for name in ("token_ids", "sequence", "positions", "page_table", "wanted")]
    arrays += [call["sin"], call["cos"], before["keys"], before["values"], call["keys"], call["values"], logits]
    write_arrays(path, arrays)


def write_arrays(path: Path, arrays: list[np.ndarray]) -> None:
    path.write_bytes(b"".join(np.int64(array.nbytes).tobytes() + array.tobytes() for array in arrays))


def write_product(path: Path, format_: Format, tokens: int, rng: np.random.Generator) -> None:
    """Products, one of whose tokens is NaN, and what they give here."""
    w = LinearPanels.pack(weight(format_, 512, 70, rng))
    x = rng.normal(size=(tokens, w.inputs)).astype(np.float32)
    x[-1, 3] = np.nan
    sizes = np.array([w.inputs, w.outputs, format_, tokens], np.uint64)
    write_arrays(path, [sizes, w.data, x, ds.linear(x, w)])


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """The programs for ARM, with the files of calls that each is to run."""
    if not (shutil.which(COMPILER) and shutil.which(EMULATOR)):
        pytest.skip(f"needs {COMPILER} and {EMULATOR}")
    directory, rng = tmp_path_factory.mktemp("arm"), np.random.default_rng(5)
    make(directory, "recorded_calls", *CROSS, "DECODESTEP_OPTIMISATION=-O1")
    files = {"decoder_test": [], "linear_panels_test": []}
    for format_, cache in CALLS.items():
        files["decoder_test"].append(directory / f"step-{format_.name}")
        write_call(files["decoder_test"][-1], format_, cache, rng)
    for format_ in Format:
        for tokens in (1, 2, 9):
            files["linear_panels_test"].append(directory / f"product-{format_.name}-{tokens}")
            write_product(files["linear_panels_test"][-1], format_, tokens, rng)
    return {name: [str(directory / name), *map(str, paths)] for name, paths in files.items()}


@needs_fused
@pytest.mark.parametrize("program", ["decoder_test", "linear_panels_test"])
@pytest.mark.parametrize("tier", ["baseline", *PROCESSORS])
def test_the_bits_of_this_machine_on_arm(calls, tier, program):
    wanted = ["-E", "DECODESTEP_ISA=baseline"] if tier == "baseline" else []
    ran = processes.run([EMULATOR, "-cpu", PROCESSORS.get(tier, "max"), *wanted, *calls[program]], timeout=600)
    assert (ran.returncode, ran.stdout) == (0, f"{tier}: passed\n"), ran.stdout + ran.stderr
