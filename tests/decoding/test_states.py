"""Recurrent states in the cache: whatever is done to sequences, each goes on from the state of its own tokens."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from decodestep.decoding.config import Config
from decodestep.decoding.forward import forward
from decodestep.decoding.page_pool import LOCK
from decodestep.models import CachedSequence, CacheFullError
from support.interrupts import interrupted_at
from support.state_models import HashDecoder, expected_logits, new_cache

CONFIG = Config("test", "test", 50, 8, 1, 1, 1, 8, 8, 10000, 1e-5)


def runs_of_tokens(longest, least=0):
    """Any tokens, and one token again and again, which other sequences have too."""
    alike = st.builds(lambda token, count: [token] * count, st.integers(0, 1), st.integers(least, longest))
    return alike | st.lists(st.integers(0, 1), min_size=least, max_size=longest)


class States(RuleBasedStateMachine):
    """Sequences of a small cache, each compared with its own tokens run from the beginning."""

    sequences = Bundle("sequences")
    pages, rows, most_snapshots, replays = 30, 6, 4, True

    def __init__(self):
        super().__init__()
        self.decoder = HashDecoder(CONFIG, replays=self.replays)
        self.pool = new_cache(self.decoder, self.pages, self.rows, most_kept=12, most_snapshots=self.most_snapshots)
        self.open = {}

    @rule(target=sequences, capacity=st.none() | st.integers(0, 60), tokens=runs_of_tokens(60))
    def begin(self, capacity, tokens):
        try:
            sequence = CachedSequence(self.pool, capacity)
        except CacheFullError:
            return None
        reused = sequence.reuse(tokens)
        assert reused == len(sequence) == sequence.position and (reused < len(tokens) or not tokens)
        self.open[sequence] = tokens[:reused]
        return sequence

    @rule(sequence=sequences, tokens=runs_of_tokens(40))
    def reuse(self, sequence, tokens):
        if sequence in self.open:
            self.open[sequence] = self.open[sequence] + tokens[: sequence.reuse(tokens)]

    @rule(several=st.lists(sequences, min_size=1, max_size=3, unique=True), data=st.data())
    def extend(self, several, data):
        several = [sequence for sequence in several if sequence in self.open]
        if not several:
            return
        more = [data.draw(runs_of_tokens(40, least=1)) for _ in several]
        drafts = [data.draw(st.integers(0, min(8, len(tokens) - 1))) for tokens in more]
        before = {sequence: len(sequence) for sequence in self.open}
        batch = list(zip(several, more, strict=True))
        try:
            logits = forward(self.decoder, self.pool, batch, every=False, drafted=drafts)
        except CacheFullError:
            assert before == {sequence: len(sequence) for sequence in self.open}
            return
        ends = np.cumsum([draft + 1 for draft in drafts])
        for (sequence, tokens), draft, own in zip(batch, drafts, np.split(logits, ends[:-1]), strict=True):
            text = self.open[sequence] + tokens
            for place in range(draft + 1):
                assert np.array_equal(own[place], expected_logits(text[: len(text) - draft + place], 50))
            kept = data.draw(st.integers(0, draft))
            sequence.keep(kept)
            self.open[sequence] = text[: len(text) - draft + kept]

    @rule(target=sequences, source=sequences, capacity=st.none() | st.integers(0, 60))
    def fork(self, source, capacity):
        if source not in self.open:
            return None
        try:
            sequence = source.fork(capacity)
        except CacheFullError:
            return None
        self.open[sequence] = list(self.open[source])
        return sequence

    @rule(target_=sequences, source=sequences)
    def assign(self, target_, source):
        if target_ in self.open and source in self.open:
            try:
                target_.assign(source)
            except CacheFullError:
                return
            self.open[target_] = list(self.open[source])

    @rule(sequence=sequences, data=st.data())
    def truncate(self, sequence, data):
        if sequence in self.open:
            length = data.draw(st.integers(0, len(sequence)))
            try:
                sequence.truncate(length)
            except CacheFullError:
                return
            self.open[sequence] = self.open[sequence][:length]

    @rule(sequence=sequences)
    def mark(self, sequence):
        if sequence in self.open:
            sequence.mark()

    @rule(sequence=consumes(sequences))
    def close(self, sequence):
        if sequence in self.open:
            sequence.close()
            del self.open[sequence]

    @rule(count=st.integers(0, 3))
    def fail(self, count):
        """Passes that fail after they have written states."""
        for sequence in list(self.open)[:count]:
            with pytest.raises(ZeroDivisionError):
                forward(Failing(CONFIG), self.pool, [(sequence, [1, 0, 1])], every=False)

    @rule(count=st.integers(0, 3), drafted=st.integers(0, 1))
    def fail_to_replay(self, count, drafted):
        for sequence in list(self.open)[:count]:
            if sequence.state._inputs is None:
                continue
            with contextlib.suppress(CacheFullError), pytest.raises(ZeroDivisionError):
                forward(FailingToReplay(CONFIG), self.pool, [(sequence, [1, 0])], every=False, drafted=[drafted])

    @rule()
    def clear(self):
        self.pool.clear()
        assert self.pool.kept == self.pool.rows.snapshots == 0

    @rule()
    def recount(self):
        self.pool._unfinished = True

    @invariant()
    def contents(self):
        for sequence, tokens in self.open.items():
            assert sequence.tokens == tokens and 0 <= sequence.position <= len(tokens)

    @invariant()
    def accounts(self):
        pool, rows, users, snapshots = self.pool, self.pool.rows, {}, 0
        with LOCK:
            assert pool.available_locked() >= 0
        for page in tree_of(self.pool):
            if page.snapshot is not None:
                snapshots += 1
                users[page.snapshot.row] = users.get(page.snapshot.row, 0) + 1
                assert page in rows._snapshots[page.snapshot.rank]
        claims = 0
        for sequence in self.open:
            for each in (sequence._held.state, sequence._held.before):
                claims += each is not None
                if each is not None and each.row is not None:
                    users[each.row] = users.get(each.row, 0) + 1
        assert claims == rows._claimed <= rows.count
        assert snapshots == rows.snapshots <= self.most_snapshots
        assert all(row.users == count for row, count in users.items())
        assert sorted([*(row.number for row in users), *rows._free]) == list(range(1, rows._fresh))
        page_users = {}
        for sequence in self.open:
            for page in sequence._pages:
                page_users[page] = page_users.get(page, 0) + 1
        assert all(page.users == count for page, count in page_users.items())
        numbers = [*(page.number for page in page_users), *(page.number for page in pool._kept), *pool._free]
        assert sorted(numbers) == list(range(pool._fresh))
        kept = list(pool._kept)
        for place, page in enumerate(kept):
            assert all(child in kept[:place] for child in page.children.values())


def tree_of(pool):
    pages = [*pool.roots]
    for page in pages:
        pages += page.children.values()
    return pages[len(pool.roots) :]


class Failing(HashDecoder):
    def logits(self, batch, pages, hidden=None):
        pages.states[batch.into] = 7
        raise ZeroDivisionError


class FailingToReplay(HashDecoder):
    def replay(self, kept, states, slots, into):
        states[into] = 7
        raise ZeroDivisionError


class StatesThatRunAgain(States):
    replays = False


States.TestCase.settings = StatesThatRunAgain.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestStates = States.TestCase
TestStatesThatRunAgain = StatesThatRunAgain.TestCase


def started(tokens, *, replays=True, **sizes):
    decoder = HashDecoder(CONFIG, replays=replays)
    pool = new_cache(decoder, **{"pages": 70, "rows": 4, **sizes})
    sequence = CachedSequence(pool)
    forward(decoder, pool, [(sequence, tokens)], every=False)
    decoder.tokens = 0
    return decoder, pool, sequence


def test_what_follows_a_mark_is_dropped_without_running_what_is_before_it():
    for rows, ran in ((2, 5), (1, 20 + 5)):
        decoder, pool, sequence = started([7] * 20, rows=rows)
        sequence.mark()
        for token in range(5):
            forward(decoder, pool, [(sequence, [token])], every=False)
        sequence.truncate(22)
        assert len(sequence) == 22 and sequence.position == (20 if rows > 1 else 0)
        logits = forward(decoder, pool, [(sequence, [9, 8, 7])], every=False)[0]
        assert np.array_equal(logits, expected_logits([*[7] * 20, 0, 1, 9, 8, 7], 50))
        assert decoder.tokens == 5 + ran


def test_a_state_that_a_pass_reads_stays_until_its_end():
    """Also where the sequence keeps an earlier one, that of its mark, and another sequence of the pass has it too."""
    decoder, pool, sequence = started([1] * 5)
    sequence.mark()
    forward(decoder, pool, [(sequence, [2])], every=False)
    with sequence.fork() as other:
        logits = forward(decoder, pool, [(sequence, [1]), (other, [2])], every=False)
    assert np.array_equal(logits, [expected_logits([1] * 5 + [2, token], 50) for token in (1, 2)])


def test_a_marked_sequence_whose_state_is_a_snapshot_goes_on_where_all_rows_have_claims():
    decoder, pool, sequence = started([1] * 5, rows=3)
    with CachedSequence(pool) as other:
        forward(decoder, pool, [(other, [7])], every=False)
        sequence.mark()
        tokens = [1] * 5 + [2] * (96 - 5)
        forward(decoder, pool, [(sequence, tokens[5:])], every=False)
        assert pool.rows.snapshots and not pool.rows.spare_locked()
        logits = forward(decoder, pool, [(sequence, [1])], every=False)[0]
    assert np.array_equal(logits, expected_logits([*tokens, 1], 50))


@pytest.mark.parametrize("rows", [2, 4])
def test_rejected_drafts_run_nothing_again(rows):
    decoder, pool, sequence = started([7] * 20, rows=rows)
    ran = 0
    for draft in range(1, 9):
        for kept in range(draft + 1):
            forward(decoder, pool, [(sequence, [1, *range(2, 2 + draft)])], every=False, drafted=[draft])
            sequence.keep(kept)
            ran += 1 + draft
            assert sequence.position == len(sequence) and (sequence.state.reached == len(sequence)) == (kept == draft)
    assert decoder.tokens == ran and decoder.replayed == sum(1 + kept for draft in range(1, 9) for kept in range(draft))
    logits = forward(decoder, pool, [(sequence, [9])], every=False)[0]
    assert np.array_equal(logits, expected_logits(sequence.tokens, 50)) and decoder.tokens == ran + 1


def test_a_state_that_others_have_is_replayed_in_another_row():
    """A fork has the tokens that are to be replayed, and a mark goes back to the state with them."""
    decoder, pool, sequence = started([7] * 20)
    forward(decoder, pool, [(sequence, [1, 2, 3, 4, 5])], every=False, drafted=[4])
    sequence.keep(2)
    sequence.mark()
    with sequence.fork() as other:
        logits = forward(decoder, pool, [(other, [8]), (sequence, [9])], every=False)
    tokens = [*[7] * 20, 1, 2, 3]
    assert np.array_equal(logits, [expected_logits([*tokens, token], 50) for token in (8, 9)])
    assert (decoder.tokens, decoder.replayed) == (5 + 2, 3 + 3)
    for length in (23, 22):
        sequence.truncate(length)
        sequence.mark()
        assert sequence.position == len(sequence) == length
        logits = forward(decoder, pool, [(sequence, [6])], every=False)[0]
        assert np.array_equal(logits, expected_logits([*tokens[:length], 6], 50))
    assert decoder.tokens == 5 + 2 + 2


def test_of_drafts_that_are_settled_only_the_accepted_tokens_inputs_stay():
    decoder, pool, sequence = started([7] * 20)
    for kept in (2, 30):
        forward(decoder, pool, [(sequence, [1] * 31)], every=False, drafted=[30])
        sequence.keep(kept)
        inputs = sequence.state._inputs
        assert sequence.state._kept is None
        assert inputs is None if kept == 30 else inputs.shape == (3, decoder.replay_width) and inputs.base is None


def test_the_inputs_of_long_passes_are_not_kept():
    decoder, pool, sequence = started([7] * 20)
    forward(decoder, pool, [(sequence, [1] * 70)], every=False, drafted=[10])
    sequence.keep(3)
    assert sequence.position == 20 and len(sequence) == 20 + 63


def test_without_a_replay_only_what_was_accepted_runs_again():
    decoder, pool, sequence = started([7] * 20, replays=False)
    forward(decoder, pool, [(sequence, [1, 2, 3, 4, 5])], every=False, drafted=[4])
    sequence.keep(2)
    assert sequence.tokens == [*[7] * 20, 1, 2, 3] and sequence.position == 20
    forward(decoder, pool, [(sequence, [6, 5])], every=False, drafted=[1])
    sequence.keep(1)
    assert decoder.tokens == 5 + 3 + 2 and sequence.position == len(sequence) == 25
    for _ in range(20):  # what runs again does not grow without bound
        forward(decoder, pool, [(sequence, [6, 5, 4, 3])], every=False, drafted=[3])
        sequence.keep(2)
        assert len(sequence) - sequence.position < 16 + 3
    assert decoder.tokens < 10 + 20 * (4 + 16 + 3)


@pytest.mark.parametrize(("length", "reused"), [(16, 16), (24, 24), (32, 32), (33, 33)])
@pytest.mark.parametrize("others", [0, 1])
def test_a_sequence_for_which_all_pages_are_reserved_goes_on_from_a_snapshot(length, reused, others):
    """Also where the snapshot is of a partly filled page, which is held while it is copied. What is reserved is then again the
    rest of its capacity."""
    decoder, pool, sequence = started([*range(1, 1 + length)], pages=6 + others)
    text = [*range(1, 41)]
    sequence.close()
    with CachedSequence(pool, 16 * others), CachedSequence(pool, 96) as other:
        with LOCK:
            assert pool.available_locked() == 0
        assert other.reuse(text) == reused and len(other.page_numbers) + other.reserved == 6
        with LOCK:
            assert pool.available_locked() == 0
        logits = forward(decoder, pool, [(other, text[reused:])], every=False)[0]
        assert np.array_equal(logits, expected_logits(text, 50)) and decoder.tokens == 40 - reused


def test_a_copy_for_which_no_page_is_left_is_not_made():
    decoder, pool, sequence = started([*range(1, 25)], pages=2)
    sequence.close()
    with CachedSequence(pool) as other:
        assert other.reuse([*range(1, 31)]) == 0
        logits = forward(decoder, pool, [(other, [*range(1, 31)])], every=False)[0]
    assert np.array_equal(logits, expected_logits([*range(1, 31)], 50))


def test_a_pass_that_fails_leaves_the_state_before_it():
    for tokens in ([7] * 20, [7] * 32):
        decoder, pool, sequence = started(tokens)
        with CachedSequence(pool) as other:
            other.assign(sequence)  # so that the pass does not write what it reads
            with pytest.raises(ZeroDivisionError):
                forward(Failing(CONFIG), pool, [(sequence, [1])], every=False)
            assert sequence.position == len(sequence)
        with pytest.raises(ZeroDivisionError):
            forward(Failing(CONFIG), pool, [(sequence, [1])], every=False)
        logits = forward(decoder, pool, [(sequence, [1])], every=False)[0]
        assert np.array_equal(logits, expected_logits([*tokens, 1], 50))


def test_ends_stay_longer_than_what_is_between_and_powers_of_two_longest():
    decoder = HashDecoder(CONFIG, values=2032 + 3)
    pool = new_cache(decoder, 400, 12, most_snapshots=4)
    tokens = [n % 50 for n in range(6 * 1024)]
    with CachedSequence(pool) as sequence:
        forward(decoder, pool, [(sequence, tokens)], every=False)
        found = [n for n, page in enumerate(sequence._pages, 1) if page.snapshot is not None]
        assert found == [2 * 64, 4 * 64, 5 * 64, 6 * 64]
    with CachedSequence(pool) as other:
        forward(decoder, pool, [(other, [1] * 40)], every=False)
    with CachedSequence(pool) as again:
        assert again.reuse([1] * 41) == 40
        assert again.reuse([2]) == 0
    with CachedSequence(pool) as again:
        assert again.reuse([*tokens[:5000], 1]) == 4096


def test_a_sequence_goes_on_after_an_interrupt_anywhere():
    """From a state of the tokens that it says it has; every row is held, a snapshot or free."""
    decoder = HashDecoder(CONFIG)

    def work(pool):
        tokens = [1] * 37 + [0] * 30
        sequence.reuse(tokens)
        forward(decoder, pool, [(sequence, tokens[len(sequence) :])], every=False)
        forward(decoder, pool, [(sequence, [2] * 6)], every=False, drafted=[5])
        sequence.keep(2)
        forward(decoder, pool, [(sequence, [2, 1]), (other, [2] * 3)], every=False)
        sequence.truncate(50)
        other.assign(sequence)
        other.mark()
        other.close()

    event = 0
    while True:
        pool, event = new_cache(decoder, 40, 4, most_snapshots=3), event + 1
        other = CachedSequence(pool)
        forward(decoder, pool, [(other, [1] * 36)], every=False)
        other.close()
        sequence, other = CachedSequence(pool, 80), CachedSequence(pool)
        other.reuse([1] * 37)
        interrupted = interrupted_at(event, pool, work)
        for one in (sequence, other):
            if pool.is_open(one._held):
                one.keep(one.drafted)
                logits = forward(decoder, pool, [(one, [2])], every=False)[0]
                assert np.array_equal(logits, expected_logits(one.tokens, 50))
                one.close()
        assert pool.held == pool._reserved == pool.rows._claimed == 0
        rows = [page.snapshot.row for page in tree_of(pool) if page.snapshot is not None]
        assert all(row.users == rows.count(row) for row in rows) and len(rows) == pool.rows.snapshots
        assert sorted({*(row.number for row in rows), *pool.rows._free}) == list(range(1, pool.rows._fresh))
        if not interrupted:
            break
    assert event > 300
