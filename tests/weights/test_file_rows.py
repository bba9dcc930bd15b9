"""Weights that are read while they are packed: the same panels as from memory, and no scale that is not a number."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

import decodestep as ds
from decodestep.files.gguf_file import GgufFile
from decodestep.models import ModelError
from decodestep.weights.blocks import BLOCKS
from decodestep.weights.file_rows import FilePart, FileRows, FileRowsError
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format
from support import processes

# The bytes of a row of 256 values; where in a block its float16 lie, if not at its beginning alone.
ROW_BYTES = {
    Format.F32: 1024, Format.F16: 512, Format.BF16: 512, Format.Q4_0: 144, Format.Q4_1: 160, Format.Q8_0: 272,
    Format.Q4_K: 144, Format.Q5_K: 176, Format.Q6_K: 210, Format.Q5_0: 176, Format.Q5_1: 192, Format.IQ4_NL: 144,
    Format.IQ4_XS: 136, Format.MXFP4: 136, Format.Q2_K: 84, Format.Q3_K: 110,
}  # fmt: skip
HALVES = {
    Format.Q4_1: (0, 2), Format.Q5_1: (0, 2), Format.Q2_K: (80, 82), Format.Q3_K: (108,), Format.Q4_K: (0, 2),
    Format.Q5_K: (0, 2), Format.Q6_K: (208,),
}  # fmt: skip
K = 256


@pytest.fixture
def numbers_file(tmp_path):
    """An open file of bytes that are no NaN in any format: its number, and the bytes."""
    data = np.random.default_rng(0).integers(0, 100, 3_000_000, np.uint8)
    (tmp_path / "weights").write_bytes(data.tobytes())
    with (tmp_path / "weights").open("r+b") as opened:
        yield opened.fileno(), data


@pytest.mark.slow
@pytest.mark.parametrize("format_", Format)
def test_rows_in_files_make_the_panels_that_they_make_in_memory(numbers_file, format_):
    number, data = numbers_file
    size = ROW_BYTES[format_]
    # Parts that end inside panels and inside what is read at once, one without rows, in an order of their own.
    counts = {900_000: 45, 32: 3_000_000 // 2 // size, 7: 0, 900_001: 70}
    parts = [FilePart(number, at, count, f"from {at}") for at, count in counts.items()]
    rows = np.concatenate([data[p.at : p.at + p.rows * size] for p in parts]).reshape(-1, size)
    weight = FileRows.stack(FileRows(parts[:1], format_, K, size), FileRows(parts[1:], format_, K, size))
    assert weight.shape == (K, len(rows))
    whole = weight.whole()
    assert np.array_equal(whole.rows, rows) and whole.rows.ctypes.data % 64 == 0
    for made in (None, Format.Q8_0, Format.BF16, Format.Q4_0, Format.Q2_K, Format.Q4_K):
        assert np.array_equal(LinearPanels.pack(weight, made).data, LinearPanels.pack(whole, made).data), made


# Run in a process of its own: what packing needs besides the panels, in bytes.
PACK = """
import re, sys
from pathlib import Path
from decodestep.weights.file_rows import FilePart, FileRows
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format

def kilobytes(field):
    return int(re.search(field + ":\\s*([0-9]+)", Path("/proc/self/status").read_text())[1])

with open(sys.argv[1], "rb") as file:
    weight = FileRows([FilePart(file.fileno(), 0, 1 << 15, "rows")], Format.BF16, 256, 512)
    before = kilobytes("VmRSS")
    panels = LinearPanels.pack(weight, Format[sys.argv[2]])
print((kilobytes("VmHWM") - before) * 1024 - panels.nbytes)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads Linux's count of memory")
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_K"])
def test_rows_are_rounded_piece_by_piece(tmp_path, name):
    (tmp_path / "rows").write_bytes(bytes(512 << 15))  # 16 MiB, 32 as float32
    made = processes.run([sys.executable, "-c", PACK, str(tmp_path / "rows"), name])
    assert made.returncode == 0, made.stderr
    assert int(made.stdout) < 6 << 20


@pytest.mark.parametrize("format_", [format_ for format_ in Format if format_ > Format.BF16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_scale_that_is_no_number_is_named(numbers_file, format_, value):
    number, _ = numbers_file
    size = ROW_BYTES[format_]
    last = size - BLOCKS[format_.name].bytes
    bad = b"\xff" if format_ == Format.MXFP4 else np.float16(value).tobytes()
    parts = [FilePart(number, 64, 40, "first"), FilePart(number, 64 + 40 * size, 3000, "second")]
    weight = FileRows(parts, format_, K, size)
    for at in HALVES.get(format_, (0,)):
        place = 64 + (40 + 2999) * size + last + at
        before = os.pread(number, len(bad), place)
        os.pwrite(number, bad, place)
        for read in (weight.whole, lambda: LinearPanels.pack(weight), lambda: LinearPanels.pack(weight, Format.Q8_0)):
            with pytest.raises(FileRowsError, match="second must have finite scales; got NaN or infinity in row 2999"):
                read()
        os.pwrite(number, before, place)
    weight.whole()


def test_files_that_end_and_files_that_cannot_be_read(numbers_file, tmp_path):
    number, _ = numbers_file
    ends = FileRows([FilePart(number, 2_900_000, 100, "this"), FilePart(number, 2_999_000, 2, "that")], Format.F32, K, 1024)
    with pytest.raises(FileRowsError, match="this cannot be read: the file has become shorter"):
        ends.whole()
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(FileRowsError, match="this cannot be read: Is a directory"):
        LinearPanels.pack(FileRows([FilePart(folder, 0, 1, "this")], Format.F32, K, 1024))
    os.close(folder)


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize(("name", "kind"), [("blk.1.ffn_up", "Q4_0"), ("token_embd", "Q8_0"), ("blk.0.attn_k", "Q4_1"),
                                            ("blk.1.attn_q", "Q2_K"), ("blk.1.attn_q", "TQ2_0")])  # fmt: skip
def test_a_model_with_such_a_scale_is_refused(tiny_file, name, kind, dtype):
    at_end = {"Q2_K": 4, "TQ2_0": 2}  # the bytes from the scale to the end of a block of 256
    path = tiny_file(kind=kind, **({"heads": 16, "groups": 4, "hidden": 256} if kind in at_end else {}))
    ds.load(path, dtype=dtype)
    tensor = GgufFile(path).tensors[f"{name}.weight"]
    with path.open("r+b") as opened:
        opened.seek(tensor.place[1] + tensor.nbytes - at_end.get(kind, tensor.nbytes))
        opened.write(np.float16(np.inf).tobytes())
    with pytest.raises(ModelError, match=rf"tensor {name}.weight .*finite"):
        ds.load(path, dtype=dtype)
