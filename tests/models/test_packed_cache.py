"""The file of packed weights beside a model: the same bits with it as without, and none of a file that is not as it was
written."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import decodestep as ds
from decodestep import cli
from decodestep.errors import ModelError
from decodestep.files import checked_file
from decodestep.models import checkpoint, convert, packed_cache
from support import family_models, tiny_gguf_files
from support.families import CASES
from support.next_token_models import Predicting

IDS = np.random.default_rng(0).integers(0, 297, 40)
WIDE = {"hidden_size": 64, "intermediate_size": 96}


@pytest.fixture
def refuses_to_convert(monkeypatch):
    def refuse():
        def fail(*_, **__):
            raise AssertionError("the file should have been read")

        monkeypatch.setattr(convert, "convert", fail)

    return refuse


def bits(model):
    return model.logits(IDS).tobytes()


def assert_kept(path: Path, refuse, **options) -> None:
    """A first load writes the file, a second one reads it alone, and both have the bits of a load without it."""
    plain = bits(ds.load(path, **options))
    assert bits(ds.load(path, packed_cache=True, **options)) == plain
    assert packed_cache.cache_path(path).is_file()
    refuse()
    seen = []
    model = ds.load(path, packed_cache=True, progress=lambda *at: seen.append(at), **options)
    assert bits(model) == plain
    assert seen[-1][0] == seen[-1][1]


# What else the native step asks of the sizes of some.
MULTIPLES = {
    "glm4_moe_lite": family_models.ALIGNED["deepseek_v3"], "youtu": family_models.ALIGNED["deepseek_v3"],
    "qwen3_next": {**WIDE, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", CASES)
def test_every_family(tmp_path, family, refuses_to_convert):
    sizes = MULTIPLES.get(family) or family_models.ALIGNED.get(family, WIDE)
    assert_kept(family_models.save(family_models.build_model(family, 0, **sizes), tmp_path / "model"), refuses_to_convert)


KINDS = [
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [False, True])
def test_every_format(tmp_path, kind, tied, refuses_to_convert):
    sizes = {"hidden": 256, "heads": 16} if kind.endswith("_K") else {}
    assert_kept(tiny_gguf_files.write(tmp_path / "model.gguf", kind=kind, tied=tied, **sizes), refuses_to_convert)


WAYS = [{"dtype": "bfloat16"}, {"dtype": "q4_0"}, {"form": "mla"}, {"cache_dtype": "int8"}]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_every_way_to_load(tmp_path, options, refuses_to_convert):
    assert_kept(tiny_gguf_files.write(tmp_path / "model.gguf", kind="F16", head_dim=32), refuses_to_convert, **options)


def test_layers_that_draft(tmp_path, refuses_to_convert):
    Predicting("deepseek_v3", 1, 1, agreeing=True, **family_models.ALIGNED["deepseek_v3"]).save(tmp_path / "model")
    params = ds.SamplingParams(max_new_tokens=20, seed=1)
    texts = [ds.generate(ds.load(tmp_path / "model", packed_cache=kept), ["abc" * 5], params) for kept in (False, True, True)]
    assert texts[0] == texts[1] == texts[2] and texts[0][0].drafted
    assert_kept(tmp_path / "model", refuses_to_convert)


@pytest.fixture
def model(tmp_path):
    """A file with its cache, and the bits of its logits."""
    path = tiny_gguf_files.write(tmp_path / "model.gguf", kind="Q8_0", tied=False)
    return path, bits(ds.load(path, packed_cache=True)), packed_cache.cache_path(path)


def assert_made_anew(model, caplog, why: str) -> None:
    path, expected, cache = model
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert bits(ds.load(path, packed_cache=True)) == expected
    assert why in caplog.text and "it is made anew" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert bits(ds.load(path, packed_cache=True)) == expected
    assert not caplog.text
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name, cache.name]


def test_a_file_that_is_cut_short_or_damaged_is_made_anew(model, caplog):
    cache, rng = model[2], random.Random(1)
    whole = cache.read_bytes()
    for cut in (0, 1, 27, 100, 4096, len(whole) // 2, len(whole) - 32, len(whole) - 1):
        cache.write_bytes(whole[:cut])
        assert_made_anew(model, caplog, "is no file of packed weights" if cut < 28 else "is damaged")
        assert cache.read_bytes() == whole
    values = range(4096, len(whole))
    for at in (0, 40, 100, 300, *rng.sample(values, 8), len(whole) - 33, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        if at in values and not any(whole[at - 32 : at + 32]):
            continue  # zeros before the values
        cache.write_bytes(damaged)
        assert_made_anew(model, caplog, str(cache))
    cache.write_bytes(whole + b"\0")
    assert_made_anew(model, caplog, "is damaged")


def test_pages_that_change_places_are_damage(model, caplog):
    cache = model[2]
    whole = cache.read_bytes()
    cache.write_bytes(whole[:4096] + whole[8192:12288] + whole[4096:8192] + whole[12288:])
    assert_made_anew(model, caplog, "is damaged")


def test_half_of_a_file_that_nobody_finished_is_no_cache(model, refuses_to_convert):
    path, expected, cache = model
    part = cache.with_name(f"{cache.name}.0123abcd.part")
    part.write_bytes(cache.read_bytes()[:1000])
    refuses_to_convert()
    assert bits(ds.load(path, packed_cache=True)) == expected


def test_the_file_of_another_model_is_made_anew(model, tmp_path_factory, caplog):
    other = tiny_gguf_files.write(tmp_path_factory.mktemp("other") / "model.gguf", kind="Q8_0", tied=True)
    ds.load(other, packed_cache=True)
    shutil.copy(packed_cache.cache_path(other), model[2])
    assert_made_anew(model, caplog, "is of another model")


def test_a_model_that_has_changed_is_packed_anew(model, caplog):
    """Also where neither its size nor the time of its last change tells."""
    path, before, cache = model
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size and path.stat().st_mtime_ns == status.st_mtime_ns
    after = bits(ds.load(path))
    assert after != before
    assert_made_anew((path, after, cache), caplog, "is of another model")


@pytest.mark.parametrize("what", ["isa", "version", "layout", "arguments"])
def test_what_another_processor_version_or_way_to_load_packed_is_made_anew(model, caplog, monkeypatch, what):
    path = model[0]
    with monkeypatch.context() as other:
        if what == "isa":
            other.setattr(packed_cache, "isa", lambda: "another")
        if what == "version":
            other.setattr(ds, "__version__", "0")
        if what == "layout":
            other.setattr(packed_cache, "CLASSES", {})
        ds.load(path, packed_cache=True, dtype="bfloat16" if what == "arguments" else "auto")
    assert_made_anew(model, caplog, "is of another model, version or kind of processor")


def test_a_file_cut_short_under_a_running_process_is_harmless(model, caplog, monkeypatch):
    path, expected, cache = model
    running = ds.load(path, packed_cache=True)
    os.truncate(cache, 100)
    assert bits(running) == expected
    assert_made_anew(model, caplog, "is damaged")
    read = packed_cache.read_checked

    def cut_short(*arguments):
        os.truncate(cache, 10000)
        return read(*arguments)

    monkeypatch.setattr(packed_cache, "read_checked", cut_short)
    with caplog.at_level(logging.WARNING):
        assert bits(ds.load(path, packed_cache=True)) == expected
    assert "has become shorter" in caplog.text


def test_a_file_that_cannot_be_written_is_said_and_leaves_nothing(tmp_path, caplog, monkeypatch):
    path = tiny_gguf_files.write(tmp_path / "model.gguf", kind="Q8_0")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checked_file.os, "fsync", fail)
    with caplog.at_level(logging.WARNING):
        assert bits(ds.load(path, packed_cache=True)) == bits(ds.load(path))
    assert f"{packed_cache.cache_path(path)} cannot be written: No space left on device" in caplog.text
    assert list(tmp_path.iterdir()) == [path]


def test_a_model_that_changes_while_it_is_read_is_not_kept(tmp_path, caplog):
    path = tiny_gguf_files.write(tmp_path / "model.gguf", kind="Q8_0")
    with caplog.at_level(logging.WARNING):
        ds.load(path, packed_cache=True, progress=lambda *_: os.utime(path))
    assert "changed while it was read" in caplog.text
    assert list(tmp_path.iterdir()) == [path]


def test_a_model_that_changes_before_its_weights_are_read_is_not_kept(tmp_path, caplog, monkeypatch):
    """Its header was that of another file."""
    path = tiny_gguf_files.write(tmp_path / "model.gguf", kind="Q8_0")
    opened = checkpoint.open_checkpoint

    def written_to(*arguments):
        found = opened(*arguments)
        os.utime(path)
        return found

    monkeypatch.setattr(checkpoint, "open_checkpoint", written_to)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            ds.load(path, packed_cache=True)
        assert "changed while it was read" in caplog.text
        assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_open_to_nobody_who_cannot_read_the_model(tmp_path):
    path = tiny_gguf_files.write(tmp_path / "model.gguf", kind="Q8_0")
    folder = family_models.save(family_models.build_model("qwen3", 0, **WIDE), tmp_path / "model")
    (folder / "model.safetensors").chmod(0o644)
    umask = os.umask(0)
    try:
        for model, mode, expected in (
            *((path, mode, mode) for mode in (0o666, 0o644, 0o640, 0o600)),
            *((folder, mode, expected) for mode, expected in ((0o755, 0o644), (0o750, 0o640), (0o711, 0o644), (0o700, 0o600))),
        ):
            model.chmod(mode)
            ds.load(model, packed_cache=True)
            cache = packed_cache.cache_path(model)
            assert cache.stat().st_mode & 0o777 == expected, oct(mode)
            cache.unlink()
    finally:
        os.umask(umask)


def test_what_is_no_file_is_neither_waited_for_nor_replaced(model, caplog):
    path, expected, cache = model
    cache.unlink()
    os.mkfifo(cache)
    with caplog.at_level(logging.WARNING):
        assert bits(ds.load(path, packed_cache=True)) == expected
    assert f"{cache}: must be a file; it is a pipe; packed weights are not kept" in caplog.text
    assert not cache.is_file() and len(list(path.parent.iterdir())) == 2


LIES = [
    (rb'"at":\d+', b'"at":-1'), (rb'"at":\d+', b'"at":1099511627776'), (rb'"array":"\w+"', b'"array":"nothing"'),
    (rb'"class":"\w+"', b'"class":"Weights"'), (rb'"inputs":\d+', b'"inputs":1'),
    (rb'"format":"\w+"', b'"format":"Q9"'), (rb'"fields":', b'"field":'),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "lie"), LIES, ids=str)
def test_a_tree_that_lies_is_damage(model, caplog, pattern, lie):
    """With a digest that is right."""
    cache = model[2]
    whole = cache.read_bytes()
    tree = whole.split(b"\n", 4)[3]
    start = whole.index(tree)
    values = whole[-(-(start + len(tree) + 33) // 4096) * 4096 :]
    place = random.Random(2).choice(list(re.finditer(pattern, tree)))
    head = whole[:start] + tree[: place.start()] + lie + tree[place.end() :] + b"\n"
    head += hashlib.sha256(head).digest()
    cache.write_bytes(head + bytes(-len(head) % 4096) + values)
    assert_made_anew(model, caplog, "is damaged")


def test_models_that_run_operator_by_operator_have_no_packed_weights(tmp_path):
    path = tiny_gguf_files.write(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match="packed_cache True is not supported: dtype float32"):
        ds.load(path, dtype="float32", packed_cache=True)
    with pytest.raises(ValueError, match="load: packed_cache must be True or False; got 1"):
        ds.load(path, packed_cache=1)


def test_the_command_keeps_the_file(tmp_path, capsys):
    path = tiny_gguf_files.write(tmp_path / "model.gguf", kind="Q8_0")
    texts = []
    for options in ([], ["--packed-cache"], ["--packed-cache"]):
        assert cli.main(["generate", "abc", "--raw", "-m", str(path), "--seed", "1", "-n", "8", "--json", *options]) == 0
        texts.append(json.loads(capsys.readouterr().out)["token_ids"])
        assert packed_cache.cache_path(path).exists() == bool(options)
    assert texts[0] == texts[1] == texts[2]
