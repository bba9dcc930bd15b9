"""Latent attention over the positions that an indexer selects, in models: cuts, batches, forks and what files leave unsaid."""

from __future__ import annotations

import json
import logging
import re

import numpy as np
import pytest

import decodestep as ds
from support import family_models, latent_gguf_files
from support.tolerances import LOGITS

pytestmark = pytest.mark.usefixtures("one_torch_thread")
IDS = np.random.default_rng(1).integers(0, 297, 90)
GREEDY = ds.SamplingParams(do_sample=False, max_new_tokens=20, ignore_eos=True)
FAMILIES = ("deepseek_v32", "glm_moe_dsa")
KINDS = {
    "layers": {"dtype": "float32"},
    "native": {},
    "bytes": {"cache_dtype": "int8"},
    "byte index": {"index_cache_dtype": "int8"},
    "all bytes": {"cache_dtype": "int8", "index_cache_dtype": "int8"},
}
each_kind = pytest.mark.parametrize("kind", KINDS)
each_family = pytest.mark.parametrize("family", FAMILIES)


def build(family, kind, **changes):
    """Of glm_moe_dsa one with layers that share a selection."""
    sizes = {} if kind == "layers" else family_models.ALIGNED[family] | {"index_topk": 8}
    return family_models.build_model(family, FAMILIES.index(family), **sizes | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = {}

    def make(family, kind, **changes):
        key = family, kind, *changes.items()
        if key not in made:
            made[key] = family_models.save(build(family, kind, **changes), tmp_path_factory.mktemp(family))
        return made[key]

    return make


@each_family
@each_kind
def test_up_to_as_many_positions_as_are_selected_the_bits_are_those_of_dense_attention(folder, family, kind):
    few, many = (ds.load(folder(family, kind, index_topk=k), **KINDS[kind]).logits(IDS) for k in (24, 400))
    np.testing.assert_array_equal(few[:24], many[:24])
    assert (few[24:] != many[24:]).any(axis=1).all()


@each_family
@each_kind
def test_cuts_forks_roll_backs_and_shared_prefixes_change_no_bit(folder, family, kind):
    """The index cache has the pages of the other caches: nothing else is kept of a sequence."""
    model = ds.load(folder(family, kind), **KINDS[kind])
    whole = model.logits(IDS)
    for cuts in ((1,), (8, 9, 10), (16, 17, 64), (7, 40)):
        with model.sequence() as sequence:
            parts = [model.forward([(sequence, part)], every=True) for part in np.split(IDS, cuts)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    with model.sequence() as one:
        model.forward([(one, IDS[:50])])
        with one.fork() as other:
            beside = model.forward([(other, IDS[50:60]), (one, IDS[60:61])], every=True)
            np.testing.assert_array_equal(beside[:10], whole[50:60])
            one.truncate(37)
            both = model.forward([(one, IDS[37:]), (other, IDS[60:])], every=True)
            np.testing.assert_array_equal(both, np.concatenate([whole[37:], whole[60:]]))
    with model.sequence(IDS) as again:  # whose pages the cache holds
        assert len(again) > 0
        held = len(again)
        np.testing.assert_array_equal(model.forward([(again, IDS[held:])], every=True), whole[held:])


@each_family
@each_kind
def test_texts_do_not_depend_on_the_batch_the_threads_and_drafts(folder, family, kind):
    model = ds.load(folder(family, kind), **KINDS[kind])
    prompts = [IDS[:40].tolist(), [*IDS[:40].tolist(), 5, 6], IDS[20:23].tolist(), IDS[50:].tolist()]
    alone = [ds.generate(model, [prompt], GREEDY, draft=None)[0].token_ids for prompt in prompts]
    for threads in (1, 3):
        with ds.use_threads(threads):
            together = ds.generate(model, prompts, GREEDY, draft="lookup")
        assert [done.token_ids for done in together] == alone


def test_a_file_that_does_not_say_which_layers_have_an_indexer_of_their_own(tmp_path, caplog):
    """Tensors in all layers: texts end where the selection would begin. In some: those have one."""
    model = family_models.build_model("glm_moe_dsa", 0, index_topk=30)
    unsaid = {"attention.indexer.types": None}
    with caplog.at_level(logging.WARNING):
        mine = ds.load(latent_gguf_files.write_gguf(model, tmp_path / "all.gguf", **unsaid), dtype="float32")
    reason = "glm-dsa.attention.indexer.types is missing; load(indexer_types=...) or --indexer-types says what it would"
    assert f"texts end at 30 tokens: {reason}" in caplog.text
    assert mine.config.context == 30
    with pytest.raises(
        ValueError, match=f"prompt must be shorter than the context of 30 tokens [(]{re.escape(reason)}[)]; got 40"
    ):
        ds.generate(mine, [IDS[:40].tolist()])
    with pytest.raises(ValueError, match=f"no longer than the context of 30 tokens [(]{re.escape(reason)}[)]; got 31"):
        mine.forward([(mine.sequence(), IDS[:31])])
    assert family_models.relative(mine.logits(IDS[:30]), family_models.model_logits(model, IDS[:30])) < LOGITS
    shared = family_models.build_model("glm_moe_dsa", 1)
    mine = ds.load(latent_gguf_files.write_gguf(shared, tmp_path / "some.gguf", **unsaid), dtype="float32")
    assert family_models.relative(mine.logits(IDS), family_models.model_logits(shared, IDS)) < LOGITS


def test_the_pattern_that_a_file_leaves_unsaid(tmp_path):
    """A file with the tensors of an indexer in all layers is the model of whatever pattern it is given."""
    types = ["full", "shared", "full", "shared"]
    model = family_models.build_model("glm_moe_dsa", 0, num_hidden_layers=4)
    path = latent_gguf_files.write_gguf(model, tmp_path / "model.gguf", **{"attention.indexer.types": None})
    every = ds.load(path, dtype="float32", indexer_types="FFFF")
    assert family_models.relative(every.logits(IDS), family_models.model_logits(model, IDS)) < LOGITS
    assert every.config.context == model.config.max_position_embeddings
    shared = family_models.build_model("glm_moe_dsa", 0, num_hidden_layers=4, indexer_types=types)
    shared.load_state_dict({name: value for name, value in model.state_dict().items() if name in shared.state_dict()})
    for said in (types, "FSFS"):
        mine = ds.load(path, dtype="float32", indexer_types=said)
        assert family_models.relative(mine.logits(IDS), family_models.model_logits(shared, IDS)) < LOGITS


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("indexer_types must have 'full' or 'shared' for each of 3 layers; got 2", "FS"),
        (
            'load: indexer_types must be "full" or "shared" for each layer, or a string of F and S, the first of them full',
            "SFF",
        ),
        ("load: indexer_types must be .*; got 5", 5),
        ("load: indexer_types must be .*; got 'FxS'", "FxS"),
    ],
)
def test_refused_patterns(tmp_path, message, said):
    model = family_models.build_model("glm_moe_dsa", 0)
    path = latent_gguf_files.write_gguf(model, tmp_path / "model.gguf", **{"attention.indexer.types": None})
    with pytest.raises((ValueError, ds.ModelError), match=message):
        ds.load(path, indexer_types=said)


