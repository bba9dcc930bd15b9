"""Files of cached pages: a later process has the same bits with them as without, and takes only what is as it was written."""

from __future__ import annotations

import hashlib
import json
import os
import random
from contextlib import suppress

import numpy as np
import pytest
import safetensors.torch

import decodestep as ds
from decodestep import SamplingParams, cli
from decodestep.decoding.kv_cache import PAGE
from decodestep.files import checked_file
from support import family_models
from support.next_token_models import Predicting

WIDE = {"hidden_size": 64, "intermediate_size": 96}
# What is in a page or beside it: keys and values, of types, in float32; latents; states; those of layers that draft; long-rope.
MODELS = {
    "grouped": ("qwen3", 0, WIDE, {}),
    "int8": ("qwen3", 0, WIDE, {"cache_dtype": "int8"}),
    "float32": ("qwen3", 0, {}, {"dtype": "float32"}),
    "latent": ("deepseek_v3", 1, family_models.ALIGNED["deepseek_v3"], {}),
    "states": ("lfm2", 1, WIDE, {}),
    "mtp": ("deepseek_v3", 1, family_models.ALIGNED["deepseek_v3"], {}),
}


@pytest.fixture(scope="module", params=MODELS)
def load(request, tmp_path_factory):
    """load(), which loads the model as another process would."""
    family, size, changes, options = MODELS[request.param]
    path = tmp_path_factory.mktemp("model")
    if request.param == "mtp":
        Predicting(family, size, 1, agreeing=True, **changes).save(path)
    else:
        family_models.save(family_models.build_model(family, size, **changes), path)
    return lambda: ds.load(path, cache_bytes=2**24, **options)


@pytest.fixture
def texts(rng):
    first = rng.integers(3, 290, 100).tolist()
    return [first, [*first[:50], *rng.integers(3, 290, 45).tolist()], rng.integers(3, 290, 70).tolist()]


def logits_of(model, text):
    """The logits of a text's last token, and how many of its tokens were in the cache."""
    with model.sequence(text) as sequence:
        return model.forward([(sequence, text[len(sequence) :])]), sequence.reused


def test_a_later_process_goes_on_with_the_same_bits(load, texts, tmp_path):
    model, later = load(), load()
    for text in texts:
        logits_of(model, text)
    saved = model.save_cache(tmp_path / "file")
    assert later.restore_cache(tmp_path / "file") == saved > 150
    for text in texts:
        logits, reused = logits_of(later, [*text, 7])
        assert np.array_equal(logits, logits_of(load(), [*text, 7])[0]) and reused >= len(text) - PAGE
    assert later.cache.held == 0
    asked = [(text, SamplingParams(max_new_tokens=20, seed=i, temperature=0.8)) for i, text in enumerate(texts)]
    prompts, params = zip(*asked, strict=True)
    assert [one.token_ids for one in ds.generate(later, prompts, list(params))] == [
        one.token_ids for one in ds.generate(load(), prompts, list(params))
    ]


def test_what_some_texts_begin_with(load, texts, tmp_path):
    model, later = load(), load()
    for text in texts:
        logits_of(model, text)
    assert model.save_cache(tmp_path / "file", []) == 0 and later.restore_cache(tmp_path / "file") == 0
    model.save_cache(tmp_path / "file", [[*texts[2], 5, 6]])
    later.restore_cache(tmp_path / "file")
    assert logits_of(later, [*texts[2], 7])[1] >= len(texts[2]) - PAGE
    assert logits_of(later, texts[0])[1] == 0


def test_a_file_that_was_changed_or_cut_is_refused(load, texts, tmp_path):
    model, path = load(), tmp_path / "file"
    logits_of(model, texts[0])
    model.save_cache(path)
    whole, model = path.read_bytes(), load()
    rng = random.Random(0)
    places = [0, 18, 20, 90, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(12))]
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << rng.randrange(8)
        for data in (changed, whole[:place]):
            path.write_bytes(data)
            with pytest.raises(ds.CacheFileError, match="file"):
                model.restore_cache(path)
            assert model.cache.held == model.cache.kept == 0
    path.write_bytes(whole + b"0")
    with pytest.raises(ds.CacheFileError, match="damaged"):
        model.restore_cache(path)


def lines_of(data):
    """Where the lines of a file begin that say what a page is."""
    found, at = [], 0
    while (at := data.find(b'{"parent"', at)) >= 0:
        found.append(at)
        at += 1
    return found


