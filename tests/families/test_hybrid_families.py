"""Families with layers that have a state: against transformers at several lengths, in pieces, and as files."""

from __future__ import annotations

import json
import shutil
from functools import cache

import numpy as np
import pytest
import safetensors.torch
import torch

import decodestep as ds
from decodestep import cli
from decodestep.decoding.decoder import TokenBatch
from decodestep.errors import ModelError
from decodestep.families import lfm2_moe
from decodestep.files.gguf_file import GgufFile
from decodestep.models.checkpoint import Checkpoint
from support import family_models, hybrid_gguf_files
from support.families import CASES
from support.hybrid_gguf_files import write_gguf

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_torch_thread")]

FAMILIES = family_models.HYBRID
SIZES = [(family, size) for family in FAMILIES for size in range(len(CASES[family].sizes))]
LOGITS = 1e-4  # of their spread: transformers computes states of many tokens by matrices


@pytest.fixture(scope="module")
def model():
    return cache(family_models.build_model)


def ids_of(count):
    return np.random.default_rng(count).integers(0, 297, count)


def spread(mine, theirs):
    return np.abs(mine - theirs).max() / (theirs.max() - theirs.min())


def run(decoder, texts, ends):
    """The logits of every token of texts that are run together up to each of some positions."""
    count, pages = len(texts), -(-max(map(len, texts)) // 16)
    storage, table = decoder.new_storage(count * pages, count + 1), np.arange(count * pages).reshape(count, pages)
    rows, made, first = np.arange(1, count + 1), [[] for _ in texts], 0
    for end in ends:
        parts = [text[first:end] for text in texts]
        sequence = np.repeat(np.arange(count), [len(part) for part in parts])
        positions = np.concatenate([first + np.arange(len(part)) for part in parts])
        slots = rows if first else np.zeros_like(rows)
        batch = TokenBatch(np.concatenate(parts), sequence, positions, table, np.arange(len(sequence)), None, slots, rows)
        logits = decoder.logits(batch, storage)
        for row in range(count):
            made[row].append(logits[sequence == row])
        first = end
    return [np.concatenate(parts) for parts in made]


@pytest.mark.parametrize(("family", "size"), SIZES)
def test_logits_are_those_of_transformers_at_every_length(model, tmp_path, family, size):
    theirs = model(family, size)
    mine = ds.load(family_models.save(theirs, tmp_path), dtype="float32")
    for count in (1, 2, 67, 300):
        ids = ids_of(count)
        assert spread(mine.logits(ids), family_models.model_logits(theirs, ids)) < LOGITS


@pytest.mark.parametrize(("family", "size"), SIZES)
def test_pieces_and_batches_have_the_same_bits(model, tmp_path, family, size):
    decoder = ds.load(family_models.save(model(family, size), tmp_path), dtype="float32").decoder
    text, other = ids_of(70), ids_of(45)
    (whole,) = run(decoder, [text], [70])
    (pieces,) = run(decoder, [text], [1, 2, 5, 16, 17, 50, 70])
    together = run(decoder, [other, text, text[:3]], [2, 40, 70])
    for logits in (pieces, together[1]):
        np.testing.assert_array_equal(logits, whole)
    np.testing.assert_array_equal(together[0], run(decoder, [other], [45])[0])


@pytest.mark.parametrize(("family", "size"), family_models.in_gguf("hybrid"))
def test_a_file_as_llama_cpps_converter_writes_it_has_the_same_logits(model, tmp_path, family, size):
    theirs, ids = model(family, size), ids_of(120)
    mine = ds.load(write_gguf(theirs, tmp_path / "model.gguf"), dtype="float32")
    assert mine.config.architecture == hybrid_gguf_files.architecture_of(theirs.config)
    assert spread(mine.logits(ids), family_models.model_logits(theirs, ids)) < LOGITS


@pytest.mark.parametrize(("family", "size"), family_models.in_gguf("hybrid"))
def test_a_written_file_has_the_tensors_of_llama_cpps_converter(model, tmp_path, family, size):
    """Of their names and shapes, and to the bit where nothing is computed."""
    folder = family_models.save(model(family, size), tmp_path / "folder")
    assert cli.main(["quantize", str(folder), str(tmp_path / "ours.gguf"), "--type", "f32"]) == 0
    ours, theirs = GgufFile(tmp_path / "ours.gguf"), GgufFile(write_gguf(model(family, size), tmp_path / "theirs.gguf"))
    assert {name: tensor.shape for name, tensor in ours.tensors.items()} == {
        name: tensor.shape for name, tensor in theirs.tensors.items()
    }
    for name, tensor in ours.tensors.items():
        mine, other = (each.read().view(np.float32) for each in (tensor, theirs.tensors[name]))
        np.testing.assert_allclose(mine, other, rtol=3e-7 if "ssm_a" in name or "norm" in name else 0, err_msg=name)


def test_heads_of_values_as_many_as_of_keys_keep_their_order_in_a_file(model, tmp_path):
    folder, ids = family_models.save(model("qwen3_5_text", 2), tmp_path / "folder"), ids_of(60)
    assert cli.main(["quantize", str(folder), str(tmp_path / "m.gguf"), "--type", "f32"]) == 0
    mine = ds.load(tmp_path / "m.gguf", dtype="float32")
    assert mine.config.delta is not None and not mine.config.delta.tiled
    np.testing.assert_array_equal(mine.logits(ids), ds.load(folder, dtype="float32").logits(ids))


def test_an_older_file_of_qwen3_next_has_queries_keys_values_and_gates_in_one(model, tmp_path):
    theirs, ids = model("qwen3_next", 0), ids_of(60)
    path = write_gguf(theirs, tmp_path / "model.gguf", unsplit=True)
    assert spread(ds.load(path, dtype="float32").logits(ids), family_models.model_logits(theirs, ids)) < LOGITS


def test_a_file_that_says_an_interval_alone(model, tmp_path):
    theirs, ids = model("qwen3_5_text", 0), ids_of(60)
    keys = {"attention.recurrent_layers": None, "full_attention_interval": 4}
    path = write_gguf(theirs, tmp_path / "model.gguf", **keys)
    assert spread(ds.load(path, dtype="float32").logits(ids), family_models.model_logits(theirs, ids)) < LOGITS


CONTRADICTIONS = {
    "layers": ("qwen3_5_text", {"attention.recurrent_layers": [True, True, False, True]}, "recurrent_layers contradicts"),
    "too few layers": (
        "qwen3_5_text",
        {"attention.recurrent_layers": [True]},
        "must be an array of true or false for each of 4 blocks",
    ),
    "an interval": (
        "qwen3_5_text",
        {"attention.recurrent_layers": None, "full_attention_interval": 2},
        "full_attention_interval 2 contradicts",
    ),
    "key heads": ("lfm2", {"attention.head_count_kv": [2, 0, 2]}, "head_count_kv is not 0 in the same layers"),
    "heads of two sizes": ("qwen3_5_text", {"ssm.time_step_rank": 5}, "5 value heads of 96 values on 2 key heads"),
    "no feed-forward blocks": (
        "nemotron_h",
        {"feed_forward_length": [0] * 5},
        "nemotron_h.feed_forward_length 0 in all layers: a model without feed-forward blocks is not supported",
    ),
    "groups": ("nemotron_h", {"ssm.group_count": 3}, "4 heads of 128 values in 3 groups of Mamba2"),
    "another kernel": ("lfm2", {"shortconv.l_cache": 4}, r"shortconv.conv.weight has shape \(64, 3\), not \(64, 4\)"),
}


@pytest.mark.parametrize(("family", "keys", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_keys_of_a_file_that_contradict_its_tensors_are_refused(model, tmp_path, family, keys, message):
    path = write_gguf(model(family, 0), tmp_path / "model.gguf", **keys)
    with pytest.raises(ModelError, match=message):
        ds.load(path, dtype="float32")


def changed(folder, target, *, tensors=lambda all_: all_, remove=(), **keys):
    """A copy of a folder with other tensors, and other keys in config.json."""
    shutil.copytree(folder, target)
    data = json.loads((target / "config.json").read_text())
    data = {key: value for key, value in data.items() if key not in remove} | keys
    (target / "config.json").write_text(json.dumps(data))
    stored = safetensors.torch.load_file(target / "model.safetensors")
    safetensors.torch.save_file(tensors(stored), target / "model.safetensors")
    return target


def same(folder, other):
    ids = ids_of(40)
    np.testing.assert_array_equal(ds.load(other, dtype="float32").logits(ids), ds.load(folder, dtype="float32").logits(ids))


def test_a_file_of_nemotron_leaves_out_the_layer_for_next_token_prediction(model, tmp_path):
    """Which llama.cpp's converter writes as one block with attention, a norm, and experts."""
    keys = {"block_count": 5, "attention.head_count_kv": [0, 0, 2, 0, 2], "feed_forward_length": [0, 24, 0, 24, 24]}
    file = GgufFile(write_gguf(model("nemotron_h", 2), tmp_path / "model.gguf", **keys, nextn_predict_layers=1))
    for part in ("eh_proj", "enorm", "hnorm", "shared_head_norm"):
        file.tensors[f"blk.4.nextn.{part}.weight"] = file.tensors["blk.2.attn_norm.weight"]
    file.tensors["blk.4.post_attention_norm.weight"] = file.tensors["blk.3.attn_norm.weight"]
    for i in (2, 3):
        for name in [name for name in file.tensors if name.startswith(f"blk.{i}.")]:
            file.tensors[name.replace(f"blk.{i}.", "blk.4.")] = file.tensors[name]
    checkpoint = Checkpoint(file)
    checkpoint.check()
    assert (checkpoint.config.layers, checkpoint.config.next_token_layers, checkpoint.config.skipped_layers) == (4, 0, 1)


@pytest.mark.parametrize("family", ["qwen3_next", "nemotron_h"])
def test_layers_for_next_token_prediction_are_left_out(model, tmp_path, family):
    folder = family_models.save(model(family, 0), tmp_path / "folder")
    more = {"mtp.fc.weight": torch.zeros(2, 4), "mtp.layers.0.mlp.experts.0.up_proj.weight": torch.zeros(3, 3)}
    same(folder, changed(folder, tmp_path / "other", tensors=lambda all_: all_ | more))


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_the_text_model_of_a_folder_with_images(model, tmp_path, family):
    folder = family_models.save(model(f"{family}_text", 0), tmp_path / "folder")
    text = json.loads((folder / "config.json").read_text())

    def beside(tensors):
        made = {name.replace("model.", "model.language_model.", 1): value for name, value in tensors.items()}
        return made | {"model.visual.patch_embed.weight": torch.zeros(3, 2), "mtp.norm.weight": torch.zeros(3)}

    outer = {"model_type": family, "text_config": text, "vision_config": {}, "tie_word_embeddings": False}
    same(folder, changed(folder, tmp_path / "other", tensors=beside, remove=text.keys(), **outer))


def test_experts_of_a_layer_may_be_together_in_a_folder(model, tmp_path):
    folder = family_models.save(model("qwen3_5_moe_text", 0), tmp_path / "folder")

    def together(tensors):
        made = {name: value for name, value in tensors.items() if ".experts." not in name}
        of_parts = {
            part: [name for name in tensors if f".{part}_proj" in name and ".experts.0." in name] for part in ("gate", "down")
        }
        for gate in of_parts["gate"]:
            names = [gate.replace("experts.0", f"experts.{e}") for e in range(7)]
            both = [torch.cat([tensors[name], tensors[name.replace("gate_proj", "up_proj")]]) for name in names]
            made[gate.replace("0.gate_proj.weight", "gate_up_proj")] = torch.stack(both)
        for down in of_parts["down"]:
            every = [tensors[down.replace("experts.0", f"experts.{e}")] for e in range(7)]
            made[down.replace("0.down_proj.weight", "down_proj")] = torch.stack(every)
        return made

    other = changed(folder, tmp_path / "other", tensors=together)
    assert any(name.endswith("experts.gate_up_proj") for name in safetensors.torch.load_file(other / "model.safetensors"))
    same(folder, other)
    for path in (folder, other):
        assert cli.main(["quantize", str(path), str(path) + ".gguf", "--type", "f32"]) == 0
    same(f"{folder}.gguf", f"{other}.gguf")


def test_older_keys_and_names_mean_the_same(model, tmp_path):
    nemotron = family_models.save(model("nemotron_h", 2), tmp_path / "nemotron")

    def renamed(tensors):
        return {name.replace("model.", "backbone.", 1): value for name, value in tensors.items()}

    older = {"hybrid_override_pattern": "ME*E", "num_hidden_layers": 9}
    names = ("layers_block_type", "layer_types")
    same(nemotron, changed(nemotron, tmp_path / "a", tensors=renamed, remove=names, **older))
    lfm2 = family_models.save(model("lfm2", 1), tmp_path / "lfm2")
    older = {"block_ff_dim": 40, "tie_embedding": True, "full_attn_idxs": [1]}
    names = ("intermediate_size", "tie_word_embeddings", "layer_types")
    same(lfm2, changed(lfm2, tmp_path / "b", remove=names, **older))
    granite = family_models.save(model("granitemoehybrid", 1), tmp_path / "granite")
    same(granite, changed(granite, tmp_path / "c", layer_types=["mamba", "attention", "mamba"]))
    qwen = family_models.save(model("qwen3_5_text", 0), tmp_path / "qwen")
    same(qwen, changed(qwen, tmp_path / "d", remove=("layer_types",)))


def test_a_rope_without_a_factor_is_one_of_a_quarter_of_a_head(model, tmp_path):
    folder = family_models.save(model("qwen3_5_text", 0), tmp_path / "folder")
    rope = {"rope_type": "default", "rope_theta": 1e7}
    other = changed(folder, tmp_path / "other", remove=("partial_rotary_factor",), rope_parameters=rope)
    assert ds.load(other, dtype="float32").config.rotated == 8
    same(folder, other)


ENV = {
    "qwen3_5_text": ("in 1 of the layers; in 3 the gated delta rule, 6 heads of 16 x 16", 3 * (6 * 16 * 16 + 3 * 160), 3 * 172),
    "lfm2": ("in 1 of the layers; in 2 a short convolution", 2 * 2 * 64, 2 * 64),
    "nemotron_h": ("in 1 of the layers; in 2 Mamba2, 4 heads of 16 x 32", 2 * (4 * 16 * 32 + 3 * 192), 2 * (192 + 4)),
}


@pytest.mark.parametrize(("family", "said", "values", "drafted"), [(family, *facts) for family, facts in ENV.items()])
def test_env_says_what_layers_have(model, tmp_path, capsys, family, said, values, drafted):
    path = family_models.save(model(family, 0), tmp_path)
    assert cli.main(["env", "--model", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["model"]
    assert said in facts["attention"] and facts["state_bytes"] == 4 * values
    assert facts["draft_bytes"] == 4 * drafted * facts["runs"].startswith("one native call")
    assert cli.main(["env", "--model", str(path)]) == 0
    assert f", and {4 * values / 2**20:.2f} MiB per sequence and snapshot" in capsys.readouterr().out


def test_weights_of_lfm2s_experts_are_divided_by_a_little_more_than_their_sum(tmp_path, monkeypatch):
    """Which counts for tokens that no expert scores high."""
    theirs = family_models.build_model("lfm2_moe", 0)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith("feed_forward.gate.weight"):
                parameter.copy_(20 * parameter[:1] + 0.2 * parameter)  # all high, or all low
    path, ids = family_models.save(theirs, tmp_path), ids_of(300)
    expected = family_models.model_logits(theirs, ids)
    assert spread(ds.load(path, dtype="float32").logits(ids), expected) < LOGITS
    monkeypatch.setattr(lfm2_moe, "_EPS", 1e-20)
    assert spread(ds.load(path, dtype="float32").logits(ids), expected) > 100 * LOGITS


def test_steps_of_mamba2_are_not_clamped(tmp_path):
    """As in transformers' form for one token; its form for many clamps them to time_step_min."""
    theirs = family_models.build_model("nemotron_h", 0, time_step_min=0.3)
    mine = ds.load(family_models.save(theirs, tmp_path), dtype="float32")
    ids, rows = ids_of(6), []
    with torch.no_grad():
        past = None
        for token in ids:
            out = theirs(torch.tensor([[int(token)]]), past_key_values=past, use_cache=True)
            past = out.past_key_values
            rows.append(out.logits[0, -1].numpy())
    assert spread(mine.logits(ids)[1:], np.stack(rows)[1:]) > 1e-3  # of the first token, which has no state yet
    clamped = family_models.build_model("nemotron_h", 0, time_step_min=1e-9)
    assert spread(mine.logits(ids), family_models.model_logits(clamped, ids)) < LOGITS
