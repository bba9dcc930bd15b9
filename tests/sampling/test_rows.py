"""Rows that the core keeps: each step equals decode_step on the steps that the parts give for the history."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep import _native
from decodestep.ops.decode_step import steps as s
from decodestep.ops.decode_step.rows import END_REASONS, new_row, step_rows
from decodestep.sampling.parts import steps_of
from decodestep.sampling.token_history import SequenceEndings, TokenHistory
from support import decode_step_cases as cases
from support import processes

VOCAB = 40


def random_part(rng):
    fixed = tuple(cases.chain(rng, VOCAB))
    skipped = int(rng.integers(0, 9))
    return [
        fixed,
        s.PenaliseSeen(skipped, float(rng.choice([1.3, 0.7]))),
        s.AddCounted(skipped, float(rng.normal()), float(rng.normal())),
        s.BanFollowers(int(rng.integers(1, 5))),
        s.AddEndings(random_sequences(rng)),
        s.BanEndings(random_sequences(rng)),
        random_continuations(rng),
        s.While(int(rng.integers(0, 12)), int(rng.integers(0, 15)), fixed),
        lambda h: (s.Lift(np.array([len(h) % VOCAB]), 0.5),),
    ][rng.integers(9)]


def random_sequences(rng):
    return SequenceEndings({tuple(rng.integers(0, 6, rng.integers(1, 5)).tolist()): float(rng.normal()) for _ in range(30)})


def random_continuations(rng):
    breakers = rng.integers(0, 6, rng.integers(0, 2))
    return s.AddContinuations(rng.normal(size=rng.integers(1, 5)), int(rng.integers(1, 4)), breakers, int(rng.integers(0, 20)))


def row_of(history, parts, *, greedy=False, seed=0, top_logprobs=None, ends=(), stops=(), limit=None):
    return new_row(
        VOCAB, history, parts, greedy=greedy, seed=seed, top_logprobs=top_logprobs, ends=ends, stops=stops, limit=limit
    )


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_a_step_is_decode_step_on_what_the_history_makes_of_the_parts(seed):
    rng = np.random.default_rng(seed)
    batch = int(rng.integers(1, 4))
    histories = [TokenHistory(rng.integers(0, 6, rng.integers(0, 10))) for _ in range(batch)]
    parts = [[random_part(rng) for _ in range(rng.integers(0, 5))] for _ in range(batch)]
    options = {
        "greedy": [bool(g) for g in rng.random(batch) < 0.3],
        "seed": [int(v) for v in rng.integers(2**63, size=batch)],
        "top_logprobs": [None if rng.random() < 0.7 else 2 for _ in range(batch)],
    }
    rows = [
        row_of(*each, greedy=g, seed=v, top_logprobs=n)
        for *each, g, v, n in zip(histories, parts, *options.values(), strict=True)
    ]
    for _ in range(12):
        logits = cases.batch_of_logits(rng, batch, VOCAB)
        logits[:, 6:] -= logits.dtype.type(4)  # so that tokens come again
        steps = [[step for part in own for step in steps_of(part, h, VOCAB)] for h, own in zip(histories, parts, strict=True)]
        over = [row.ended for row in rows]
        want = ds.decode_step(logits, steps, position=[len(h) for h in histories], **options)
        tokens, ends, logprobs = step_rows(logits, rows)
        for b in range(batch):
            assert tokens[b] == (-1 if over[b] else want.tokens[b])
            assert rows[b].ended == (tokens[b] < 0)
            if not over[b]:
                assert (None if logprobs is None else logprobs[b]) == want.logprobs[b]
                assert END_REASONS[0 if ends is None else ends[b]] == ("no_candidate" if tokens[b] < 0 else "")
                assert tokens[b] < 0 or histories[b].tokens[-1] == tokens[b]


@pytest.mark.parametrize(("token", "end"), [(3, "eos"), (4, "eos"), (5, "stop"), (6, ""), (7, "length")])
def test_how_a_row_ends(token, end):
    row = row_of(TokenHistory([1, 1]), [], greedy=True, ends=[4, 3], stops=[5, 3], limit=1 if end == "length" else 2)
    tokens, ends, _ = step_rows(np.eye(VOCAB, dtype=np.float32)[[token]], [row])
    assert (tokens.tolist(), END_REASONS[0 if ends is None else ends[0]]) == ([token], end)


def test_rows_draw_from_the_places_that_they_are_given(rng):
    """As from a copy of those rows of the logits: any place, also one that several rows share."""
    logits = rng.standard_normal((5, VOCAB)).astype(np.float32)
    places = [4, 0, 4, 2]
    make = lambda: [row_of(TokenHistory([1]), [], seed=seed, top_logprobs=2) for seed in range(4)]  # noqa: E731
    (tokens, ends, logprobs), want = step_rows(logits, make(), places), step_rows(logits[places], make())
    assert (tokens.tolist(), ends, logprobs) == (want[0].tolist(), want[1], want[2])
    assert step_rows(logits, [], [])[0].tolist() == []


@pytest.mark.parametrize("places", [[5], [-1], [2**64], [0, 1], [], [None], [1.0], [True]])
def test_places_outside_the_logits_are_refused(places, rng):
    history = TokenHistory([1])
    with pytest.raises((ValueError, TypeError)):
        step_rows(rng.standard_normal((5, VOCAB)).astype(np.float32), [row_of(history, [])], places)
    with pytest.raises(ValueError, match="places"):
        step_rows(np.zeros((0, VOCAB), np.float32), [row_of(history, [])], [0])
    assert history.tokens == [1]


@pytest.mark.parametrize("change", [lambda h: h.append(3), lambda h: h.truncate(2)])
def test_a_history_cannot_change_under_a_step(change):
    logits, history = np.zeros((1, VOCAB), np.float32), TokenHistory([1, 2])
    grow = [True]

    def growing(h):
        if grow[0]:
            change(h)
        return ()

    row = row_of(history, [s.PenaliseSeen(0, 1.1), growing])
    with pytest.raises(ValueError, match="must not grow|must not shrink"):
        step_rows(logits, [row])
    assert history.tokens == [1, 2]
    with pytest.raises(ValueError, match="one step at a time"):
        step_rows(np.zeros((2, VOCAB), np.float32), [row, row])
    grow[0] = False
    step_rows(logits, [row])  # a step that was refused leaves the row as it was
    assert len(history.tokens) == 3


@pytest.fixture
def collections_at_every_object():
    """A list of functions that run in garbage collections, which start wherever they may."""
    called, threshold = [], gc.get_threshold()
    run = lambda phase, info: [call() for call in called]  # noqa: E731
    gc.callbacks.append(run)
    gc.set_threshold(1)
    yield called
    gc.set_threshold(*threshold)
    gc.callbacks.remove(run)


def test_log_probabilities_are_of_their_own_step(rng, collections_at_every_object):
    first, second = rng.standard_normal((2, 1, VOCAB), np.float32)
    expected = ds.decode_step(first, [()], greedy=True, top_logprobs=3).logprobs[0]
    history = TokenHistory()
    row = row_of(history, [], greedy=True, top_logprobs=3)

    def step_again():
        if len(history) == 1:
            step_rows(second, [row])

    collections_at_every_object.append(step_again)
    assert step_rows(first, [row])[2] == [expected]


def test_a_row_that_ends_during_a_step_takes_no_token():
    """As another thread may end it while the core draws: what is reported is what its history takes."""
    rows = []

    def ends_both(h):
        for row in rows:
            row.ended = True
        return ()

    histories = [TokenHistory([1]) for _ in range(3)]
    rows += [row_of(h, parts, top_logprobs=2) for h, parts in zip(histories, ([], [ends_both], []), strict=True)]
    other = row_of(histories.pop(), [], top_logprobs=2)
    tokens, ends, logprobs = step_rows(np.eye(3, VOCAB, dtype=np.float32), [*rows[:2], other])
    assert tokens[:2].tolist() == [-1, -1]
    assert ends == bytes(3)
    assert logprobs[:2] == [None, None]
    assert [h.tokens for h in histories] == [[1], [1]]
    assert tokens[2] >= 0
    assert logprobs[2] is not None


def test_a_row_that_ends_while_results_are_made_takes_the_token_that_they_report(collections_at_every_object):
    drawing = []

    def end():
        row.ended |= bool(drawing)

    history = TokenHistory()
    row = row_of(history, [lambda h: drawing.append(h) or ()], greedy=True, top_logprobs=VOCAB)
    collections_at_every_object.append(end)
    tokens, ends, logprobs = step_rows(np.eye(1, VOCAB, dtype=np.float32), [row])
    assert row.ended or sys.version_info >= (3, 12)  # which collects between instructions of Python, and so perhaps not here
    assert history.tokens == tokens.tolist() == [0]
    assert ends is None
    assert logprobs[0] is not None


def test_a_history_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="outside the vocabulary"):
        step_rows(np.zeros((1, VOCAB), np.float32), [row_of(TokenHistory([VOCAB]), [s.PenaliseSeen(0, 1.1)])])


def test_arrays_that_change_later_do_not_reach_a_row():
    ids, values = np.array([1, 2]), np.array([5.0, 9.0])
    row = row_of(TokenHistory(), [(s.Add(ids, values),)], greedy=True)
    ids[:], values[:] = 2**40, np.nan
    assert step_rows(np.zeros((1, VOCAB), np.float32), [row])[0] == 2


def test_a_part_that_is_wrong_is_named():
    with pytest.raises(ValueError, match="^decode_step: TopK.k must be"):
        row_of(TokenHistory(), [(s.TopK(0),)])
    with pytest.raises(ValueError, match="outside the vocabulary|in \\[0, vocab\\)"):
        row_of(TokenHistory(), [s.BanEndings(SequenceEndings({(1, VOCAB): 1.0}))])
    with pytest.raises(ValueError, match="part of a row"):
        _native.Row(VOCAB, TokenHistory(), [7], False, 0, None, [], [], None)


def test_a_row_that_its_own_part_holds_is_collected():
    class Part:
        def __call__(self, history):
            return ()

    part = Part()
    part.row = row_of(TokenHistory(), [part])
    alive = weakref.ref(part)
    del part
    gc.collect()
    assert alive() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads
def test_a_forked_child_steps_rows_that_a_call_was_using():
    """A part stands for the time in which the core draws: another thread is inside the call when the process forks."""
    inside, forked = threading.Event(), threading.Event()

    def wait(h):
        inside.set()
        forked.wait()
        return ()

    logits, history = np.eye(1, VOCAB, dtype=np.float32), TokenHistory([1])
    row = row_of(history, [wait], greedy=True)
    call = threading.Thread(target=step_rows, args=(logits, [row]))
    call.start()
    inside.wait()

    def steps_there():
        forked.set()
        return step_rows(logits, [row])[0] == 0 and history.tokens == [1, 0]

    with processes.forked_child(steps_there):
        with pytest.raises(ValueError, match="one step at a time"):
            step_rows(logits, [row])
        forked.set()
        call.join()
    assert history.tokens == [1, 0]