def test_a_file_that_lies_is_refused_or_harmless(load, texts, tmp_path):
    """With a digest that is right."""
    model, path = load(), tmp_path / "file"
    logits_of(model, texts[0])
    model.save_cache(path)
    whole = path.read_bytes()[:-32]
    model, rng = load(), random.Random(1)
    values = [None, True, -1, -2, -3, 0, 1, 2**70, 1.5, "a", [], [[]], {}, [5] * PAGE, [5] * 3, [-1] * PAGE, [2**40] * PAGE]
    for _ in range(60):
        at = rng.choice(lines_of(whole))
        line = whole[at : whole.index(b"\n", at)]
        said = json.loads(line) | {rng.choice(["parent", "tokens", "states", "rank"]): rng.choice(values)}
        data = whole[:at] + json.dumps(said).encode() + whole[at + len(line) :]
        path.write_bytes(data + hashlib.sha256(data).digest())
        with suppress(ds.CacheFileError):
            model.restore_cache(path)
        assert model.cache.held == 0
        model.cache.clear()
    assert np.array_equal(logits_of(model, texts[0])[0], logits_of(load(), texts[0])[0])


def test_the_file_of_another_model_is_refused(tmp_path, texts):
    """Also where only the weights differ."""
    models = []
    for seed in range(2):
        path = family_models.save(family_models.build_model("qwen3", 0, seed=seed, **WIDE), tmp_path / str(seed))
        models.append(ds.load(path, cache_bytes=2**24))
    logits_of(models[0], texts[0])
    models[0].save_cache(tmp_path / "file")
    with pytest.raises(ds.CacheFileError, match="another model"):
        models[1].restore_cache(tmp_path / "file")
    assert models[1].cache.held == 0 and logits_of(models[1], texts[0])[1] < PAGE * 2
    assert models[0].restore_cache(tmp_path / "file") > 0
    other = ds.load(tmp_path / "0", cache_dtype="int8")
    with pytest.raises(ds.CacheFileError, match="loaded in another way"):
        other.restore_cache(tmp_path / "file")


# What of a model the keys and values of a first page need not depend on: recurrent states after the last layer with attention,
# experts that its tokens do not select, and the rows of other tokens.
UNSEEN = {
    "states": ("lfm2", 1, "model.layers.2.conv.in_proj.weight"),
    "experts": ("qwen3_moe", 0, "model.layers.0.mlp.experts.6.down_proj.weight"),
    "embedding": ("qwen3", 0, "model.embed_tokens.weight"),
}


@pytest.mark.parametrize("what", UNSEEN)
def test_weights_that_a_first_page_does_not_show_are_those_of_another_model(tmp_path, what):
    family, size, name = UNSEEN[what]
    path = family_models.save(family_models.build_model(family, size, **WIDE), tmp_path / "model")
    text = [7] * PAGE + list(range(20, 150))
    model = ds.load(path, cache_bytes=2**24)
    logits_of(model, text)
    model.save_cache(tmp_path / "file")
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    tensors[name][8:] *= 1.5  # in the embedding not that of token 7
    safetensors.torch.save_file(tensors, path / "model.safetensors")
    later = ds.load(path, cache_bytes=2**24)
    with pytest.raises(ds.CacheFileError, match="another model"):
        later.restore_cache(tmp_path / "file")
    assert np.array_equal(logits_of(later, text)[0], logits_of(ds.load(path, cache_bytes=2**24), text)[0])


def test_a_first_page_that_the_model_does_not_compute_is_refused(load, texts, tmp_path):
    model, path = load(), tmp_path / "file"
    logits_of(model, texts[0])
    [first] = model.cache.roots[0].children.values()
    values = model.cache.storage.parts(first.number)[0]
    values[(0,) * values.ndim] += 1
    model.save_cache(path)
    with pytest.raises(ds.CacheFileError, match="first page must be what this model computes"):
        load().restore_cache(path)


def test_a_link_stays_and_leads_to_the_file(load, texts, tmp_path):
    model, path, link = load(), tmp_path / "folder" / "file", tmp_path / "link"
    path.parent.mkdir()
    link.symlink_to(path)
    for _ in range(2):
        logits_of(model, texts[0])
        model.save_cache(link)
        assert link.is_symlink() and [each.name for each in path.parent.iterdir()] == ["file"]
        assert load().restore_cache(link) > 0


