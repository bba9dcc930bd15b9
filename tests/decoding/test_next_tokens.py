"""Layers for next-token prediction: drafts against transformers', and what pages, chunks and dropped tokens leave of them."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
from gguf import GGUFReader

import decodestep as ds
from decodestep.decoding.slot_feed import fill_slots
from decodestep.files.gguf_file import GgufFile
from decodestep.models.checkpoint import Checkpoint
from decodestep.models.requantise import requantise
from support import family_models
from support.next_token_models import Predicting, drafted, end_of, fed, from_nothing

# family, size, layers for next-token prediction
CASES = [
    *[("deepseek_v3", 0, 1), ("deepseek_v3", 1, 2), ("deepseek_v3", 2, 3), ("glm4_moe_lite", 0, 1), ("glm4_moe_lite", 1, 2)],
    *[("glm4_moe", 0, 1), ("glm4_moe", 1, 2), ("glm4_moe", 2, 3)],
    *[("deepseek_v32", 0, 1), ("deepseek_v32", 2, 2), ("glm_moe_dsa", 0, 1), ("glm_moe_dsa", 1, 2)],
    *[("qwen3_5_text", 0, 1), ("qwen3_next", 0, 1), ("qwen3_5_moe_text", 0, 1)],
]
SOME = [*CASES[:3], CASES[5], CASES[7], CASES[8], CASES[11], CASES[12]]
HYBRID = "qwen3_5_text", "qwen3_next", "qwen3_5_moe_text"  # with layers for next-token prediction of which one is known
TOLERANCE = 2e-5
TOLERANCES = dict.fromkeys(HYBRID, 1e-4)  # transformers computes states of many tokens by matrices


@pytest.fixture(scope="module")
def predicting(tmp_path_factory):
    made = {}

    def get(family, size, depths):
        key = family, size, depths
        if key not in made:
            model = Predicting(family, size, depths, **({} if size or family in HYBRID else {"num_hidden_layers": 2}))
            made[key] = model, model.save(tmp_path_factory.mktemp("model"))
        return made[key]

    return get


@pytest.fixture
def ids():
    return np.random.default_rng(1).integers(0, 297, 80).tolist()


def count_of(depths):
    return 3 if depths == 1 else depths


@pytest.mark.parametrize(("family", "size", "depths"), CASES)
def test_drafts_equal_transformers(predicting, ids, family, size, depths):
    theirs, path = predicting(family, size, depths)
    model = ds.load(path, dtype="float32")
    assert (model.config.next_token_layers, model.config.skipped_layers) == (depths, 0)
    for n in (2, 3, 5, 17, 40):
        with fed(model) as sequence:
            model.forward([(sequence, ids[: n - 1])])
            ours = drafted(model, sequence, ids[n - 1], count_of(depths))
        drafts, rows = theirs.drafts(ids[:n], count_of(depths))
        assert ours.argmax(axis=1).tolist() == drafts
        assert family_models.relative(ours, rows) < TOLERANCES.get(family, TOLERANCE)


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa"])
def test_drafts_that_share_a_selection(tmp_path, ids, family):
    """All attend to what the first one selects and to the slots since, as in transformers with these positions; below
    index_topk that is all. Without the key each selects for itself."""
    theirs = Predicting(family, 0, num_hidden_layers=2, index_share_for_mtp_iteration=True)
    path = theirs.save(tmp_path / "sharing")
    model, selected = ds.load(path, dtype="float32"), theirs.model.config.index_topk
    alone = {}
    for n in (2, 7, selected, selected + 1, selected + 2, 17, 40):
        with fed(model) as sequence:
            model.forward([(sequence, ids[: n - 1])])
            ours = alone[n] = drafted(model, sequence, ids[n - 1], 4)
        drafts, rows = theirs.drafts(ids[:n], 4)
        assert ours.argmax(axis=1).tolist() == drafts
        assert family_models.relative(ours, rows) < TOLERANCE
    several = [fed(model) for _ in alone]
    model.forward([(sequence, ids[: n - 1]) for sequence, n in zip(several, alone, strict=True)])
    tokens = {i: ids[n - 1] for i, n in enumerate(alone)}
    ends = [end_of(sequence) for sequence in several]
    with model.decoder.next_tokens.drafting(ends, 4, model.cache.storage.next_tokens) as made:
        for step in range(4):  # of which some end earlier
            tokens = {i: token for i, token in tokens.items() if i != step}
            rows = made.logits(tokens)
            np.testing.assert_array_equal(rows, np.stack([[*alone.values()][i][step] for i in tokens]))
            tokens = {i: int(row.argmax()) for i, row in zip(tokens, rows, strict=True)}
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"index_share_for_mtp_iteration": None}))
    for n, shared in alone.items():
        own = from_nothing(path, ids[:n], 4, dtype="float32")
        np.testing.assert_array_equal(own[0], shared[0])
        assert (own[1:] == shared[1:]).all() == (n + 3 <= selected + 1)


def test_a_flag_that_is_no_flag_is_refused(tmp_path):
    path = Predicting("glm_moe_dsa", 0, num_hidden_layers=2, index_share_for_mtp_iteration="yes").save(tmp_path / "model")
    with pytest.raises(ds.ModelError, match="index_share_for_mtp_iteration must be "):
        ds.load(path)


FAULTS = {
    "the hidden state first": lambda layers, real: ("_join", lambda k, embedded, u: real._join(k, u, embedded)),
    "the state of its own token": lambda layers, real: (
        "fill",
        lambda batch, hidden, *more: real.fill(batch, np.roll(hidden, -1, 0), *more),
    ),
    "the state before the norm": lambda layers, real: (
        "fill",
        lambda batch, hidden, *more: real.fill(batch, hidden / layers._weights.norm, *more),
    ),
    "the position before": lambda layers, real: ("step", lambda *given: real.step(*given[:3], given[3] - 1, *given[4:])),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_wiring_is_seen(predicting, ids, monkeypatch, fault):
    """What random weights cannot show by how many drafts are right."""
    theirs, path = predicting("deepseek_v3", 0, 1)
    model = ds.load(path, dtype="float32")
    layers = model.decoder.next_tokens
    real = SimpleNamespace(_join=layers._join, fill=layers.fill, step=layers.step)
    monkeypatch.setattr(layers, *FAULTS[fault](layers, real))
    with fed(model) as sequence:
        model.forward([(sequence, ids[:19])])
        ours = drafted(model, sequence, ids[19], 3)
    assert family_models.relative(ours, theirs.drafts(ids[:20], 3)[1]) > 100 * TOLERANCE


@pytest.mark.parametrize(("family", "size", "depths"), SOME)
@pytest.mark.parametrize("seed", range(3))
def test_drafts_do_not_depend_on_how_the_tokens_came(predicting, ids, family, size, depths, seed):
    """Chunks of a prompt, drafts accepted or dropped, forks, sequences cut back: the bits of one that ran at once."""
    _, path = predicting(family, size, depths)
    model, rng = ds.load(path, dtype="float32"), np.random.default_rng(seed)
    sequence = fed(model)
    while len(sequence) < 60:
        n = len(sequence)
        kind = rng.choice(["run", "draft", "fork", "cut"])
        if kind == "run":
            model.forward([(sequence, ids[n : n + int(rng.integers(1, 8))])])
        elif kind == "draft":
            accepted, wrong = (int(rng.integers(0, 4)) for _ in range(2))
            tokens = ids[n : n + 1 + accepted] + rng.integers(0, 297, wrong).tolist()
            model.forward([(sequence, tokens)], drafted=[accepted + wrong])
            sequence.keep(accepted)
        elif kind == "fork":
            fork = sequence.fork()
            sequence.close()
            sequence = fork
        else:
            model.forward([(sequence, ids[n : n + 1] + rng.integers(0, 297, 3).tolist())])
            sequence.truncate(n + 1)
        n = len(sequence)
        if n and rng.random() < 0.3:
            want = from_nothing(path, ids[: n + 1], count_of(depths), dtype="float32")
            np.testing.assert_array_equal(drafted(model, sequence, ids[n], count_of(depths)), want)
    sequence.close()


@pytest.mark.parametrize("common", [17, 32, 40])
def test_drafts_after_a_snapshot(predicting, ids, common):
    """Which a sequence leaves at its end, with what the layer reads of its last token."""
    _, path = predicting("qwen3_5_text", 0, 1)
    model = ds.load(path, dtype="float32")
    with fed(model) as other:
        model.forward([(other, ids[:common])])
    with fed(model) as sequence:
        sequence.reuse(ids[:50])
        assert len(sequence) == common
        model.forward([(sequence, ids[common:49])])
        ours = drafted(model, sequence, ids[49], 3)
    np.testing.assert_array_equal(ours, from_nothing(path, ids[:50], 3, dtype="float32"))


@pytest.mark.parametrize(("family", "size", "depths"), [case for case in SOME if case[0] not in HYBRID])
@pytest.mark.parametrize(("common", "piece"), [(5, 1), (16, 50), (20, 2), (32, 1), (47, 50)])
def test_drafts_after_a_prefix_that_another_sequence_ran(predicting, ids, family, size, depths, common, piece):
    """Whole pages, and parts of one, which is copied: its last tokens run again, because the layers read a state of theirs."""
    _, path = predicting(family, size, depths)
    model = ds.load(path, dtype="float32")
    with fed(model) as other:
        model.forward([(other, ids[:common] + [5] * 40)])
    tokens = ids[:50]
    with fed(model) as sequence:
        sequence.reuse(tokens)
        in_pages = common // 16 * 16
        assert len(sequence) == (common - depths if common % 16 > depths else in_pages)
        while len(sequence) < len(tokens):
            model.forward([(sequence, tokens[len(sequence) :][:piece])])
        want = from_nothing(path, [*tokens, 7], count_of(depths), dtype="float32")
        np.testing.assert_array_equal(drafted(model, sequence, 7, count_of(depths)), want)


def test_sequences_that_nobody_drafts_from_fill_no_slots(predicting, ids, monkeypatch):
    """And what follows their pages cannot be drafted from, until it is another text."""
    _, path = predicting("deepseek_v3", 0, 1)
    model, given = ds.load(path, dtype="float32"), []
    logits = model.decoder.logits
    monkeypatch.setattr(model.decoder, "logits", lambda *arguments: (given.append(len(arguments)), logits(*arguments))[1])
    monkeypatch.setattr(model.decoder.next_tokens, "fill", None)
    with model.sequence() as other:
        model.forward([(other, ids[:40])])
        for token in ids[40:60]:
            model.forward([(other, [token])])
    with fed(model) as sequence:
        assert sequence.reuse(ids[:70]) == 48
        model.forward([(sequence, ids[48:70])])
        assert fill_slots([sequence]) == 0 and not sequence.feed.known
    assert set(given) == {2}
    monkeypatch.undo()
    with fed(model) as sequence:
        assert sequence.reuse([*ids[:20], 5]) == 20
        sequence.truncate(0)
        model.forward([(sequence, ids[1:20])])
        np.testing.assert_array_equal(drafted(model, sequence, 7, 2), from_nothing(path, [*ids[1:20], 7], 2, dtype="float32"))


@pytest.mark.parametrize(("family", "size", "depths"), CASES[:2])
@pytest.mark.parametrize("filled", [1, 9, 16])
def test_a_page_that_another_sequence_filled_too_has_the_slots_of_both(predicting, ids, family, size, depths, filled):
    """The pages of two sequences that run the same text become one, whose slots the other has not filled."""
    _, path = predicting(family, size, depths)
    model = ds.load(path, dtype="float32")
    with model.sequence() as other, fed(model) as sequence:
        for run in (ids[:filled], ids[filled:20]):
            for one in (sequence, other):
                model.forward([(one, run)])
            fill_slots([sequence])
        assert sequence.page_numbers[0] == other.page_numbers[0]
        want = from_nothing(path, [*ids[:20], 7], count_of(depths), dtype="float32")
        np.testing.assert_array_equal(drafted(model, sequence, 7, count_of(depths)), want)
    with fed(model) as again:
        assert again.reuse(ids[:30]) == 16 and again.feed.known
        model.forward([(again, ids[16:20])])
        np.testing.assert_array_equal(drafted(model, again, 7, count_of(depths)), want)


def test_tokens_wait_until_a_draft_is_wanted_or_many_do(predicting, ids, monkeypatch):
    _, path = predicting("deepseek_v3", 0, 1)
    model, filled = ds.load(path, dtype="float32"), []
    fill = model.decoder.next_tokens.fill
    monkeypatch.setattr(
        model.decoder.next_tokens, "fill", lambda batch, *rest: (filled.append(len(batch.tokens)), fill(batch, *rest))[1]
    )
    with fed(model) as sequence:
        model.forward([(sequence, ids[:30])])  # a text that is read is filled at once
        for turn in range(100):
            model.forward([(sequence, [ids[turn % 80], 5, 6])], drafted=[2])
            sequence.keep(turn % 3)
        assert filled[0] == 30 and len(filled) == 4
        assert sum(filled) + fill_slots([sequence]) == len(sequence)


def test_several_rows_draft_as_one(predicting, ids):
    _, path = predicting("deepseek_v3", 0, 1)
    model = ds.load(path, dtype="float32")
    sequences = [fed(model) for _ in range(3)]
    for sequence, n in zip(sequences, (1, 20, 33), strict=True):
        model.forward([(sequence, ids[:n])])
    alone = [drafted(model, sequence, 3, 2) for sequence in sequences]
    ends = [end_of(one) for one in sequences]
    with model.decoder.next_tokens.drafting(ends, 2, model.cache.storage.next_tokens) as made:
        first = made.logits({0: 3, 1: 3, 2: 3})
        second = made.logits({0: int(first[0].argmax()), 2: int(first[2].argmax())})
    np.testing.assert_array_equal(first, [rows[0] for rows in alone])
    np.testing.assert_array_equal(second, [alone[0][1], alone[2][1]])


def test_a_copy_of_the_embedding_counts_for_nothing(predicting, ids, tmp_path, caplog):
    """One that is no copy is named."""
    theirs, path = predicting("deepseek_v3", 0, 1)
    copies = [f"model.layers.2.{name}" for name in ("embed_tokens.weight", "shared_head.head.weight")]
    assert not caplog.text
    other = theirs.save(tmp_path, **{copies[0]: theirs.tensors()[copies[0]] + 1})
    drafts = from_nothing(other, ids[:20], 3, dtype="float32")
    np.testing.assert_array_equal(drafts, from_nothing(path, ids[:20], 3, dtype="float32"))
    assert f"tensor {copies[0]} is not model.embed_tokens.weight, which is used in its place" in caplog.text
    assert copies[1] not in caplog.text


def test_a_layer_that_lacks_a_tensor_is_left_out(predicting, ids, tmp_path):
    theirs, path = predicting("deepseek_v3", 0, 1)
    theirs.save(tmp_path, **{"model.layers.2.enorm.weight": None})
    left_out = ds.load(tmp_path, dtype="float32")
    assert (left_out.config.next_token_layers, left_out.config.skipped_layers) == (0, 1)
    assert left_out.decoder.description.endswith("; 1 layer for next-token prediction left out")
    model = ds.load(path, dtype="float32")
    assert model.decoder.description.endswith("; 1 layer for next-token prediction drafts")
    np.testing.assert_array_equal(model.logits(ids), left_out.logits(ids))


@pytest.mark.parametrize(
    ("family", "architecture"),
    [("deepseek_v3", "deepseek2"), ("glm4_moe", "glm4moe"), ("deepseek_v32", "deepseek32"), ("glm_moe_dsa", "glm-dsa")],
)
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_a_gguf_file_has_the_layers_of_its_folder(predicting, ids, tmp_path, kind, family, architecture):
    """Whose values its types have."""
    theirs, path = predicting(family, 1, 2)
    if kind == "bf16":
        path = shutil.copytree(path, tmp_path / "rounded")
        tensors = safetensors.torch.load_file(path / "model.safetensors")
        rounded = {name: value.bfloat16().float() if value.dim() > 1 else value for name, value in tensors.items()}
        safetensors.torch.save_file(rounded, path / "model.safetensors")
    file, hidden, layers = tmp_path / "model.gguf", theirs.model.config.hidden_size, theirs.model.config.num_hidden_layers
    requantise(path, file, kind, lambda *_: None)
    reader = GGUFReader(file)
    assert reader.fields[f"{architecture}.nextn_predict_layers"].contents() == 2
    assert reader.fields[f"{architecture}.block_count"].contents() == layers + 2
    names = {tensor.name: tuple(tensor.shape) for tensor in reader.tensors}
    assert names[f"blk.{layers}.nextn.eh_proj.weight"] == (2 * hidden, hidden)
    assert names[f"blk.{layers + 1}.nextn.shared_head_norm.weight"] == (hidden,)
    model = ds.load(file, dtype="float32")
    assert (model.config.layers, model.config.next_token_layers) == (layers, 2)
    drafts, folder = (from_nothing(source, ids[:30], 2, dtype="float32") for source in (file, path))
    assert family_models.relative(drafts, folder) < TOLERANCE


def test_a_file_says_of_the_layers_alone_or_of_all_blocks_which_have_an_indexer(predicting, tmp_path):
    """llama.cpp reads and its converter writes those of the layers, without the ones for next-token prediction."""
    _, path = predicting("glm_moe_dsa", 1, 2)
    requantise(path, tmp_path / "model.gguf", "f32", lambda *_: None)
    file, key = GgufFile(tmp_path / "model.gguf"), "glm-dsa.attention.indexer.types"
    types = file.metadata[key]
    assert types.tolist() == [True, False, True, False]
    for more in ([], [True], [True, True]):
        file.metadata[key] = np.array([*types, *more])
        assert Checkpoint(file).config.latent_attention.indexer.full == (True, False, True, False)
    for wrong in (types[:3], np.array([*types, True, True, True])):
        file.metadata[key] = wrong
        with pytest.raises(ds.ModelError, match=f"metadata {key} must be an array of true or false for each of 4 blocks"):
            Checkpoint(file)


@pytest.mark.parametrize(
    ("family", "architecture"), [("qwen3_5_text", "qwen35"), ("qwen3_next", "qwen3next"), ("qwen3_5_moe_text", "qwen35moe")]
)
def test_a_file_of_qwen_has_the_layer_that_a_folder_has_apart(predicting, ids, tmp_path, family, architecture):
    theirs, path = predicting(family, 0, 1)
    file = tmp_path / "model.gguf"
    requantise(path, file, "f32", lambda *_: None)
    reader = GGUFReader(file)
    flags = reader.fields[f"{architecture}.attention.recurrent_layers"].contents()
    assert flags == [True, True, True, False, False]
    norms = {tensor.name: tensor.data for tensor in reader.tensors}
    own = theirs.tensors()
    for part, name in {
        "nextn.enorm": "pre_fc_norm_embedding",
        "nextn.hnorm": "pre_fc_norm_hidden",
        "nextn.shared_head_norm": "norm",
    }.items():
        np.testing.assert_array_equal(norms[f"blk.4.{part}.weight"], own[f"mtp.{name}.weight"].numpy() + 1)
    model = ds.load(file, dtype="float32")
    assert (model.config.layers, model.config.next_token_layers) == (4, 1)
    drafts, folder = (from_nothing(source, ids[:30], 2, dtype="float32") for source in (file, path))
    assert family_models.relative(drafts, folder) < TOLERANCE


def test_the_layer_of_a_folder_with_images(predicting, ids, tmp_path):
    """Beside the text model or within it."""
    _, path = predicting("qwen3_5_text", 0, 1)
    expected = from_nothing(path, ids[:30], 2, dtype="float32")
    text = json.loads((path / "config.json").read_text())
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    for prefix in ("mtp.", "model.mtp."):
        other = shutil.copytree(path, tmp_path / prefix)
        config = {"model_type": "qwen3_5", "text_config": text, "vision_config": {}, "tie_word_embeddings": False}
        (other / "config.json").write_text(json.dumps(config))
        made = {
            name.replace("model.", "model.language_model.", 1)
            if name.startswith("model.")
            else name.replace("mtp.", prefix, 1): value
            for name, value in tensors.items()
        }
        safetensors.torch.save_file(made, other / "model.safetensors")
        np.testing.assert_array_equal(from_nothing(other, ids[:30], 2, dtype="float32"), expected)


@pytest.mark.parametrize(
    ("family", "size", "changes"),
    [
        ("deepseek_v3", 1, family_models.ALIGNED["deepseek_v3"]),
        ("glm4_moe", 1, {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32}),
        ("qwen3_5_text", 0, {}),
    ],
)
def test_the_native_step_drafts_alike(ids, tmp_path, family, size, changes):
    """Its hidden states are those of a cache of float16, and its heads padded to 16."""
    wide = Predicting(family, size, 1, **changes)
    path = wide.save(tmp_path)
    assert "native" in ds.load(path).decoder.description
    assert family_models.relative(from_nothing(path, ids[:40], 1), wide.drafts(ids[:40], 1)[1]) < 1e-2