def test_a_pattern_of_a_checkpoint_that_says_it_is_refused(tmp_path):
    model = family_models.build_model("glm_moe_dsa", 0)
    paths = [latent_gguf_files.write_gguf(model, tmp_path / "model.gguf"), family_models.save(model, tmp_path / "folder")]
    for path in paths:
        with pytest.raises(
            ds.ModelError, match="indexer_types is for a GGUF file of glm-dsa without attention.indexer.types alone"
        ):
            ds.load(path, indexer_types="FFF")


def test_index_keys_as_bytes(folder):
    """They take less memory and select almost the same positions; below their number the bits are those of other types."""
    path = folder("deepseek_v32", "native", index_topk=24)
    wide, narrow = (ds.load(path, index_cache_dtype=kept) for kept in ("auto", "int8"))
    assert "index keys as int8" in narrow.decoder.description
    width, layers = wide.config.latent_attention.indexer.head_dim, wide.config.layers
    assert wide.cache.page_bytes - narrow.cache.page_bytes == 16 * layers * (2 * width - (width + 4))
    logits = [model.logits(IDS) for model in (wide, narrow)]
    np.testing.assert_array_equal(logits[0][:24], logits[1][:24])
    assert (logits[0][24:] != logits[1][24:]).any()
    assert np.median(np.abs(logits[0] - logits[1]).max(axis=1)) < 0.05 * np.abs(logits[0]).max()


def test_refused_types_of_index_keys(folder, tmp_path):
    with pytest.raises(ValueError, match="^load: index_cache_dtype must be one of 'auto', 'int8'; got 'float16'"):
        ds.load(folder("deepseek_v32", "native"), index_cache_dtype="float16")
    with pytest.raises(ds.ModelError, match="index_cache_dtype 'int8' is not supported: dtype float32"):
        ds.load(folder("deepseek_v32", "native"), dtype="float32", index_cache_dtype="int8")
    path = family_models.save(family_models.build_model("llama", 0), tmp_path)
    with pytest.raises(ds.ModelError, match="index_cache_dtype 'int8' is not supported: "):
        ds.load(path, index_cache_dtype="int8")


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (
            "indexer_types must have 'full' or 'shared' for each of 3 layers, and 'full' for the first",
            {"indexer_types": ["full"]},
        ),
        ("index_topk_pattern must have 'full' or 'shared' for each of 3 layers", {"index_topk_pattern": "SFF"}),
        ("q_lora_rank must be given where there is an indexer", {"q_lora_rank": None}),
        ("index_head_dim 4 is less than qk_rope_head_dim 8", {"index_head_dim": 4}),
    ],
)
def test_refused_folders(tmp_path, message, changes):
    path = family_models.save(family_models.build_model("glm_moe_dsa", 0), tmp_path)
    config = json.loads((path / "config.json").read_text())
    if "index_topk_pattern" in changes:
        del config["indexer_types"]
    (path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ds.ModelError, match=message):
        ds.load(path)
