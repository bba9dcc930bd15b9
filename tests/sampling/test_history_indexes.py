"""What a history is searched for, against the classes whose rules these are: sequences that end, repetitions that go on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep import processors as p
from decodestep.integrations.host_row import HostRow
from decodestep.ops.decode_step import steps as s
from decodestep.ops.decode_step.rows import new_row, step_rows
from decodestep.sampling.fusion_rules import RULES
from decodestep.sampling.parts import build_steps
from decodestep.sampling.token_history import TokenHistory
from support.history_oracle import answers

VOCAB = 12
NESTED = [[1] * n for n in range(1, 30)]  # each is the end of the next
FANS = [[1] * n + [token] for n in range(4) for token in range(VOCAB)]

tokens = st.integers(0, 2)
histories = st.one_of(
    st.lists(tokens, max_size=60),
    st.builds(lambda period, n: (period * n)[:n], st.lists(tokens, min_size=1, max_size=4), st.integers(1, 130)),
)
sequences = st.lists(st.lists(tokens, min_size=1, max_size=7), min_size=1, max_size=30)
prompts = st.integers(0, 70)


def assert_as_the_class(processor, ids, prompt):
    """After every token of a row that grows, the scores are those that the class leaves, to the bit."""
    part = RULES[type(processor)].make_part(processor, VOCAB)
    history = TokenHistory(ids[:prompt])
    scores = np.zeros((1, VOCAB), np.float32)
    while True:
        past = np.array([history.tokens], np.int64).reshape(1, -1)
        want = processor(past, scores)
        got = ds.decode_step(scores, [build_steps(part, history, VOCAB)], position=len(history), need_processed=True)
        np.testing.assert_array_equal(got.processed, np.where(np.isnan(want), -np.inf, want))
        if len(history) >= len(ids):
            return
        history.append(ids[len(history)])


@given(histories, sequences, prompts)
@example([1] * 40, NESTED, 35)
@example([0] + [1] * 9, FANS, 5)
@example([0, 1, 1, 2, 1], [[2, 1, 0], [0, 1, 1, 2, 1, 0], [1, 1, 2, 1, 0], [3, 1, 1, 2, 1, 0]], 0)
def test_bad_words(ids, words, prompt):
    assert_as_the_class(p.NoBadWordsLogitsProcessor(words), ids, prompt)


@pytest.mark.slow
@given(histories, sequences, st.lists(st.floats(-3, 3, width=16), min_size=30, max_size=30), prompts)
@example([1] * 40, NESTED[::-1], [0.1] * 30, 35)
@example([1] * 9, NESTED, [3e38, 3e38, -np.inf, 0.5, np.inf] * 6, 0)
@example([0] + [1] * 9, FANS, [0.1, -1e-3, 1e5] * 16, 5)
def test_sequence_biases(ids, biased, values, prompt):
    biases = {tuple(sequence): value for sequence, value in zip(biased, values, strict=False)}
    assert_as_the_class(p.SequenceBiasLogitsProcessor(biases), ids, prompt)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    histories,
    st.sampled_from([1, 2, 3, 49, 50, 51]),
    st.frozensets(st.integers(0, VOCAB + 1), max_size=2),
    st.sampled_from([0, 0, 1, 2, 7, 30, 60]),
    st.sampled_from([1.0, 1.75, 1e30]),
    prompts,
)
@example([1] * 130, 2, frozenset(), 0, 1.1, 70)
@example([1, 2] * 60, 1, frozenset(), 55, 1.1, 119)
@example([1] * 60 + [0] + [1] * 60, 3, frozenset([0]), 0, 1.1, 0)
@example([1] * 3 + [VOCAB] + [1] * 3, 1, frozenset(), 0, 1.1, 0)  # past the vocabulary
def test_dry(ids, allowed_length, breakers, range, base, prompt):
    processor = p.DRYLogitsProcessor(0.7, base, allowed_length, breakers, range)
    assert_as_the_class(processor, ids, prompt)


@given(histories, st.sampled_from([1, 2, 3, 5, 20, 59]), prompts)
@example([1] * 130, 40, 100)
@example([2, *[1] * 30] * 4, 29, 60)
@example([*range(3), *[1] * 40, 2, *[1] * 40, 0], 41, 0)
def test_no_repeat_ngrams(ids, n, prompt):
    assert_as_the_class(p.NoRepeatNGramLogitsProcessor(n), ids, prompt)


PARAMS = [
    ds.SamplingParams(dry_multiplier=0.9, dry_allowed_length=1, dry_sequence_breakers=(), seed=3),
    ds.SamplingParams(bad_words_ids=[[1, 2], [2, 2, 1], [0]], seed=4),
    ds.SamplingParams(sequence_bias={(1, 2): 3.0, (2,): 2.0, (2, 1, 2): -0.7}, seed=5),
    ds.SamplingParams(repetition_penalty=1.3, no_repeat_ngram_size=3, xtc_probability=0.5, seed=6),
]
OF_GENERATED = ds.SamplingParams(presence_penalty=0.4, frequency_penalty=0.3, seed=7)  # which the prompt is none of


@pytest.mark.parametrize("params", PARAMS, ids=lambda params: str(params.seed))
def test_a_row_whose_tokens_are_taken_back_is_as_if_they_had_not_been_drawn(params, rng):
    host = HostRow(params, vocab_size=VOCAB, prompt_ids=[1, 2, 1])
    scores = lambda: rng.standard_normal((1, VOCAB), np.float32) - np.arange(VOCAB, dtype=np.float32)  # noqa: E731
    for _ in range(25):
        host.draw(scores())  # taken back by the next
        logits = scores()
        drawn, copied = host.draw(logits), host.clone()
        alone = ds.Sampler(host._params, vocab_size=VOCAB, prompt_ids=[host.tokens])
        assert drawn == copied.draw(logits) == alone.step(logits).tokens[0]
        host.accept(int(rng.integers(3)))


@pytest.mark.slow
@settings(max_examples=300)
@given(
    histories,
    prompts,
    st.lists(st.tuples(st.booleans(), st.integers(0, 80), st.lists(tokens, max_size=70)), max_size=6),
)
@example([1] * 60, 0, [(True, 0, [1] * 60), (True, 59, [2] + [1] * 60), (False, 3, [])])
@example([0, 1, 2] * 30, 5, [(True, 6, [0, 1, 2] * 20), (True, 30, [1])])
def test_a_history_that_was_taken_back_is_as_a_new_one(ids, prompt, changes):
    """At every change some tokens are taken back and others appended; the indexes have followed the tokens before, or not."""
    history = TokenHistory(ids[:prompt])
    for token in ids[prompt:]:
        history.append(token)
    for asked, back, more in changes:
        if asked:
            answers(history)
        history.truncate(max(history.prompt_length, len(history) - back))
        for token in more:
            history.append(token)
    fresh = TokenHistory(history.tokens[: history.prompt_length])
    for token in history.tokens[history.prompt_length :]:
        fresh.append(token)
    assert answers(history) == answers(fresh)


@pytest.mark.parametrize("length", [1, 5, -1, 2**70])
def test_a_history_keeps_its_prompt_and_no_more_than_it_has(length):
    history = TokenHistory([1, 2])
    history.append(3)
    with pytest.raises((ValueError, OverflowError)):
        history.truncate(length)
    assert (history.tokens, len(history)) == ([1, 2, 3], 3)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_a_row_of_the_core_whose_history_is_taken_back_is_as_a_new_one(seed):
    """What its parts keep of the history is looked up again."""
    rng = np.random.default_rng(seed)
    breakers = np.array([2], np.int64)
    parts = [
        s.PenaliseSeen(1, 1.3), s.AddCounted(1, 0.3, 0.2), s.BanFollowers(3),
        s.AddContinuations(-np.array([0.5, 0.7, 2.0]), 1, breakers, 0),
    ]  # fmt: skip
    new = lambda history: new_row(  # noqa: E731
        VOCAB, history, parts, greedy=False, seed=7, top_logprobs=2, ends=[], stops=[], limit=None
    )
    history = TokenHistory([1, 2])
    row = new(history)
    for _ in range(20):
        logits = rng.standard_normal((1, VOCAB)).astype(np.float32) - np.arange(VOCAB, dtype=np.float32)
        fresh = TokenHistory(history.tokens)
        want, got = step_rows(logits, [new(fresh)]), step_rows(logits, [row])
        assert (want[0].tolist(), want[2]) == (got[0].tolist(), got[2])
        if rng.random() < 0.5:
            history.truncate(int(rng.integers(2, len(history) + 1)))


@pytest.mark.parametrize("params", [*PARAMS, OF_GENERATED], ids=lambda params: str(params.seed))
def test_a_row_of_a_host_follows_any_tokens(params, rng):
    """A host may change the tokens that it keeps: drafts that it drops, a text that it begins anew."""
    host = HostRow(params, vocab_size=VOCAB, prompt_ids=[1, 2, 1])
    generated: list[int] = []
    for _ in range(40):
        generated = [*generated[: rng.integers(len(generated) + 1)], *rng.integers(0, 3, rng.integers(0, 4)).tolist()]
        host.follow(generated)
        assert host.tokens == [1, 2, 1, *generated]
        logits = rng.standard_normal((1, VOCAB), np.float32)
        alone = HostRow(params, vocab_size=VOCAB, prompt_ids=[1, 2, 1])
        alone.follow(generated)
        np.testing.assert_array_equal(host.processed(logits), alone.processed(logits))
        drawn = host.draw(logits)
        assert drawn == alone.draw(logits)
        if rng.random() < 0.5:
            host.accept(drawn)
            generated.append(drawn)


def test_a_processor_with_state_begins_anew_where_a_draw_is_taken_back(rng):
    class Counts(p.LogitsProcessor):
        stateful = True

        def __init__(self):
            self.read = 0

        def __call__(self, input_ids, scores):
            assert input_ids.shape[1] >= self.read, "a processor with state cannot go back"
            self.read = input_ids.shape[1]
            return scores

    host = HostRow(ds.SamplingParams(seed=1), vocab_size=VOCAB, prompt_ids=[1], processors=lambda row: [Counts()])
    for _ in range(4):
        logits = rng.standard_normal((1, VOCAB), np.float32)
        assert host.draw(logits) == host.draw(logits)
        host.accept(2)
        host.accept(1)
        host.follow([2])
    assert host.tokens == [1, 2]


def test_a_row_whose_draw_left_no_token_goes_on():
    host = HostRow(ds.SamplingParams(seed=1), vocab_size=3, prompt_ids=[1])
    with pytest.raises(ValueError, match="such that a token is left"):
        host.draw(np.full((1, 3), -np.inf, np.float32))
    assert host.draw(np.eye(3, dtype=np.float32)[[2]] * 90) == 2
    host.accept(2)
    assert host.tokens == [1, 2]


def test_a_row_with_a_text_cannot_go_back():
    [row] = ds.Sampler(ds.SamplingParams(), vocab_size=4, prompt_ids=[[1]], token_bytes=lambda token: b"a").rows
    row.history.append(2)
    with pytest.raises(ValueError, match="^Sampler: row must be without text"):
        row.truncate(1)
    assert row.history.tokens == [1, 2]


def test_what_requests_can_set_is_looked_up_by_the_core():
    """Python runs once a token for the length decay alone, which has no index, and for processors without a fusion rule."""
    params = ds.SamplingParams(
        sequence_bias={(1, 2): 1.0, (3,): 0.5}, logit_bias={4: 1.0}, repetition_penalty=1.1, presence_penalty=0.1,
        dry_multiplier=0.8, dry_sequence_breakers=[3], no_repeat_ngram_size=3, bad_words_ids=[[1, 5, 6], [7]], min_length=3,
        min_new_tokens=3,
        min_tokens=3, stop_token_ids=[9], forced_bos_token_id=1, forced_eos_token_id=2, max_new_tokens=9,
        exponential_decay_length_penalty=(2, 1.1), suppress_tokens=[8], begin_suppress_tokens=[3],
        allowed_token_ids=list(range(11)), top_k=5,
    )  # fmt: skip
    plan = ds.Sampler(params, vocab_size=VOCAB, prompt_ids=[[1, 2]], eos_token_id=2).rows[0].plan
    assert not plan.unfused
    assert sum(callable(part) for part in plan.tail.parts) == 1
