"""--indexer-types and --index-cache-dtype: what they do, what they refuse, and where they are shown."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gguf import GGUFReader

import decodestep as ds
from support import family_models, latent_gguf_files
from support.command_line import call

SELECTED = 30
PROMPT = "abcdefghijklmnopqrstuvwxyz" * 2  # 52 tokens and more than are selected
GENERATE = ("generate", PROMPT, "--raw", "--greedy", "--max-new-tokens", 8)
MISSING = "glm-dsa.attention.indexer.types is missing; load(indexer_types=...) or --indexer-types says what it would"
RULE = 'must be "full" or "shared" for each layer, or a string of F and S, the first of them full, or None'


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model as a file that does not say which layers have an indexer, as one that does, and as a folder."""
    path = tmp_path_factory.mktemp("model")
    sizes = family_models.ALIGNED["glm_moe_dsa"] | {"index_topk": SELECTED}
    model = family_models.build_model("glm_moe_dsa", 0, **sizes)
    unsaid = latent_gguf_files.write_gguf(model, path / "unsaid.gguf", **{"attention.indexer.types": None})
    said = latent_gguf_files.write_gguf(model, path / "said.gguf")
    return {"unsaid": unsaid, "said": said, "folder": family_models.save(model, path / "folder")}


def test_the_pattern_of_a_file_that_leaves_it_unsaid(files):
    ended = call(*GENERATE, "-m", files["unsaid"])
    assert ended.returncode == 2 and ended.stdout == ""
    assert f"prompt must be shorter than the context of {SELECTED} tokens ({MISSING}); got " in ended.stderr
    texts = {}
    for types in ("FFF", "FSF"):
        result = json.loads(call(*GENERATE, "-m", files["unsaid"], "--indexer-types", types, "--json").stdout)
        model = ds.load(files["unsaid"], indexer_types=types)
        params = ds.SamplingParams(do_sample=False, max_new_tokens=8)
        assert result["token_ids"] == ds.generate(model, [result["prompt_token_ids"]], params)[0].token_ids
        texts[types] = result["token_ids"]
    assert texts["FFF"] != texts["FSF"]


@pytest.mark.parametrize(
    ("named", "types", "code", "message"),
    [
        ("unsaid", "FS", 1, "{path}: indexer_types must have 'full' or 'shared' for each of 3 layers; got 2"),
        ("unsaid", "SFF", 2, "{op}" + f" {RULE}; got 'SFF'"),
        ("unsaid", "full,full,full", 2, "{op}" + f" {RULE}; got 'full,full,full'"),
        ("unsaid", "", 2, "{op}" + f" {RULE}; got ''"),
        ("said", "FFF", 1, "{path}: indexer_types is for a GGUF file of glm-dsa without attention.indexer.types alone"),
        ("folder", "FFF", 1, "{path}: indexer_types is for a GGUF file of glm-dsa without attention.indexer.types alone"),
    ],
)
def test_refused_patterns(files, tmp_path, named, types, code, message):
    target = tmp_path / "out.gguf"
    verbs = {
        "load: indexer_types": [*GENERATE, "-m", files[named]],
        "quantize: --indexer-types": ["quantize", files[named], target, "--type", "f16"],
    }
    for op, verb in verbs.items():
        ended = call(*verb, "--indexer-types", types)
        assert (ended.returncode, ended.stdout) == (code, "")
        assert ended.stderr == f"decodestep: {message.format(path=files[named], op=op)}\n"
    assert not target.exists()


def test_quantize_writes_the_pattern(files, tmp_path):
    """The file that it writes is the model that `load` makes with it; without it the file still leaves it unsaid."""
    ids, key = np.arange(40) + 99, "glm-dsa.attention.indexer.types"
    for types in ("FFF", "FSF"):
        target = tmp_path / f"{types}.gguf"
        assert call("quantize", files["unsaid"], target, "--type", "f32", "--indexer-types", types).returncode == 0
        assert GGUFReader(target).fields[key].contents() == [kind == "F" for kind in types]
        want = ds.load(files["unsaid"], dtype="float32", indexer_types=types).logits(ids)
        np.testing.assert_array_equal(ds.load(target, dtype="float32").logits(ids), want)
    target = tmp_path / "unsaid.gguf"
    ended = call("quantize", files["unsaid"], target, "--type", "f32")
    assert ended.returncode == 0 and key not in GGUFReader(target).fields


def test_index_keys_as_bytes_are_shown(files):
    for given, shown in (("int8", "int8"), ("auto", "float16")):
        words = (*GENERATE, "-m", files["folder"], "--index-cache-dtype", given)
        assert f"cache in float16, index keys in {shown}, greedy" in call(*words, "--stats", COLUMNS="300").stderr
        assert json.loads(call(*words, "--json").stdout)["stats"]["index_cache_dtype"] == shown


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["float16"], 2, "load: index_cache_dtype must be one of 'auto', 'int8'; got 'float16'"),
        (["int8", "--dtype", "float32"], 1, "{folder}: index_cache_dtype 'int8' is not supported: dtype float32"),
    ],
)
def test_refused_types_of_index_keys(files, options, code, message):
    ended = call(*GENERATE, "-m", files["folder"], "--index-cache-dtype", *options)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr == f"decodestep: {message.format(**files)}\n"


def test_a_model_without_an_indexer_has_no_index_keys(model):
    ended = call("generate", "Hi", "--index-cache-dtype", "int8")
    assert ended.returncode == 1
    assert ended.stderr.endswith(": index_cache_dtype 'int8' is not supported: the model has no indexer\n")
    stats = json.loads(call("generate", "Hi", "--json", "--max-new-tokens", 1, model=model).stdout)["stats"]
    assert stats["index_cache_dtype"] is None


@pytest.mark.parametrize("verb", ["generate", "chat", "serve", "explain", "quantize"])
def test_help_names_them(verb):
    text = " ".join(call(verb, "--help").stdout.split())
    assert "--indexer-types PATTERN which layers of a glm-dsa file have an indexer of their own, F or S for each" in text
    assert ("--index-cache-dtype DTYPE type of the cached keys of an indexer: auto or int8 [auto]" in text) == (
        verb != "quantize"
    )
