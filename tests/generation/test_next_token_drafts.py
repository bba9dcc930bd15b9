"""Drafts by the checkpoint's layers for next-token prediction: no text changes, and each draft is that of its tokens alone."""

from __future__ import annotations

import numpy as np
import pytest

import decodestep as ds
from decodestep import SamplingParams
from decodestep.generation.drafts import drafters_of
from decodestep.generation.drafts.next_token_drafts import NextTokenDrafts
from support import family_models, tiny_gguf_files
from support.next_token_models import Predicting
from support.state_models import give_state

KINDS = [
    SamplingParams(max_new_tokens=40, do_sample=False),
    SamplingParams(max_new_tokens=40, seed=1, temperature=0.8),
    SamplingParams(max_new_tokens=40, seed=2, top_p=0.9, repetition_penalty=1.2),
    SamplingParams(max_new_tokens=40, seed=3, top_k=20, presence_penalty=0.5),
    SamplingParams(max_new_tokens=40, seed=4, regex="[a-f]{3,40}"),
]
# By what the decoder or its attention is, or how many layers draft: the family and its size, how many do, and changes of the
# config.
MODELS = {
    "native": ("deepseek_v3", 1, 1, family_models.ALIGNED["deepseek_v3"]),
    "layers": ("deepseek_v3", 1, 1, {}),
    "two": ("deepseek_v3", 1, 2, {}),
    "grouped": ("glm4_moe", 1, 1, {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32}),
    "selecting": ("glm_moe_dsa", 1, 1, family_models.ALIGNED["glm_moe_dsa"] | {"index_topk": 8}),
    "selecting in layers": ("deepseek_v32", 0, 1, {}),
    "selecting once": ("glm_moe_dsa", 0, 1, {"index_share_for_mtp_iteration": True}),
    "hybrid": ("qwen3_5_text", 0, 1, {}),
}


@pytest.fixture(scope="module", params=MODELS)
def predicting(request, tmp_path_factory):
    family, size, depths, changes = MODELS[request.param]
    made = Predicting(family, size, depths, agreeing=True, **changes)
    return made, made.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=[False, True], ids=["", "with a state"])
def load(request):
    """`load`, perhaps of a model whose logits depend on a recurrent state, if it has none."""

    def load_path(path):
        model = ds.load(path)
        if request.param and model.config.mixers:
            pytest.skip("it has one")
        return give_state(model) if request.param else model

    return load_path


@pytest.fixture
def always(monkeypatch):
    """Drafts as long as they may be, whatever they take."""
    monkeypatch.setattr("decodestep.generation.drafts.drafting.choose_lengths", lambda offers, *_: [o.tokens for o in offers])


def prompts_of(rng):
    shared = rng.integers(0, 250, 20).tolist()
    return [shared, [*shared, 7, 9], rng.integers(0, 250, 1).tolist(), shared[:18], rng.integers(0, 250, 33).tolist()]


@pytest.mark.parametrize("seed", range(2))
def test_no_text_changes(predicting, always, seed, load):
    """Rows side by side, with prefixes of one another, sampled and greedy."""
    model = load(predicting[1])
    prompts = prompts_of(np.random.default_rng(seed))
    plain = [ds.generate(model, [prompt], kind, draft=None)[0] for prompt, kind in zip(prompts, KINDS, strict=True)]
    model.cache.clear()
    drafted = ds.generate(model, prompts, KINDS, draft="mtp")
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    assert [one.finish_reason for one in drafted] == [one.finish_reason for one in plain]
    assert sum(one.accepted for one in drafted) > 10


@pytest.mark.slow
def test_each_draft_is_that_of_its_tokens_alone(predicting, always, monkeypatch):
    """After drafts that were accepted or not, in every place of a page, in a batch."""
    theirs, path = predicting
    model, seen = ds.load(path, dtype="float32"), []
    real = NextTokenDrafts.propose_all

    def recorded(self, asked):
        made = real(self, asked)
        seen.extend((list(row.history.tokens), draft) for (_, row, _), draft in zip(asked, made, strict=True))
        return made

    monkeypatch.setattr(NextTokenDrafts, "propose_all", recorded)
    prompts = prompts_of(np.random.default_rng(5))
    params = SamplingParams(do_sample=False, max_new_tokens=30, ignore_eos=True)
    completions = ds.generate(model, prompts, params, draft="mtp")
    assert 20 < sum(one.accepted for one in completions) < sum(one.drafted for one in completions)
    for tokens, draft in seen[::3]:
        assert draft == theirs.drafts(tokens, len(draft))[0]


def test_an_engine_drafts_with_these_layers_and_by_lookup(predicting, always):
    model = ds.load(predicting[1])
    prompt = [5, 6, 7, 8, 9] * 4
    params = SamplingParams(seed=3, max_new_tokens=30, ignore_eos=True)
    plain = ds.generate(model, [prompt], params, draft=None)[0].token_ids
    with ds.Engine(model) as engine:
        assert [one.token_ids for one in engine.submit(prompt, params).result()] == [plain]
    assert [isinstance(factory, NextTokenDrafts) for factory in drafters_of(model, "auto")] == [False, True]
    assert [isinstance(factory, NextTokenDrafts) for factory in drafters_of(model, "mtp")] == [True]


def test_a_row_that_follows_another_drafts_at_once(predicting, always, load):
    """As the next turn of a chat does: of what a row has drawn, all slots are filled once it ends."""
    model = load(predicting[1])
    params = SamplingParams(do_sample=False, max_new_tokens=20, ignore_eos=True)
    [first] = ds.generate(model, [[5, 6, 7, 8, 9]], params, draft="mtp")
    text = [*first.prompt_token_ids, *first.token_ids, 3, 4]
    [second] = ds.generate(model, [text], params, draft="mtp")
    assert second.cached_tokens > 0 < second.drafted
    assert second == ds.generate(load(predicting[1]), [text], params, draft=None)[0]


def test_without_drafts_no_slot_is_filled(predicting, monkeypatch):
    model = ds.load(predicting[1])
    monkeypatch.setattr(model.decoder.next_tokens, "fill", None)
    params = SamplingParams(max_new_tokens=20, seed=1, ignore_eos=True)
    for draft in (None, "lookup"):
        assert len(ds.generate(model, [[5, 6, 7]], params, draft=draft)[0].token_ids) == 20
    with ds.Engine(model) as engine:
        assert len(engine.submit([5, 6, 7], params.replace(draft=False)).result()[0].token_ids) == 20


def test_a_model_without_such_layers_is_refused(tmp_path):
    model = ds.load(tiny_gguf_files.write(tmp_path / "model.gguf", context=100))
    with pytest.raises(
        ValueError, match='draft must be another than "mtp" for a model without layers for next-token prediction'
    ):
        ds.generate(model, [[1, 2]], draft="mtp")
    assert len(drafters_of(model, "auto")) == 1
