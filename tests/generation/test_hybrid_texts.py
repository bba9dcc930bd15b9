"""Hybrid models, whose layers have states: a text is the same to the bit however it is computed."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import decodestep as ds
from decodestep.decoding.page_pool import PagePool
from decodestep.serving import Engine
from support import family_models
from support.scripted_drafts import partly_right

SIZES = {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 1024}
MODELS = [
    (family, size, dtype)
    for family, size in (("qwen3_5_text", 0), ("granitemoehybrid", 1), ("lfm2", 0), ("nemotron_h", 0))
    for dtype in ("float32", "bfloat16", "int8")
]


@pytest.fixture(scope="module", params=MODELS, ids=lambda case: f"{case[0]}-{case[2]}")
def model(request, tmp_path_factory):
    family, size, dtype = request.param
    sizes = SIZES if dtype == "float32" else SIZES | (family_models.ALIGNED.get(family) or {})
    path = family_models.save(family_models.build_model(family, size, **sizes), tmp_path_factory.mktemp(family))
    return ds.load(path, dtype=dtype, cache_bytes=2**26)


def with_cache(model, pages, rows):
    """The model with an empty cache of so many pages and rows."""
    model.cache = PagePool(model.decoder.new_storage(pages, 1 + rows), 10**6)
    return model


def requests(seed, count):
    rng = random.Random(seed)
    common = [rng.randrange(3, 297) for _ in range(100)]
    made = []
    for number in range(count):
        prompt = [*common[: rng.choice((0, 30, 100))], *(rng.randrange(3, 297) for _ in range(rng.randint(1, 60)))]
        params = ds.SamplingParams(
            max_new_tokens=rng.randint(10, 24), seed=number, temperature=number % 4 / 4, ignore_eos=True, logprobs=1
        )
        made.append((prompt, params))
    return made


def alone(model, made):
    found = []
    for prompt, params in made:
        with_cache(model, 40, 2)
        found += ds.generate(model, [prompt], params, draft=None)
    return found


def test_any_batch_threads_drafts_and_past_have_the_same_texts(model, monkeypatch):
    made = requests(0, 20)
    prompts, params = [list(each) for each in zip(*made, strict=True)]
    model.threads = 1
    plain = alone(model, made)
    smaller = ds.load(model.path, cache_bytes=2**26)  # or one like it, which rounds in another way
    drafts = [None, "lookup", smaller, *(partly_right(plain, right) for right in (0.0, 0.6, 1.0))]
    for number, draft in enumerate(drafts):
        model.threads = (1, 2, 3, 7)[number % 4]
        size = (16, 3, 5, 1, 8, 16)[number % 6]
        with_cache(model, *((400, 40), (24, 3), (60, 9))[number % 3])
        for _ in range(2):  # the second time after a past
            found = []
            for first in range(0, len(made), size):
                found += ds.generate(model, prompts[first : first + size], params[first : first + size], draft=draft)
            assert found == plain, (number, size)
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *given, **named: (model.cache.clear(), forward(*given, **named))[1])
    monkeypatch.setattr("decodestep.generation.scheduler.ChunkedPrefill.RESERVED_TOKENS", 4)
    for draft in (None, drafts[4]):  # everything is evicted before every pass, and prompts run in pieces
        with_cache(model, 30, 5)
        with Engine(model, draft=draft, max_rows=7) as engine:
            submitted = [engine.submit(prompt, each) for prompt, each in made]
            assert [one for request in submitted for one in request.result()] == plain


def test_any_cuts_of_a_prompt_have_the_same_logits_and_states(model):
    rng = np.random.default_rng(1)
    tokens = rng.integers(3, 297, 150).tolist()
    with_cache(model, 40, 3)
    expected, states = None, None
    for cuts in ([], [1], [149], [16, 32, 48, 149], sorted(rng.choice(149, 20, replace=False) + 1), range(1, 150)):
        model.cache.clear()
        with model.sequence() as sequence:
            logits = np.concatenate(
                [model.forward([(sequence, tokens[a:b])], every=True) for a, b in zip([0, *cuts], [*cuts, 150], strict=True)]
            )
            state = model.cache.rows.storage[sequence._held.state.row.number].copy()
            expected, states = (logits, state) if expected is None else (expected, states)
            assert np.array_equal(logits, expected) and np.array_equal(state, states)
            sequence.truncate(77)
            again = model.forward([(sequence, tokens[77:])])
            assert np.array_equal(again[0], expected[-1])
    assert states.any()


def test_a_draft_that_is_rejected_at_any_token_leaves_the_state_of_the_others(model):
    """The native step replays what was accepted, layer by layer it runs again."""
    rng = np.random.default_rng(4)
    prompt = rng.integers(3, 297, 50).tolist()
    with_cache(model, 40, 6)
    ran, logits = [], model.decoder.logits
    model.decoder.logits = lambda batch, *given: (ran.append(len(batch.tokens)), logits(batch, *given))[1]
    try:
        with model.sequence() as drafting, model.sequence() as beside, model.sequence() as plain:
            for sequence in (drafting, beside, plain):
                model.forward([(sequence, prompt)])
            for drafted, kept in [(5, 0), (5, 1), (5, 2), (5, 3), (5, 4), (5, 5), (1, 0), (2, 1), (20, 7)]:
                tokens = rng.integers(3, 297, 1 + drafted).tolist()
                model.threads, ran[:] = 1 + kept % 3, []
                own = model.forward([(beside, tokens[:1]), (drafting, tokens)], drafted=[0, drafted], every=False)[1 : kept + 2]
                assert model.decoder.replay_width == 0 or sum(ran) == 2 + drafted
                drafting.keep(kept)
                expected = [model.forward([(plain, [token])])[0] for token in tokens[: kept + 1]]
                assert np.array_equal(own, expected)
            for sequence in (drafting, plain):
                model.forward([(sequence, [7])])
            rows = [model.cache.rows.storage[sequence._held.state.row.number] for sequence in (drafting, plain)]
            assert np.array_equal(*rows)
    finally:
        model.decoder.logits = logits
    assert (model.decoder.replay_width > 0) == (model.decoder.cache_dtype != "float32")


def test_beams_are_the_same_after_any_past(model):
    params = ds.SamplingParams(num_beams=4, num_return_sequences=4, max_new_tokens=20, temperature=0, ignore_eos=True)
    prompts = [prompt for prompt, _ in requests(2, 3)]
    plain = alone(model, [])
    for prompt in prompts:
        with_cache(model, 60, 4)
        plain += ds.generate(model, [prompt], params)
    with_cache(model, 80, 5)
    for _ in range(2):
        assert ds.generate(model, prompts, params) == plain


@pytest.mark.slow
def test_sixteen_chats_of_thirty_turns_under_a_tight_limit(tmp_path):
    """Texts as alone, whatever the cache has had to drop, and no memory but that of the cache."""
    path = family_models.save(family_models.build_model("qwen3_5_text", 0, **SIZES), tmp_path)
    chats, turns = 16, 30

    def turn_of(chat, number):
        rng = random.Random(f"{chat} {number}")
        return [rng.randrange(3, 297) for _ in range(rng.randint(3, 14))]

    def params(chat, number):
        return ds.SamplingParams(max_new_tokens=4 + chat % 5, temperature=chat % 4 / 4, seed=number, ignore_eos=True)

    def play_alone(chat):
        model, text = ds.load(path, cache_bytes=2**23), []
        for number in range(turns):
            model.cache.clear()
            text += turn_of(chat, number)
            text += ds.generate(model, [text], params(chat, number), draft=None)[0].token_ids
        return text

    model = ds.load(path, dtype="auto", cache_bytes=2**26)
    with_cache(model, pages=420, rows=20)  # four more states than chats, whose texts fill the pages at the end
    texts: list[list[int]] = [[] for _ in range(chats)]
    sizes = []
    with Engine(model, draft="lookup", max_rows=16) as engine:
        for number in range(turns):
            for chat in range(chats):
                texts[chat] += turn_of(chat, number)
            asked = [engine.submit(text, params(chat, number)) for chat, text in enumerate(texts)]
            for text, request in zip(texts, asked, strict=True):
                text += request.result()[0].token_ids
            sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
    rows = model.cache.rows
    assert (model.cache.held, rows._claimed) == (0, 0) and 0 < rows.snapshots <= rows.count == 20
    assert sizes[-1] - sizes[9] < 2**25
    assert texts == [play_alone(chat) for chat in range(chats)]
