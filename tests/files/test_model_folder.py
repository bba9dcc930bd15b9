"""Folders of safetensors: headers against the safetensors package, tokenizers against transformers, and broken files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import time

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

import decodestep as ds
from decodestep import cli
from decodestep.files.json_file import parse_object
from decodestep.files.model_folder import ModelFolder
from decodestep.files.safetensors_file import read_header
from decodestep.models import ModelError
from support import family_models


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("v3")
    return family_models.save(family_models.model_of("deepseek_v3", 0, num_hidden_layers=2), path)


@pytest.fixture
def copy(saved, tmp_path):
    """The folder, to be broken."""
    return shutil.copytree(saved, tmp_path / "copy")


def test_reads_what_the_safetensors_package_reads(tmp_path):
    values = {
        "a": torch.arange(6.0).reshape(2, 3),
        "b": torch.ones(3, 1, dtype=torch.bfloat16),
        "c": torch.tensor(2.5, dtype=torch.float16),
        "empty": torch.zeros(0, 4),
        "d": torch.arange(5),
    }
    safetensors.torch.save_file(values, tmp_path / "x.safetensors", metadata={"format": "pt"})
    ours = read_header(tmp_path / "x.safetensors")
    with safetensors.safe_open(tmp_path / "x.safetensors", "pt") as theirs:
        assert set(ours) == set(theirs.keys())
        for name in ours:
            assert ours[name].type == theirs.get_slice(name).get_dtype()
            assert ours[name].shape == tuple(theirs.get_slice(name).get_shape())
    for name, value in values.items():
        assert ours[name].read().tobytes() == value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        if value.is_floating_point():
            np.testing.assert_array_equal(ours[name].float32(), value.float().numpy())


def header(tensors, data=b"", size=None):
    text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def one(shape=(2,), kind="F32", offsets=(0, 8)):
    return {"dtype": kind, "shape": list(shape), "data_offsets": list(offsets)}


BROKEN = {
    "nothing": (b"", "empty"),
    "half a length": (b"abc", "truncated or corrupt"),
    "a length beyond the file": (header({}, size=2**63), "a header of"),
    "no JSON": (header(b"{nonsense"), "corrupt"),
    "no object": (header(b"[1, 2]"), "not a JSON object"),
    "nesting": (header(b'{"a":' * 100_000), "corrupt"),
    "a name twice": (header(b'{"a": 1, "a": 2}'), "'a' occurs twice"),
    "no tensor": (header({"a": 5}), "has no dtype"),
    "an unknown type": (header({"a": one(kind="F7")}, bytes(8)), "unknown type 'F7'"),
    "a negative size": (header({"a": one(shape=(-2,))}, bytes(8)), "integers >= 0"),
    "a size that is no integer": (header({"a": one(shape=(2.0,))}, bytes(8)), "integers >= 0"),
    "sizes that overflow": (header({"a": one(shape=(2**62, 2**62))}, bytes(8)), "has 8 bytes"),
    "other bytes than its shape": (header({"a": one(shape=(3,))}, bytes(8)), "has 8 bytes"),
    "offsets backwards": (header({"a": one(shape=(0,), offsets=(8, 0))}, bytes(8)), "has -8 bytes"),
    "a cut": (header({"a": one()}, bytes(7)), "truncated: tensor 'a' ends at"),
    "a gap": (header({"a": one(offsets=(4, 12))}, bytes(12)), "begins at"),
    "an overlap": (header({"a": one(), "b": one(offsets=(4, 12))}, bytes(12)), "begins at"),
    "bytes after": (header({"a": one()}, bytes(9)), "1 bytes after the last tensor"),
}


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused(tmp_path, data, message):
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match=message):
        read_header(tmp_path / "x.safetensors")


def indexed(path, places):
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_what_an_index_may_not_say(copy):
    whole = copy / "model.safetensors"
    names = list(read_header(whole))
    whole.rename(copy / "part.safetensors")
    for places, message in {
        "none": (None, "weight_map must be"),
        "a missing file": ({names[0]: "other.safetensors"}, "names other.safetensors, which is not in this folder"),
        "a tensor elsewhere": ({"nowhere": "part.safetensors"}, "'nowhere' in part.safetensors, which does not contain it"),
        "a path": ({names[0]: "../part.safetensors"}, "file name '../part.safetensors'"),
        "no name": ({names[0]: 5}, "weight_map must be"),
        "an empty name": ({names[0]: ""}, "weight_map must be"),
        "a tensor less": (dict.fromkeys(names[1:], "part.safetensors"), "is missing"),
    }.values():
        indexed(copy, places)
        with pytest.raises(ModelError, match=message):
            ds.load(copy)
    indexed(copy, dict.fromkeys(names, "part.safetensors"))
    assert ds.load(copy).logits([1, 2]).shape == (2, 300)
    (copy / "part.safetensors").write_bytes((copy / "part.safetensors").read_bytes()[:-9])
    with pytest.raises(ModelError, match="part.safetensors: truncated"):
        ds.load(copy)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_without_a_part_is_refused(copy, name):
    (copy / name).unlink()
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        ds.load(copy)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_corruption_does_worse_than_an_error(saved, tmp_path, data):
    name = data.draw(st.sampled_from(["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]))
    broken = bytearray((saved / name).read_bytes())
    end = min(len(broken), 9000) - 1
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, end))] = data.draw(st.sampled_from([*b'0129-,:[]{}"e. ', 0, 255]))
    if data.draw(st.booleans()):
        first, last = (data.draw(st.integers(0, end)) for _ in range(2))
        broken[first:first] = broken[last : last + 8]
    path = tmp_path / "broken"
    path.mkdir(exist_ok=True)
    for file in saved.iterdir():
        (path / file.name).unlink(missing_ok=True)
        (path / file.name).write_bytes(broken) if file.name == name else (path / file.name).symlink_to(file)
    with contextlib.suppress(ModelError):
        model = ds.load(path)
        ids = model.tokenizer.encode("ab é 12")
        assert isinstance(model.tokenizer.decode(ids), str)
        model.logits([1, 2, 3])


TEXTS = ["abc ab", "<bos>ab<eos>", "é 12\n  x", "", "\u200b🎉 naïve"]


@pytest.mark.parametrize("adds", [{}, {"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": True}], ids=repr)
def test_token_ids_equal_those_of_transformers(copy, adds):
    config = json.loads((copy / "tokenizer_config.json").read_text()) | adds
    config["added_tokens_decoder"] = {"298": {"content": "<eos>", "special": True}}
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = PreTrainedTokenizerFast.from_pretrained(copy)
    ours = ds.load(copy).tokenizer
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.decode(ours.encode(text)) == theirs.decode(ours.encode(text), skip_special_tokens=True)


_FLAGS = {"lstrip": True, "rstrip": True, "normalized": False, "single_word": False, "special": True}
# What tokenizer_config.json and special_tokens_map.json say of tokens that are not special in tokenizer.json.
ROLES = {
    "a role": ({"eos_token": "<eos>"}, None),
    "a role, as an object": ({"eos_token": {"__type": "AddedToken", "content": "<eos>", **_FLAGS}}, None),
    "a role of a word": ({"pad_token": "ab"}, None),
    "a role of the model's own": ({"image_token": "<eos>"}, None),
    "roles of the model's own": ({"extra_special_tokens": {"image_token": "<eos>", "audio_token": "<pad>"}}, None),
    "no role, of a word": ({"extra_special_tokens": ["ab", {"__type": "AddedToken", "content": "<eos>", **_FLAGS}]}, None),
    "no role, by the older name": ({"additional_special_tokens": ["<270>", "ab", "<eos>"]}, None),
    "flags": ({"added_tokens_decoder": {"298": {"content": "<eos>", **_FLAGS}}}, None),
    "another file": ({}, {"bos_token": "<bos>", "eos_token": {"content": "<eos>", **_FLAGS}, "pad_token": "<pad>"}),
    "another file for another token": ({"bos_token": "<pad>"}, {"bos_token": "<bos>"}),
    "another file beside all tokens": (
        {"bos_token": "<pad>", "added_tokens_decoder": {"299": {"content": "<pad>", **_FLAGS}}},
        {"bos_token": "<bos>"},
    ),
}


@pytest.mark.parametrize(("settings", "special"), ROLES.values(), ids=ROLES)
def test_special_tokens_are_those_of_transformers(copy, settings, special):
    data = json.loads((copy / "tokenizer.json").read_text())
    data["added_tokens"] = [token | {"special": False} for token in data["added_tokens"]]
    data["model"]["vocab"][""] = data["model"]["vocab"].pop("<270>")  # which is no role that has no token
    (copy / "tokenizer.json").write_text(json.dumps(data))
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    if special is not None:
        (copy / "special_tokens_map.json").write_text(json.dumps(special))
    theirs, ours = PreTrainedTokenizerFast.from_pretrained(copy), ds.load(copy).tokenizer
    assert {f"{name}_token": ours.token(i) for name, i in ours.named_ids.items()} == theirs.special_tokens_map
    for text in ("a <eos> <bos>b", "abab <pad>"):
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_token_that_is_special_in_tokenizer_json_stays_special(copy):
    config = json.loads((copy / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {"299": {"content": "<pad>", **_FLAGS, "special": False}}
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    theirs, ours = PreTrainedTokenizerFast.from_pretrained(copy), ds.load(copy).tokenizer
    ids = ours.encode("a <pad> b")
    assert ids == theirs("a <pad> b")["input_ids"]
    assert 299 in ours.special and ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == "ab"


@pytest.mark.parametrize("place", ["tokenizer.json", "tokenizer_config.json"])
def test_added_tokens_that_the_model_has_no_row_for_are_text(copy, place):
    """As Gemma 3 1B is published, with one for images, and finetunes of Llama 2 with one to pad with."""
    path = copy / place
    data, token = json.loads(path.read_text()), {"content": "<image>", "special": True}
    if place == "tokenizer.json":
        whole = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | token
        data["added_tokens"].append({"id": 300, **whole})
    else:
        data |= {"added_tokens_decoder": {"300": token}, "pad_token": "<image>"}
    before = ds.load(copy).tokenizer
    path.write_text(json.dumps(data))
    assert PreTrainedTokenizerFast.from_pretrained(copy)("ab<image>")["input_ids"][-1] == 300
    model = ds.load(copy)
    for text in ["ab<image>", *TEXTS]:
        assert model.tokenizer.encode(text) == before.encode(text)
    assert len(model.tokenizer) == 300 and 300 not in model.tokenizer.special


def test_rows_of_the_model_beyond_the_tokenizer_have_no_spelling(copy, capsys):
    """Published models have a number of rows that suits a device, more than tokens."""
    data = json.loads((copy / "tokenizer.json").read_text())
    data["model"]["vocab"] = {token: i for token, i in data["model"]["vocab"].items() if i < 280}
    data["model"]["merges"] = []
    data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] < 280]
    (copy / "tokenizer.json").write_text(json.dumps(data))
    model = ds.load(copy)
    assert len(model.tokenizer) <= 280 < model.config.vocab_size
    assert model.tokenizer.token(299) == model.tokenizer.token(-1) == model.tokenizer.decode([299]) == ""
    greedy = ["--raw", "--greedy", "--max-new-tokens", "1", "--json", "--logprobs", "300"]
    assert cli.main(["generate", "ab", "--model", str(copy), *greedy]) == 0
    (step,) = json.loads(capsys.readouterr().out)["logprobs"]
    assert {found["token_id"]: found["token"] for found in step["top_raw"]}[299] == ""


def test_a_vocabulary_beyond_the_model_is_refused(copy):
    data = json.loads((copy / "tokenizer.json").read_text())
    data["model"]["vocab"]["ac"] = 300
    (copy / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ModelError, match=r"tokenizer\.json: 301 tokens, but the model has 300"):
        ds.load(copy)


def test_a_template_of_the_tokenizer_counts_too(copy):
    data = json.loads((copy / "tokenizer.json").read_text())
    begin = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [297], "tokens": ["<bos>"]}},
    }
    (copy / "tokenizer.json").write_text(json.dumps(data))
    model, theirs = ds.load(copy), PreTrainedTokenizerFast.from_pretrained(copy)
    assert model.tokenizer.encode("ab") == theirs("ab")["input_ids"] and model.tokenizer.add_bos
    messages = [{"role": "user", "content": "ab <eos>"}]
    rendered = theirs.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert model.chat_ids(messages, control_tokens="parse") == rendered
    assert 298 not in model.chat_ids(messages) and 297 not in model.chat_ids(messages)


BASE = {"version": "1.0", "added_tokens": []} | dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
BPE = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


def beginning(ids):
    """A template that puts [X] first, with or without an id."""
    text = {"Sequence": {"id": "A", "type_id": 0}}
    special = {"[X]": {"id": "[X]", "ids": ids, "tokens": ["[X]"]}} if ids else {}
    pair = [text, {"Sequence": {"id": "B", "type_id": 1}}]
    single = [{"SpecialToken": {"id": "[X]", "type_id": 0}}, text]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


BROKEN_TOKENIZERS = {
    "no unknown token": ({"model": {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "[UNK]"}}, "corrupt or not supported"),
    "no unknown piece": ({"model": {"type": "Unigram", "unk_id": None, "vocab": [["x", -1.0]]}}, "corrupt or not supported"),
    "an unknown token that is none": ({"model": {**BPE, "unk_token": "[UNK]", "vocab": {"x": 0}}}, "corrupt or not supported"),
    "a template of a token that is none": ({"model": BPE, "post_processor": beginning([])}, "corrupt or not supported"),
    "a template of an id beyond": ({"model": BPE, "post_processor": beginning([9999])}, "ids beyond the model's 300"),
    "replacements that double a text 20 times": (
        {"model": BPE, "normalizer": {"type": "Sequence", "normalizers": [DOUBLED] * 20}},
        "more than 4096 times as long",
    ),
}


@pytest.mark.parametrize(("parts", "message"), BROKEN_TOKENIZERS.values(), ids=BROKEN_TOKENIZERS)
def test_a_tokenizer_that_cannot_read_a_text_is_refused(copy, parts, message):
    (copy / "tokenizer.json").write_text(json.dumps(BASE | parts))
    with pytest.raises(ModelError, match=rf"tokenizer\.json: .*{message}"):
        ds.load(copy)


def test_a_text_that_has_no_tokens_is_refused(copy):
    words = {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}}
    (copy / "tokenizer.json").write_text(json.dumps(BASE | words))
    model = ds.load(copy)
    assert model.tokenizer.encode("a") == [0]
    for use in (model.tokenizer.encode, lambda text: model.chat_ids([{"role": "user", "content": text}])):
        with pytest.raises(ModelError, match="the tokenizer cannot read this text"):
            use("b")


def test_replacements_of_one_character_by_another_are_no_growth(copy):
    data = json.loads((copy / "tokenizer.json").read_text())
    quotes = [{"type": "Replace", "pattern": {"String": one}, "content": '"'} for one in "«»„“”‟‹›❝❞〝〞〟＂"]
    data["normalizer"] = {"type": "Sequence", "normalizers": quotes}
    (copy / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = ds.load(copy).tokenizer
    assert tokenizer.encode("„ab”") == tokenizer.encode('"ab"')


@pytest.mark.slow
def test_many_keys_and_tokens_cost_no_square_of_time(tmp_path):
    text = "{" + ",".join(f'"k{i}": 0' for i in range(200_000)) + ', "k199999": 1}'
    began = time.process_time()
    with pytest.raises(ModelError, match="'k199999' occurs twice"):
        parse_object("x", text)
    assert time.process_time() - began < 5
    path = family_models.save(family_models.model_of("llama", 0, vocab_size=20_300), tmp_path)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    settings["added_tokens_decoder"] = {str(300 + i): {"content": f"<x{i}>"} for i in range(20_000)} | {"9" * 5000: {}}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    began = time.process_time()
    assert ds.load(path).tokenizer.encode("<x7>") == [307]
    assert time.process_time() - began < 10


def test_the_error_of_a_folder_that_is_no_model_says_what_it_holds(copy, tmp_path):
    """The folder of a hub's cache has a model's in snapshots/; folders of GGUF files have a config.json or none."""
    with pytest.raises(ModelError, match="config.json is missing in this folder$"):
        ds.load(tmp_path)
    cache = tmp_path / "models--org--name"
    snapshot = cache / "snapshots" / "0a1b"
    shutil.copytree(copy, snapshot)
    with pytest.raises(ModelError, match=f"config.json is missing in this folder; there is {snapshot}$"):
        ds.load(cache)
    old = cache / "snapshots" / "f9e8"
    old.mkdir()
    os.utime(old, (0, 0))
    with pytest.raises(ModelError, match=f"there is {snapshot}$"):
        ds.load(cache)
    (snapshot / "model.safetensors").rename(snapshot / "b.gguf")
    shutil.copy(snapshot / "b.gguf", snapshot / "a.gguf")
    with pytest.raises(ModelError, match=f"there is neither .* in this folder; there is {snapshot / 'a.gguf'}$"):
        ds.load(snapshot)


@pytest.mark.parametrize("as_list", [True, False])
def test_templates_by_name(copy, as_list):
    templates = {"default": "{{ messages[0].content }}!", "tool_use": "{{ messages[0].content }}?"}
    stored = [{"name": name, "template": text} for name, text in templates.items()] if as_list else templates
    config = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": stored}))
    assert ModelFolder(copy).chat_templates() == templates
    assert ds.load(copy).chat_prompt([{"role": "user", "content": "x"}]) == "x!"


def test_templates_and_ends_of_the_folder(copy):
    (copy / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}!")
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [298, 5], "do_sample": True, "temperature": 0.5}))
    model = ds.load(copy)
    assert model.chat_prompt([{"role": "user", "content": "x"}]) == "<bos>x!"
    assert model.tokenizer.end_token_ids == {298, 5}
    assert ds.SamplingParams.from_generation_config(model.generation_config).temperature == 0.5
    assert ModelFolder(copy).chat_templates() == {"default": "{{ bos_token }}{{ messages[0].content }}!"}
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [298, 10**6]}))
    with pytest.raises(ModelError, match="generation_config.json: eos_token_id"):
        ds.load(copy)
