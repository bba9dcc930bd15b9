"""Weights of types without a kernel: the same panels as from memory, whatever the pieces in which they are widened."""

import os
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from decodestep.errors import ModelError
from decodestep.files import tensor_values
from decodestep.files.safetensors_file import read_header
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format, PackedWeight
from decodestep.weights.widened_rows import WidenedRows
from support import processes

K = 256


def in_pieces(rows, lengths):
    ends = np.cumsum(lengths)[:-1]
    return WidenedRows(lambda: iter(np.split(rows, ends)), rows.shape[1], len(rows))


@given(lengths=st.lists(st.integers(0, 70), min_size=1, max_size=6), seed=st.integers(0, 99))
@pytest.mark.parametrize("made", [Format.F32, Format.BF16, Format.Q8_0, Format.Q4_K])
def test_panels_do_not_depend_on_the_pieces(made, lengths, seed):
    rows = np.random.default_rng(seed).standard_normal((sum(lengths), K), np.float32)
    whole, weight = PackedWeight(rows.view(np.uint8), Format.F32, K), in_pieces(rows, lengths)
    assert weight.shape == whole.shape
    assert np.array_equal(weight.values(), rows)
    assert np.array_equal(weight.whole().rows, whole.rows)
    for _ in range(2):  # its rows are made again for every use
        assert np.array_equal(LinearPanels.pack(weight, made).data, LinearPanels.pack(whole, made).data)


def stored(path, values, scale):
    """A float8 weight in a file, beside its factors."""
    file = path / "model.safetensors"
    safetensors.torch.save_file({"w": torch.from_numpy(values).to(torch.float8_e4m3fn), "s": torch.from_numpy(scale)}, file)
    return read_header(file)["w"]


@pytest.mark.parametrize("piece", [1, 40_000, 1 << 20])
def test_each_square_of_float8_has_its_factor_in_every_piece(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(tensor_values, "_PIECE", piece)
    generator = np.random.default_rng(0)
    values = generator.standard_normal((400, 260)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    scale = generator.uniform(0.5, 2, (4, 3)).astype(np.float32)
    tensor = stored(tmp_path, values, scale)
    expected = np.array([[values[i, j] * scale[i // 128, j // 128] for j in range(260)] for i in range(400)])
    pieces = list(tensor_values.pieces_of(tensor, scale))
    assert [len(each) for each in pieces] == {1: [128, 128, 128, 16], 40_000: [256, 144]}.get(piece, [400])
    assert np.array_equal(np.concatenate(pieces), expected)


def test_a_value_that_is_not_finite_is_refused_in_the_last_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_values, "_PIECE", 1)
    values = np.ones((300, 32), np.float32)
    values[299, 31] = np.nan
    scale = np.ones((3, 1), np.float32)
    pieces = tensor_values.pieces_of(stored(tmp_path, values, scale), scale)
    assert [len(next(pieces)) for _ in range(2)] == [128, 128]
    with pytest.raises(ModelError, match="tensor w has values that are not finite"):
        next(pieces)


# Run in a process of its own: what the experts of a layer need besides their panels, in bytes.
LOAD = """
import re, sys
from pathlib import Path
from gguf.constants import GGMLQuantizationType
from decodestep.files.gguf_file import GgufFile
from decodestep.files.tensor_values import pieces_of
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format
from decodestep.weights.widened_rows import WidenedRows

def kilobytes(field):
    return int(re.search(field + ":\\\\s*([0-9]+)", Path("/proc/self/status").read_text())[1])

tensor = GgufFile(Path(sys.argv[1])).tensors["experts"]
weight = WidenedRows(lambda: pieces_of(tensor), 256, 1 << 17)
before = kilobytes("VmRSS")
panels = LinearPanels.pack(weight, Format.Q8_0)
print((kilobytes("VmHWM") - before) * 1024 - panels.nbytes)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads Linux's count of memory")
def test_experts_are_widened_piece_by_piece(tmp_path):
    from gguf import GGMLQuantizationType, GGUFWriter

    path, bytes_ = tmp_path / "experts.gguf", np.zeros((1 << 17, 84), np.uint8)  # 11 MB, 134 as float32
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("experts", bytes_, raw_dtype=GGMLQuantizationType.Q2_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    made = processes.run([sys.executable, "-c", LOAD, str(path)])
    assert made.returncode == 0, made.stderr
    assert int(made.stdout) < 40 << 20