def test_what_is_no_file_is_refused(load, texts, tmp_path):
    model, path = load(), tmp_path / "pipe"
    os.mkfifo(path)
    logits_of(model, texts[0])
    with pytest.raises(ds.CacheFileError, match="must be a file; it is a pipe"):
        model.restore_cache(path)
    with pytest.raises(ds.CacheFileError, match="must be a file; it is a pipe"):
        model.save_cache(path)
    assert list(tmp_path.iterdir()) == [path] and model.cache.held == 0


def test_a_cache_that_is_too_small_says_so(load, texts, tmp_path):
    model, path = load(), tmp_path / "file"
    for text in texts:
        logits_of(model, text)
    model.save_cache(path)
    model = load()
    with model.sequence(capacity=(model.cache.pages - 2) * PAGE), pytest.raises(ds.CacheFullError):
        model.restore_cache(path)
    assert model.cache.held == 0 and logits_of(model, texts[0])[1] < PAGE


def test_a_write_that_fails_leaves_the_file(load, texts, tmp_path, monkeypatch):
    model, path = load(), tmp_path / "file"
    logits_of(model, texts[0])
    model.save_cache(path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(checked_file.os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        model.save_cache(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path] and model.cache.held == 0


def test_the_command_goes_on_from_the_file(tmp_path, capsys):
    """generate and chat: the same texts, and no file of another kind is written to."""
    model = str(family_models.save(family_models.build_model("qwen3", 0, **WIDE), tmp_path / "model"))
    asked = ["generate", "a text of some words " * 4, "--raw", "--model", model, "--seed", "1", "-n", "20", "--json"]
    kept = ["--prompt-cache", str(tmp_path / "file")]
    assert cli.main(asked) == 0
    alone = json.loads(capsys.readouterr().out)
    for _ in range(2):
        assert cli.main([*asked, *kept]) == 0
        assert json.loads(capsys.readouterr().out)["text"] == alone["text"]
    damaged = (tmp_path / "file").read_bytes()[:-1]
    (tmp_path / "file").write_bytes(damaged)
    assert cli.main([*asked, *kept]) == 0
    assert "is damaged; it is made anew" in capsys.readouterr().err
    assert (tmp_path / "file").read_bytes()[:-1] == damaged
    (tmp_path / "file").write_text("my notes")
    assert cli.main([*asked, *kept]) == 1
    assert "no file of cached pages" in capsys.readouterr().err and (tmp_path / "file").read_text() == "my notes"


def test_an_answer_is_not_lost_where_the_file_cannot_be_written(tmp_path, capsys, monkeypatch):
    model = str(family_models.save(family_models.build_model("qwen3", 0, **WIDE), tmp_path / "model"))
    asked = ["generate", "a text of some words", "--raw", "--model", model, "--seed", "1", "-n", "9", "--json"]
    kept = ["--prompt-cache", str(tmp_path / "file")]
    assert cli.main(asked) == 0
    alone = json.loads(capsys.readouterr().out)

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(checked_file.os, "fsync", fail)
        assert cli.main([*asked, *kept]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["text"] == alone["text"]
    assert f"{tmp_path / 'file'} cannot be written: No space left on device" in err
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("verb", ["generate", "chat"])
def test_a_folder_that_is_not_there_is_an_error_before_anything_is_loaded(tmp_path, capsys, verb):
    asked = [verb, *(["words"] if verb == "generate" else []), "--model", str(tmp_path / "none")]
    for name in ("missing/file", "notes/file"):
        (tmp_path / "notes").write_text("mine")
        with pytest.raises(SystemExit) as ended:
            cli.main([*asked, "--prompt-cache", str(tmp_path / name)])
        assert ended.value.code == 2
        assert f"--prompt-cache: must be in a folder that exists; got '{tmp_path / name}'" in capsys.readouterr().err


def test_the_command_neither_waits_for_a_pipe_nor_replaces_it(tmp_path, capsys):
    model = str(family_models.save(family_models.build_model("qwen3", 0, **WIDE), tmp_path / "model"))
    os.mkfifo(tmp_path / "pipe")
    assert cli.main(["generate", "words", "--raw", "--model", model, "--prompt-cache", str(tmp_path / "pipe")]) == 1
    assert "must be a file; it is a pipe" in capsys.readouterr().err and not (tmp_path / "pipe").is_file()
