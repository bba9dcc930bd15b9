"""Models with recurrent states: a text is the same alone, in any batch, after any past of the cache, with any drafts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import decodestep as ds
from decodestep.chat.user_mark import UserMark
from decodestep.decoding.forward import BLOCK
from decodestep.decoding.kv_cache import PAGE
from decodestep.decoding.state_rows import END_RANK, TURN_RANK
from decodestep.serving import Engine
from support import tiny_gguf_files
from support.scripted_drafts import partly_right
from support.state_models import state_model


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_gguf_files.write(path, kind="F32", context=3000)
    return ds.load(path)


@pytest.fixture
def roomy(base):
    return state_model(base, pages=3000, rows=200)


def tight(model, **sizes):
    return state_model(model, **sizes)


def requests(seed, count, longest=60, most_new=40):
    rng = random.Random(seed)
    common = [rng.randrange(3, 297) for _ in range(150)]
    made = []
    for number in range(count):
        prompt = [*common[: rng.choice((0, 0, 40, 96, 150))], *(rng.randrange(3, 297) for _ in range(rng.randint(1, longest)))]
        params = ds.SamplingParams(
            max_new_tokens=rng.randint(1, most_new), seed=number, temperature=rng.choice((0, 0.5, 1.0)), ignore_eos=True
        )
        if number % 5 == 4 and not params.greedy:
            params = replace(params, num_return_sequences=3)
        made.append((prompt, params))
    return made


def alone(model, made):
    found = []
    for prompt, params in made:
        model.cache.clear()
        found += ds.generate(model, [prompt], params, draft=None)
    model.cache.clear()
    return found


def drafters(plain):
    return {None: None, "lookup": "lookup", **{f"{right} right": partly_right(plain, right) for right in (0.0, 0.6, 1.0)}}


def test_batches_drafts_and_small_caches_change_nothing(roomy, monkeypatch):
    made = requests(0, 12)
    prompts, params = [list(each) for each in zip(*made, strict=True)]
    plain = alone(roomy, made)
    monkeypatch.setattr("decodestep.generation.scheduler.ChunkedPrefill.RESERVED_TOKENS", 4)
    for name, draft in drafters(plain).items():
        for sizes in ({"pages": 200, "rows": 20}, {"pages": 19, "rows": 3}, {"pages": 18, "rows": 1}):
            model = tight(roomy, **sizes)
            assert ds.generate(model, prompts, params, draft=draft) == plain, (name, sizes)
            assert model.cache.held == 0 and model.cache.rows._claimed == 0
        model = tight(roomy, pages=30, rows=5)
        with Engine(model, draft=draft, max_rows=7) as engine:
            submitted = [engine.submit(prompt, each) for prompt, each in made]
            assert [one for request in submitted for one in request.result()] == plain, name
        assert model.cache.held == 0 and model.cache.rows._claimed == 0


def test_a_model_that_drafts_with_fewer_states_than_rows_changes_nothing(roomy):
    made = requests(3, 6)
    prompts, params = [list(each) for each in zip(*made, strict=True)]
    plain = alone(roomy, made)
    drafting = tight(roomy, pages=40, rows=1)
    assert ds.generate(roomy, prompts, params, draft=drafting) == plain
    assert drafting.cache.held == 0 and drafting.cache.rows._claimed == 0


def test_beams_go_on_from_the_states_of_their_parents(roomy):
    made = [
        (prompt, ds.SamplingParams(num_beams=beams, num_return_sequences=2, max_new_tokens=25, temperature=0, ignore_eos=True))
        for (prompt, _), beams in zip(requests(1, 4), (2, 3, 5, 2), strict=True)
    ]
    plain = alone(roomy, made)
    model = tight(roomy, pages=80, rows=5)
    prompts, params = [list(each) for each in zip(*made, strict=True)]
    for _ in range(2):  # the second time from what the first has left
        assert ds.generate(model, prompts, params) == plain
    with pytest.raises(ds.models.CacheFullError, match="a beam search needs 5 recurrent states, and the cache has 4"):
        ds.generate(tight(roomy, pages=80, rows=4), prompts[2:3], params[2:3])


def test_the_next_turn_of_a_chat_runs_its_new_tokens_only(roomy):
    rng, text, ran = random.Random(2), [], []
    params = ds.SamplingParams(max_new_tokens=30, temperature=0, ignore_eos=True)
    for _ in range(5):
        text += [rng.randrange(3, 297) for _ in range(70)]
        roomy.decoder.tokens = roomy.decoder.passes = 0
        [one] = ds.generate(roomy, [text], params, draft=None)
        ran.append(roomy.decoder.tokens)
        assert one.cached_tokens == (len(text) - 71 if len(text) > 70 else 0)
        text += one.token_ids
    assert ran == [70 + 29, *[71 + 29] * 4]  # an answer's last token has not been run


def test_a_turn_whose_beginning_of_an_answer_is_rewritten_goes_on_before_it(roomy):
    prompt = [3 + n % 90 for n in range(800)]
    params = ds.SamplingParams(max_new_tokens=200, temperature=0, ignore_eos=True)
    ds.generate(roomy, [prompt], params)
    roomy.decoder.tokens = 0
    [one] = ds.generate(roomy, [[*prompt[:-4], *range(200, 260)]], replace(params, max_new_tokens=1))
    assert one.cached_tokens == (800 - 8) // PAGE * PAGE and roomy.decoder.tokens == 796 + 60 - one.cached_tokens


@pytest.fixture
def marked(base):
    """A model that knows what comes before messages of a user."""
    model = state_model(base, pages=3000, rows=200)
    model.cache.user_mark = UserMark((7, 8))
    return model


def ran(model, prompt, **options):
    """How many tokens run for a prompt and one more."""
    model.decoder.tokens = 0
    ds.generate(model, [prompt], ds.SamplingParams(max_new_tokens=1, temperature=0, ignore_eos=True), draft=None, **options)
    return model.decoder.tokens


def test_a_last_turn_that_is_edited_goes_on_before_it(marked):
    history = [7, 8, *range(20, 120), 7, 8]  # the content of the last message is after 104 tokens
    assert ran(marked, [*history, *[30] * 50]) == 104 + 50
    for edited in ([31] * 70, [32] * 9):
        assert ran(marked, [*history, *edited]) == 104 - 96 + len(edited)


def test_what_follows_the_last_turn_may_be_rewritten(marked):
    """As a template does that drops the reasoning of answers before the last turn, after several calls of tools."""
    asked = [7, 8, *range(20, 120), 7, 8, *[30] * 20]
    steps = [*asked]
    for step in range(4):  # of one turn, with the reasoning before each
        steps += [40 + step] * 60
        ran(marked, steps)
    assert ran(marked, [*asked, *[50] * 30, 7, 8, *[31] * 10]) <= len(asked) - 96 + 30 + 2 + 10


def test_the_state_before_a_turn_outlives_those_within_texts(base):
    """That with which the turn began, where it is there; once another turn has come it is like them."""
    model = state_model(base, pages=300, rows=20)
    model.cache.user_mark = UserMark((7, 8))
    params = ds.SamplingParams(max_new_tokens=10, temperature=0, ignore_eos=True)
    text = [7, 8, *[20] * 70]
    ranks = []
    for turn in range(3):
        [answer] = ds.generate(model, [text], params, draft=None)
        text = [*text, *answer.token_ids, 7, 8, *[30 + turn] * 70]
        ranks.append([rank for rank, pages in enumerate(model.cache.rows._snapshots) for _ in pages])
    assert ranks == [[END_RANK], [TURN_RANK, END_RANK], [0, TURN_RANK, END_RANK]]


def test_a_chat_without_a_mark_runs_what_is_edited(roomy):
    history = [7, 8, *range(20, 120), 7, 8]
    ran(roomy, [*history, *[30] * 50])
    assert ran(roomy, [*history, *[31] * 70]) == 104 + 70


def test_what_many_prompts_begin_with_runs_once(roomy):
    common = [3 + n % 90 for n in range(1000)]
    params = ds.SamplingParams(max_new_tokens=1, temperature=0, ignore_eos=True)
    prompts = [[*common, *[200 + n] * 30] for n in range(8)]
    ds.generate(roomy, prompts, params)
    assert roomy.decoder.tokens <= 1000 + 8 * (30 + PAGE) + PAGE
    roomy.cache.clear()
    for turn, ran in enumerate((1030, 1030 - 512, 1030 - 992)):  # one after another: the second one shows where they part
        roomy.decoder.tokens = 0
        ds.generate(roomy, [[*common, *[250 + turn] * 30]], params)
        assert roomy.decoder.tokens == ran


def test_samples_of_a_prompt_share_its_state(roomy):
    params = ds.SamplingParams(max_new_tokens=10, temperature=1.0, seed=1, num_return_sequences=16, ignore_eos=True)
    found = ds.generate(roomy, [[5] * 200], params, draft=None)
    assert roomy.decoder.tokens == 200 + 16 * 9 and len({one.text for one in found}) > 1
    assert found == ds.generate(tight(roomy, pages=100, rows=1), [[5] * 200], params)


def test_a_long_prompt_leaves_snapshots_as_far_apart_as_keys_take_a_rows_memory(roomy):
    model = state_model(roomy, pages=300, rows=50, values=2032 + 3)  # a row is as large as the keys of 1024 tokens
    prompt = [3 + n % 250 for n in range(2800)]
    with model.sequence(prompt) as sequence:
        model.forward([(sequence, prompt)])
        assert model.cache.rows.interval == 1024
        assert model.cache.rows.snapshots == 2
    assert model.cache.rows.snapshots == 3 and BLOCK == 512
    with model.sequence([*prompt[:2100], 1, 2]) as sequence:
        assert len(sequence) == 2048
        model.forward([(sequence, [*prompt[2048:2100], 1])])
        sequence.truncate(1500)
        assert len(sequence) == 1500 and sequence.position == 1024
        model.decoder.tokens = 0
        logits = model.forward([(sequence, [9, 8])])
        assert model.decoder.tokens == 1500 + 2 - 1024
    model.cache.clear()
    assert (logits[0] == model.logits([*prompt[:1500], 9, 8])[-1]).all()


def test_chats_under_a_tight_limit_have_their_texts_and_the_memory_is_bounded(roomy):
    """Sixteen chats of several turns, in turn and together."""
    turns, chats = 6, 16

    def play(model, at_once):
        texts = [[3 + chat] * 40 for chat in range(chats)]
        for turn in range(turns):
            params = ds.SamplingParams(max_new_tokens=12, temperature=0.7, seed=turn, ignore_eos=True)
            for first in range(0, chats, at_once):
                group = range(first, first + at_once)
                for chat, one in zip(group, ds.generate(model, [texts[c] for c in group], params), strict=True):
                    texts[chat] = [*texts[chat], *one.token_ids, *[100 + turn] * 9]
        return texts

    expected = play(roomy, 1)
    for at_once, rows, pages in ((1, 4, 40), (4, 6, 60), (16, 18, 200), (16, 5, 120)):
        model = tight(roomy, pages=pages, rows=rows)
        assert play(model, at_once) == expected
        assert model.cache.rows._fresh <= rows + 1 and model.cache.held == 0
