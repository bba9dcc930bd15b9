"""Latent attention over the positions that an indexer selects, in models: cuts, batches, forks and what files leave unsaid."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest

import decodestep as ds
from support import family_models, latent_gguf_files
from support.tolerances import LOGITS

pytestmark = pytest.mark.usefixtures("one_torch_thread")
IDS = np.random.default_rng(1).integers(0, 297, 90)
GREEDY = ds.SamplingParams(do_sample=False, max_new_tokens=20, ignore_eos=True)
FAMILIES = ("deepseek_v32", "glm_moe_dsa")
KINDS = {"layers": {"dtype": "float32"}, "native": {}, "bytes": {"cache_dtype": "int8"}}
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
    assert "glm-dsa.attention.indexer.types is missing, so texts end at 30 tokens" in caplog.text
    assert mine.config.context == 30
    assert family_models.relative(mine.logits(IDS[:30]), family_models.model_logits(model, IDS[:30])) < LOGITS
    shared = family_models.build_model("glm_moe_dsa", 1)
    mine = ds.load(latent_gguf_files.write_gguf(shared, tmp_path / "some.gguf", **unsaid), dtype="float32")
    assert family_models.relative(mine.logits(IDS), family_models.model_logits(shared, IDS)) < LOGITS


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
