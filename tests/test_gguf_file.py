"""GGUF files: the header against the gguf package, and every way in which a file can be broken."""

from __future__ import annotations

import contextlib

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decodestep.models import ModelError
from decodestep.models.convert import config_of, convert
from decodestep.models.gguf_file import GgufFile


def test_reads_what_the_gguf_package_reads(tiny_file):
    path = tiny_file(kind="Q8_0")
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF."):
            assert ours.metadata[name] == field.contents(), name
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.type == tensor.tensor_type
        assert mine.shape == tuple(tensor.shape[::-1].tolist())
        np.testing.assert_array_equal(mine.data, np.frombuffer(tensor.data.tobytes(), np.uint8))


def test_no_such_file_and_no_file(tmp_path):
    with pytest.raises(ModelError, match="No such file"):
        GgufFile(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="cannot be opened"):
        GgufFile(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelError, match="empty"):
        GgufFile(tmp_path / "empty.gguf")


@pytest.mark.parametrize("content", [b"GGUF", b"PK\x03\x04" + bytes(100), b"GGUF" + bytes(60), b"GGUF\x09\0\0\0" + bytes(60)])
def test_other_files(tmp_path, content):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError):
        GgufFile(path)


def test_every_truncation_is_noticed(tiny_file):
    path = tiny_file()
    data = path.read_bytes()
    for size in [*range(0, 6000, 37), *range(6000, len(data), 4999), len(data) - 40]:
        path.write_bytes(data[:size])
        with pytest.raises(ModelError):
            GgufFile(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_corruption_does_worse_than_an_error(tiny_file, data):
    path = tiny_file()
    broken = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, 7000))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(broken))
    with contextlib.suppress(ModelError):
        file = GgufFile(path)
        convert(file, config_of(file))


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 10**12])
def test_counts_are_not_believed(tiny_file, number):
    path = tiny_file()
    data = bytearray(path.read_bytes())
    for at in (8, 16):  # the counts of tensors and of metadata
        path.write_bytes(data[:at] + number.to_bytes(8, "little") + data[at + 8 :])
        with pytest.raises(ModelError, match="truncated or corrupt"):
            GgufFile(path)
