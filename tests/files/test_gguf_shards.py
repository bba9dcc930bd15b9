"""GGUF files in several parts, as the gguf package writes them: the same model, and what is refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

import decodestep as ds
from decodestep import cli
from decodestep.files.gguf_file import GgufFile
from decodestep.files.gguf_shards import open_gguf
from decodestep.models import ModelError
from support import family_models, latent_gguf_files

FIRST = "model-00001-of-00003.gguf"
PARTS = [FIRST, "model-00002-of-00003.gguf", "model-00003-of-00003.gguf"]


@pytest.fixture
def whole(tmp_path):
    return latent_gguf_files.write_gguf(family_models.model_of("deepseek_v3", 0, num_hidden_layers=2), tmp_path / "whole.gguf")


@pytest.fixture
def parts(tmp_path, whole, monkeypatch):
    """The folder with the same model in three parts."""
    writer = gguf.GGUFWriter
    monkeypatch.setattr(gguf, "GGUFWriter", lambda path, name: writer(path, name, split_max_tensors=14))
    latent_gguf_files.write_gguf(family_models.model_of("deepseek_v3", 0, num_hidden_layers=2), tmp_path / "model.gguf")
    monkeypatch.undo()
    assert {path.name for path in tmp_path.glob("model-*")} == set(PARTS)
    return tmp_path


def test_a_model_in_parts_is_the_model(parts, whole):
    mine, other = ds.load(parts / FIRST), ds.load(whole)
    np.testing.assert_array_equal(mine.logits([1, 2, 3]), other.logits([1, 2, 3]))
    assert mine.config.layers == 2 and not any(key.startswith("split.") for key in open_gguf(parts / FIRST).metadata)


def test_the_parts_as_one_file(parts, whole, capsys):
    assert cli.main(["quantize", str(parts / FIRST), str(parts / "one.gguf"), "--type", "f32"]) == 0
    assert f"MiB, 1.00 of {FIRST}" in capsys.readouterr().out
    np.testing.assert_array_equal(ds.load(parts / "one.gguf").logits([1, 2, 3]), ds.load(whole).logits([1, 2, 3]))


def without(path, key):
    """The file's bytes with another name of a key of the same length."""
    path.write_bytes(path.read_bytes().replace(key.encode(), b"x" * len(key), 1))


def test_what_is_refused(parts):
    second = parts / PARTS[1]
    data = second.read_bytes()
    with pytest.raises(ModelError, match=rf"{PARTS[1]}: is part 2 of 3, not 1 of 3; the first is {FIRST}"):
        ds.load(second)
    second.write_bytes(data[:-40])
    with pytest.raises(ModelError, match=f"{PARTS[1]}: truncated: tensor"):
        ds.load(parts / FIRST)
    second.write_bytes((parts / PARTS[2]).read_bytes())
    with pytest.raises(ModelError, match=f"{PARTS[1]}: is part 3 of 3, not 2 of 3"):
        ds.load(parts / FIRST)
    name = next(iter(GgufFile(parts / FIRST).tensors)) if GgufFile(parts / FIRST).tensors else None
    assert name is not None
    own = next(tensor for tensor in GgufFile(parts / PARTS[2]).tensors if len(tensor) == len("blk.1.attn_norm.weight"))
    second.write_bytes(data)
    there = next(tensor for tensor in GgufFile(second).tensors if len(tensor) == len(own))
    second.write_bytes(data.replace(there.encode(), own.encode(), 1))
    with pytest.raises(ModelError, match="is in another part too"):
        ds.load(parts / FIRST)
    second.write_bytes(data)
    without(second, "split.no")
    with pytest.raises(ModelError, match="split.no"):
        ds.load(parts / FIRST)
    second.unlink()
    with pytest.raises(ModelError, match=f"has 3 parts, of which {PARTS[1]} is not in this folder"):
        ds.load(parts / FIRST)
    (parts / FIRST).rename(parts / "other.gguf")
    with pytest.raises(ModelError, match="part of 3 files, whose names must end in -00001-of-00003.gguf"):
        ds.load(parts / "other.gguf")
