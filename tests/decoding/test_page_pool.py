"""The pages of a cache: who holds which, what is found again, and what goes first."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from decodestep.decoding.forward import forward
from decodestep.decoding.kv_cache import PAGE, Pages
from decodestep.decoding.page_pool import LOCK, MOST_KEPT_BYTES, PagePool, new_pool
from decodestep.decoding.sequence import admit
from decodestep.models import CachedSequence, CacheFullError
from support.interrupts import interrupted_at

VOCAB = 3
LONG = 100  # more than any token


class TokenPages(Pages):
    """Pages that hold the token of each position, LONG more if long frequencies rotated it; -1: nothing has been written."""

    page_bytes = 2**18

    def __init__(self, count):
        self.count = count
        self.tokens = np.full((count, PAGE), -1)

    def parts(self, number):
        return [self.tokens[number]]


class Recall:
    """A decoder whose logits of a token are all tokens of its sequence, as its pages hold them."""

    class config:  # noqa: N801
        vocab_size, context, context_in_words = VOCAB, 200, "the context of 200 tokens"

    def logits(self, batch, pages):
        tokens, sequence, positions, page_table, wanted, long = batch[:6]
        written = tokens if long is None else tokens + LONG * long
        for token, row, position in zip(written, sequence, positions, strict=True):
            pages.tokens[page_table[row, position // PAGE], position % PAGE] = token
        out = np.full((len(wanted), self.config.context), -1)
        for place, t in enumerate(wanted):
            held = pages.tokens[page_table[sequence[t], : positions[t] // PAGE + 1]].reshape(-1)
            out[place, : positions[t] + 1] = held[: positions[t] + 1]
        return out


def seen(logits):
    return [int(token) for token in logits if token >= 0]


def build_pool(pages, max_kept=10**6, long_after=None):
    return PagePool(TokenPages(pages), max_kept, long_after)


def run(pool, *batch):
    return [seen(row) for row in forward(Recall(), pool, batch, every=False)]


def started(pool, tokens, capacity=None):
    sequence = CachedSequence(pool, capacity)
    sequence.reuse(tokens)
    run(pool, (sequence, tokens[len(sequence) :]))
    return sequence


def runs_of_tokens(longest, least=0):
    """Any tokens, and one token again and again, which other sequences have in their pages too."""
    alike = st.builds(lambda token, count: [token] * count, st.integers(0, 1), st.integers(least, longest))
    return alike | st.lists(st.integers(0, 1), min_size=least, max_size=longest)


class Sequences(RuleBasedStateMachine):
    """Whatever is done to sequences, each sees its own tokens, and every page is held, kept, free or fresh."""

    sequences = Bundle("sequences")
    long_after = None

    def __init__(self):
        super().__init__()
        self.pool = build_pool(12, max_kept=5, long_after=self.long_after)
        self.open = {}
        self.expected = {}
        self.grown = set()  # those that have only grown

    def read(self, sequence, tokens):
        """What pages hold of tokens that are read now."""
        is_long = self.long_after is not None and self.expected[sequence] > self.long_after
        return [token + LONG * is_long for token in tokens]

    @rule(target=sequences, capacity=st.none() | st.integers(0, 60), tokens=runs_of_tokens(50))
    def begin(self, capacity, tokens):
        try:
            sequence = CachedSequence(self.pool, capacity)
        except CacheFullError:
            sequence = CachedSequence(self.pool)
        reused = sequence.reuse(tokens)
        assert reused == len(sequence) and (reused < len(tokens) or not tokens)
        self.expected[sequence] = len(tokens)
        self.open[sequence] = self.read(sequence, tokens[:reused])
        self.grown.add(sequence)
        return sequence

    @rule(sequence=sequences, tokens=runs_of_tokens(40))
    def reuse(self, sequence, tokens):
        if sequence in self.open:
            self.expected[sequence] = max(self.expected[sequence], len(sequence) + len(tokens))
            self.open[sequence] = self.open[sequence] + self.read(sequence, tokens[: sequence.reuse(tokens)])

    @rule(several=st.lists(sequences, min_size=1, max_size=3, unique=True), data=st.data())
    def extend(self, several, data):
        several = [sequence for sequence in several if sequence in self.open]
        more = [data.draw(runs_of_tokens(40, least=1)) for _ in several]
        before = {sequence: len(sequence) for sequence in self.open}
        try:
            results = run(self.pool, *zip(several, more, strict=True))
        except CacheFullError:
            assert before == {sequence: len(sequence) for sequence in self.open}
            return
        for sequence, tokens, result in zip(several, more, results, strict=True):
            self.expected[sequence] = max(self.expected[sequence], len(self.open[sequence]) + len(tokens))
            self.open[sequence] = self.open[sequence] + self.read(sequence, tokens)
            assert result == self.open[sequence]

    @rule(target=sequences, source=sequences, capacity=st.none() | st.integers(0, 60))
    def fork(self, source, capacity):
        if source not in self.open:
            return source
        try:
            sequence = source.fork(capacity)
        except CacheFullError:
            return source
        self.open[sequence], self.expected[sequence] = list(self.open[source]), self.expected[source]
        self.grown.add(sequence)
        return sequence

    @rule(target_=sequences, source=sequences)
    def assign(self, target_, source):
        if target_ in self.open and source in self.open:
            try:
                target_.assign(source)
            except CacheFullError:
                return
            self.open[target_], self.expected[target_] = list(self.open[source]), self.expected[source]
            self.grown.discard(target_)

    @rule(sequence=sequences, data=st.data())
    def truncate(self, sequence, data):
        if sequence in self.open:
            length = data.draw(st.integers(0, len(sequence)))
            try:
                sequence.truncate(length)
            except CacheFullError:
                return
            self.open[sequence], self.expected[sequence] = self.open[sequence][:length], length
            self.grown.discard(sequence)

    @rule(sequence=consumes(sequences))
    def close(self, sequence):
        sequence.close()
        self.open.pop(sequence, None)

    @rule()
    def clear(self):
        self.pool.clear()
        assert self.pool.kept == 0

    @invariant()
    def contents(self):
        for sequence, tokens in self.open.items():
            assert sequence.tokens == [token % LONG for token in tokens]
            numbers = [page.number for page in sequence._pages]
            assert numbers == sequence._table[: len(numbers)].tolist() and len(numbers) >= -(-len(tokens) // PAGE)
            assert self.pool.storage.tokens[numbers].reshape(-1)[: len(tokens)].tolist() == tokens

    @invariant()
    def accounts(self):
        pool, users = self.pool, {}
        for sequence in self.open:
            for page in sequence._pages:
                users[page] = users.get(page, 0) + 1
        assert all(page.users == count for page, count in users.items())
        numbers = [*(page.number for page in users), *(page.number for page in pool._kept), *pool._free]
        assert sorted(numbers) == list(range(pool._fresh)) and pool._fresh <= pool.pages
        assert pool.held == len(users) and pool.kept == len(pool._kept) <= 5
        assert pool._reserved == sum(sequence.reserved for sequence in self.open)
        assert all(s.reserved <= max(0, s._capacity_pages - len(s._pages)) for s in self.open)
        assert all(s.reserved >= s._capacity_pages - len(s._pages) for s in self.grown if s in self.open)
        with LOCK:
            assert pool.available_locked() >= 0
        kept = list(pool._kept)
        for place, page in enumerate(kept):  # what follows a page in the tree goes before it
            assert all(child in kept[:place] for child in page.children.values())


Sequences.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestSequences = Sequences.TestCase


class LongRope(Sequences):
    """Of a model whose rotations change after 30 tokens."""

    long_after = 30


LongRope.TestCase.settings = Sequences.TestCase.settings
TestLongRope = LongRope.TestCase


def test_pages_that_a_truncation_drops_are_forgotten_from_the_end():
    pool = build_pool(20)
    with started(pool, [0] * 48) as sequence:
        sequence.truncate(1)
        kept = list(pool._kept)
        assert [page.parent for page in kept] == [*kept[1:], pool.roots[0]]


def test_a_kept_page_is_not_copied_where_the_copy_would_take_a_page_of_another():
    pool = build_pool(2)
    started(pool, [0] * PAGE).close()
    with CachedSequence(pool, 1), CachedSequence(pool, 1) as sequence:
        assert sequence.reuse([0, 0]) == 0
        assert (pool.held, pool.kept) == (0, 1)
        assert run(pool, (sequence, [0, 0])) == [[0, 0]]


def test_a_prompt_is_found_again_but_for_its_last_token():
    pool = build_pool(20)
    tokens = [1, 0] * 24
    started(pool, tokens).close()
    assert (pool.held, pool.kept) == (0, 3)
    for length, expected in ((48, 47), (49, 48), (33, 32), (32, 31), (17, 16), (16, 15), (2, 1), (1, 0), (0, 0)):
        with CachedSequence(pool) as sequence:
            assert sequence.reuse([*tokens, 1][:length]) == expected == len(sequence)
    with CachedSequence(pool) as sequence:
        assert sequence.reuse([1, 0] * 8 + [0] * 30) == 16
        assert sequence.reuse([1, 0, 0]) == 2 and len(sequence._pages) == 2
    started(pool, [1, 2] * 24).close()
    for other, expected in ((0, 1), (2, 3)):  # of two pages that begin alike the last is copied
        with CachedSequence(pool) as sequence:
            assert sequence.reuse([1, other, 1, 1]) == expected
    with CachedSequence(pool) as sequence:
        assert sequence.reuse([1, 2, 0, 1]) == 2 and sequence.tokens == [1, 2]


def test_a_prompt_that_waits_takes_the_page_that_another_fills_in_place_of_its_own():
    pool = build_pool(20)
    started(pool, [1] * 16).close()
    with CachedSequence(pool) as one, CachedSequence(pool) as two:
        prompt = [1] * 8 + [0] * 32
        assert one.reuse(prompt) == two.reuse(prompt) == 8 and one.next_page(prompt[8:]) == two.next_page(prompt[8:])
        assert one.next_page(prompt[8:]) == two.next_page([*prompt[8:30], 2])  # what fills other pages
        run(pool, (one, prompt[8:]))
        assert two.reuse(prompt[8:]) == 24 and two._pages[0] is one._pages[0] and pool.held == 3
        assert run(pool, (two, prompt[32:])) == [prompt]


def test_after_a_pass_that_failed_nothing_is_reused():
    class Failing(Recall):
        def logits(self, *arguments):
            raise MemoryError

    pool = build_pool(20)
    started(pool, [1] * 40).close()
    with CachedSequence(pool) as sequence:
        with pytest.raises(MemoryError):
            forward(Failing(), pool, [(sequence, [1] * 20)], every=False)
        assert sequence.reuse([1] * 40) == 0
        assert run(pool, (sequence, [1] * 40)) == [[1] * 40]


@pytest.mark.parametrize(("kind", "name"), [(PagePool, "take_locked"), (CachedSequence, "end_forward")])
def test_an_interrupt_at_the_edge_of_a_pass_leaves_sequences_idle(monkeypatch, kind, name):
    """Where it begins and takes pages, or where it ends; after it a caller closes them."""
    pool = build_pool(20)
    first, second = CachedSequence(pool), CachedSequence(pool)
    called, function = [], getattr(kind, name)

    def interrupted(*arguments):
        called.append(1)
        if len(called) == 1:
            raise KeyboardInterrupt
        return function(*arguments)

    monkeypatch.setattr(kind, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(pool, (first, [1] * 20), (second, [1] * 20))
    assert run(pool, (first, [0]), (second, [0]))[1][-1] == 0
    first.close(), second.close()
    assert pool.held == 0


def reuse_and_run(pool):
    """Pages that are kept, one that is copied, new ones; what is reserved, drafted, cut off and shared."""
    for tokens in ([1] * 40, [1] * 37 + [0] * 20):
        with CachedSequence(pool, 60) as sequence:
            sequence.reuse(tokens)
            run(pool, (sequence, tokens[len(sequence) :]))
            forward(Recall(), pool, [(sequence, [2] * 12)], every=False, drafted=[9])
            sequence.keep(2)
            with sequence.fork(40) as other:
                run(pool, (sequence, [0]), (other, [2] * 20))
                sequence.truncate(3)
                other.assign(sequence)


@pytest.mark.slow
def test_an_interrupt_anywhere_loses_no_page():
    """Python raises an interrupt where a function begins, among other places."""
    event = 1
    pools = [build_pool(20)]
    while interrupted_at(event, pools[-1], reuse_and_run):
        pools.append(build_pool(20))
        event += 1
    gc.collect()
    assert len(pools) > 500
    for pool in pools:
        assert pool.held == pool._reserved == 0
        numbers = [*(page.number for page in pool._kept), *pool._free]
        assert sorted(numbers) == list(range(pool._fresh))
        reuse_and_run(pool)
        assert pool.held == pool._reserved == 0


@pytest.mark.slow
def test_a_sequence_goes_on_after_an_interrupt_anywhere():
    """With the tokens that it says it has, which its pages hold; what others share is as it was."""

    def work(pool):
        tokens = [1] * 37 + [0] * 20
        sequence.reuse(tokens)
        run(pool, (sequence, tokens[len(sequence) :]))
        sequence.truncate(20)
        sequence.assign(other)

    event = 0
    while True:
        pool, event = build_pool(40), event + 1
        started(pool, [1] * 40).close()
        sequence, other = CachedSequence(pool, 60), started(pool, [1] * 36)
        interrupted = interrupted_at(event, pool, work)
        for one in (sequence, other, started(pool, [1] * 40)):
            assert run(pool, (one, [2])) == [one.tokens]
            one.close()
        assert pool.held == pool._reserved == 0
        if not interrupted:
            break
    assert event > 100


def test_a_truncated_sequence_fills_its_pages_again():
    pool = build_pool(20)
    sequence = started(pool, [1] * 40)
    for length, more in ((10, 6), (10, 30), (20, 3)):
        sequence.truncate(length)
        tokens = sequence.tokens + [0] * more
        assert run(pool, (sequence, [0] * more)) == [tokens]
        assert started(pool, [*tokens, 1]).tokens[:-1] == tokens
        assert all(len(page.tokens) in (0, PAGE) for page in sequence._pages)


def test_a_truncated_text_is_as_short_as_it_is():
    pool = build_pool(20, long_after=30)
    sequence = started(pool, [1] * 40)
    sequence.truncate(10)
    assert run(pool, (sequence, [0])) == [[1 + LONG] * 10 + [0]]


def test_of_a_page_that_is_partly_filled_nothing_else_is_continued():
    pool = build_pool(20)
    started(pool, [0] * 40)
    sequence = started(pool, [1, 0])
    assert sequence.reuse([0] * 20) == 0 and run(pool, (sequence, [0] * 20)) == [[1] + [0] * 21]


def test_what_is_read_in_another_way_is_not_reused():
    pool = build_pool(20, long_after=40)
    started(pool, [1] * 33)
    short, long = started(pool, [1] * 16), started(pool, [1] * 16)
    long.expect(50)
    assert short.next_page([1] * 16) != long.next_page([1] * 16)
    assert (short.reuse([1] * 20), long.reuse([1] * 34)) == (16, 0)


@pytest.mark.parametrize(
    ("pages", "closed", "own", "promised", "tokens", "reused"),
    [
        (4, True, None, 48, 33, 16),  # of two pages that are kept, the one that is not promised to another
        (5, False, None, 32, 33, 32),  # pages that others hold take no room
        (4, False, 16, 0, 11, 10),  # the page for a copy is promised to the sequence
        (4, False, None, 16, 11, 0),
    ],
)
def test_reuse_takes_no_page_that_is_promised_to_another(pages, closed, own, promised, tokens, reused):
    pool = build_pool(pages)
    first = started(pool, [1] * 33)
    if closed:
        first.close()
    sequence, other = CachedSequence(pool, own), CachedSequence(pool, promised)
    assert sequence.reuse([1] * tokens) == reused and len(other) == 0
    with LOCK:
        assert pool.available_locked() == 0


def test_a_page_that_is_replaced_makes_room_for_what_replaces_it():
    pool = build_pool(3)
    started(pool, [1] * 17).close()
    sequence = CachedSequence(pool)
    run(pool, (sequence, [1] * 5))
    other = CachedSequence(pool, 32)
    assert sequence.reuse([1] * 12) == 11 and pool._reserved == other.reserved == 2
    pool = build_pool(5)
    started(pool, [1] * 17).close()
    with CachedSequence(pool, 48) as promised:
        run(pool, (promised, [1] * 5))
        assert promised.reuse([1] * 12) == 11 and promised.reserved == 2


def test_a_truncation_takes_the_page_that_is_promised_to_it():
    pool = build_pool(4)
    sequence = started(pool, [1] * 32, 48)
    fork, other = sequence.fork(), CachedSequence(pool, 16)
    sequence.truncate(20)
    assert run(pool, (sequence, [0])) == [[1] * 20 + [0]] and (len(fork), other.reserved) == (32, 1)


def test_sequences_that_begin_alike_share_pages():
    pool = build_pool(20)
    first = started(pool, [1] * 40)
    second = started(pool, [1] * 36 + [0])
    assert pool.held == 4 and [p.number for p in first._pages[:2]] == [p.number for p in second._pages[:2]]
    assert run(pool, (first, [2]), (second, [2])) == [[1] * 40 + [2], [1] * 36 + [0, 2]]


def test_equal_pages_of_two_callers_become_one():
    pool = build_pool(20)
    first, second = CachedSequence(pool), CachedSequence(pool)
    run(pool, (first, [1] * 20), (second, [1] * 20))
    assert pool.held == 3 and first._pages[0] is second._pages[0]


def test_the_least_recently_used_goes_first():
    pool = build_pool(6)
    for token in (0, 1):
        started(pool, [token] * 33).close()  # two full pages each, and one that is free again
    started(pool, [0] * 33).close()
    started(pool, [2] * 49).close()  # takes three: the free ones, and of the kept the last page of the ones
    with CachedSequence(pool) as zeros, CachedSequence(pool) as ones:
        assert (zeros.reuse([0] * 33), ones.reuse([1] * 33)) == (32, 0)


def test_no_more_is_kept_than_the_bound():
    pool = build_pool(100, max_kept=3)
    for token in range(3):
        started(pool, [token] * 70).close()
        assert pool.kept == 3 and pool.held == 0
    assert pool._fresh == 5 + 3  # what is beyond the bound is used again


def test_a_full_cache_says_so_and_changes_nothing():
    pool = build_pool(4)
    first = started(pool, [0] * 40)
    second = started(pool, [1] * 10)
    words = "has 0 of its 4 pages of 16 tokens free, and 1 are needed: load the model with more cache_bytes "
    with pytest.raises(CacheFullError, match=words + r"\(0.25 MiB a page\)"):
        run(pool, (first, [2]), (second, [2] * 7))
    assert len(first) == 40 and len(second) == 10
    first.close()
    assert run(pool, (second, [2] * 7)) == [[1] * 10 + [2] * 7]


def test_a_promise_is_kept():
    pool = build_pool(4)
    first = CachedSequence(pool, 48)
    with pytest.raises(CacheFullError):
        CachedSequence(pool, 17)
    second = started(pool, [1] * 10)
    with pytest.raises(CacheFullError):
        run(pool, (second, [1] * 10))
    assert run(pool, (first, [0] * 48)) == [[0] * 48]
    with pytest.raises(CacheFullError):
        run(pool, (first, [0]))
    with LOCK, pytest.raises(CacheFullError):
        pool.take_locked()
    first.close()
    assert pool.kept == 3
    CachedSequence(pool, 48)


def test_a_promise_outlives_a_truncation():
    """What it frees stays reserved: the sequence can grow again to its capacity, whatever others want."""
    pool = build_pool(3)
    sequence = started(pool, [0] * 48, capacity=48)
    for length in (47, 33, 32, 31, 16, 5, 0):
        sequence.truncate(length)
        assert len(sequence._pages) + sequence.reserved == 3
        with pytest.raises(CacheFullError):
            CachedSequence(pool, 1)
        assert run(pool, (sequence, [1] * (48 - length))) == [[0] * length + [1] * (48 - length)]
        sequence.truncate(length)
        run(pool, (sequence, [0] * (48 - length)))
    with CachedSequence(build_pool(3), 48) as other:
        run(other._pool, (other, [0] * 40))
        other.assign(CachedSequence(other._pool))
        assert other.reserved == 3


def test_a_page_of_a_sequence_alone_is_truncated_where_there_is_no_other():
    pool = build_pool(1)
    sequence = started(pool, [0] * 16)
    sequence.truncate(15)
    assert run(pool, (sequence, [1])) == [[0] * 15 + [1]]
    with CachedSequence(build_pool(2)) as first:
        run(first._pool, (first, [0] * 16))
        with first.fork() as second:
            run(first._pool, (second, [0]))
            with pytest.raises(CacheFullError):
                first.truncate(15)
            assert len(first) == 16 and run(first._pool, (second, [1])) == [[0] * 17 + [1]]


def test_a_copy_takes_what_is_reserved_for_it_or_changes_nothing():
    pool = build_pool(4)
    source = started(pool, [0] * 20)
    with source.fork(20) as copied, CachedSequence(pool) as other:
        run(pool, (other, [1]))
        with CachedSequence(pool) as empty, pytest.raises(CacheFullError):
            empty.assign(source)
        assert empty.tokens == [] and run(pool, (copied, [1])) == [[0] * 20 + [1]]
    pool = build_pool(2)
    with started(pool, [0] * 10) as source, source.fork(10) as copied:
        assert run(pool, (copied, [1])) == [[0] * 10 + [1]]
    pool = build_pool(9)
    source, ones = started(pool, [0] * 20), started(pool, [1] * 48)
    with CachedSequence(pool, 64) as shared:
        assert shared.reuse([*ones.tokens, 2]) == 48 and shared.reserved == 1
        with CachedSequence(pool, 48), pytest.raises(CacheFullError):
            shared.assign(source)
        assert run(pool, (shared, [2])) == [[1] * 48 + [2]]


def test_a_copy_that_needs_no_page_leaves_what_is_reserved():
    pool = build_pool(4)
    with CachedSequence(pool, 32) as copied:
        copied.assign(started(pool, [0] * 16))
        copied.assign(started(pool, [1] * 16))
        assert copied.reserved == 1


def test_a_copy_is_rotated_as_its_source_and_not_as_what_it_was():
    pool = build_pool(20, long_after=30)
    sequence = started(pool, [1] * 40)
    sequence.assign(started(pool, [0] * 16))
    assert run(pool, (sequence, [0] * 20)) == [[0] * 16 + [LONG] * 20]
    with started(pool, [0] * 30) as short:
        assert run(pool, (short, [0])) == [[0] * 30 + [LONG]]


def test_memory_is_prepared_beyond_the_pages_in_use(monkeypatch):
    pool, asked = build_pool(4), []
    monkeypatch.setattr(pool.storage, "prepare", lambda *given: asked.append(given))
    pool.prepare()
    started(pool, [0] * 20)
    pool.prepare(3)
    assert asked == [(0, 1), (2, 3)]


def test_what_is_garbage_collected_comes_back():
    pool = build_pool(4)
    sequence = started(pool, [0] * 40, capacity=64)
    sequence.cycle = sequence
    del sequence
    gc.collect()
    assert (pool.kept, pool.held, pool._reserved) == (2, 0, 0)


@pytest.mark.parametrize("change", [lambda sequence, source: sequence.assign(source), lambda sequence, _: sequence.close()])
def test_an_interrupt_while_pages_are_released_leaves_none_in_two_places(change, monkeypatch):
    def interrupt(count):
        raise KeyboardInterrupt

    pool = build_pool(12)
    source, sequence = started(pool, [0] * 20), started(pool, [1] * 40)
    with monkeypatch.context() as patched:
        patched.setattr(pool, "_keep_at_most_locked", interrupt)
        with pytest.raises(KeyboardInterrupt):
            change(sequence, source)
    assert not sequence._pages
    sequence.close()
    assert all(page.users == 0 for page in pool._kept) and len(set(pool._free)) == len(pool._free)
    with source.fork() as other:
        assert run(pool, (other, [1])) == [[0] * 20 + [1]]


def test_waiting_for_pages(monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    pool = build_pool(4)
    with pytest.raises(CacheFullError):
        pool.wait_for(5)  # nobody could give any back
    [first], [second] = admit(pool, 1, 32), admit(pool, 1, 32)
    with pytest.raises(CacheFullError):
        admit(pool, 1, 1)
    pool.wait_for(4)  # comes back without them: the caller may look around
    thread, woken, wait = threading.Thread(target=first.close), [], pool._freed.wait

    def wait_long(seconds):
        thread.start()  # it needs the lock, which to wait releases
        woken.append(wait(300 * seconds))

    with monkeypatch.context() as patched:
        patched.setattr(pool._freed, "wait", wait_long)
        pool.wait_for(2)
        thread.join()
    assert woken == [True] and pool.pages - pool._reserved == 2
    own = CachedSequence(pool, 32)  # of a caller that may never close it
    del second  # the last that was admitted is garbage collected: an error instead of waiting for ever
    gc.collect()
    with pytest.raises(CacheFullError):
        pool.wait_for(4)
    assert own.reserved == pool._reserved == 2


def test_nothing_waits_for_pages_that_are_free(monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    pool = build_pool(4)
    admitted = admit(pool, 1, 32)
    monkeypatch.setattr(pool, "_freed", None)
    pool.wait_for(2)
    assert admitted[0].reserved == 2


def test_a_request_may_need_all_pages_and_no_more():
    pool = build_pool(4)
    pool.require_total(4, "a row")
    with pytest.raises(CacheFullError, match="a row may need 5 pages, and the cache has 4: load the model"):
        pool.require_total(5, "a row")


def test_a_thread_that_is_alone_does_not_wait_for_itself(monkeypatch):
    pool = build_pool(4)
    admitted = admit(pool, 1, 32)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    pool.wait_for(2)
    with pytest.raises(CacheFullError, match="2 of its 4 pages of 16 tokens free, and 4 are needed"):
        pool.wait_for(4)
    admitted[0].close()


def test_all_or_none_are_admitted():
    pool = build_pool(5)
    with pytest.raises(CacheFullError):
        admit(pool, 3, 32)
    assert pool._reserved == 0 and len(admit(pool, 2, 32)) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, _: s.truncate(4), "length must be in \\[0, 3\\]; got 4"),
        (lambda s, _: s.truncate(-1), "length must be in"),
        (lambda s, other: s.assign(other), "source must be one of the same model"),
        (lambda s, _: s.assign(None), "source must be one of the same model"),
        (lambda s, _: CachedSequence(s._pool, -1), "capacity must be a number of tokens or None; got -1"),
        (lambda s, _: CachedSequence(s._pool, 1.5), "capacity must be a number of tokens or None; got 1.5"),
        (lambda s, _: s.expect(-1), "length must be an integer >= 0; got -1"),
        (lambda s, _: s.expect(2.5), "length must be an integer >= 0; got 2.5"),
        (lambda s, _: run(s._pool, (s, [])), "forward: batch must be of one or more token ids in \\[0, 3\\)"),
        (lambda s, _: run(s._pool, (s, [3])), "forward: batch must be of one or more token ids in \\[0, 3\\)"),
        (lambda s, _: run(s._pool, (s, {0, 1})), "forward: batch must be of one or more token ids in \\[0, 3\\)"),
        (lambda s, _: run(s._pool, s), "forward: batch must be of pairs of a sequence and its new token ids"),
        (lambda s, _: forward(Recall(), s._pool, None, every=True), "forward: batch must be of pairs of .*; got None"),
        (
            lambda s, _: forward(Recall(), s._pool, [(s, [0])], every=False, wanted=5),
            "wanted must be a flag for each of 1; got 5",
        ),
        (lambda s, _: forward(Recall(), s._pool, [(s, [0])], every=False, wanted=[]), "wanted must be a flag for each of 1"),
        (lambda s, _: forward(Recall(), s._pool, [(s, [0])], every=True, wanted=np.ones(2, bool)), "wanted must be None with"),
        (lambda s, _: run(s._pool, (s, [0] * 198)), "no longer than the context of 200 tokens; got 201"),
        (lambda s, _: run(s._pool, (s, [0]), (s, [0])), "of different sequences; got one sequence 2 times"),
        (lambda s, other: run(s._pool, (s, [0]), (other, [0])), "of sequences of this model"),
        (lambda s, _: (s.close(), run(s._pool, (s, [0]))), "open and used by one thread at a time; got a closed one"),
        (lambda s, _: (s.close(), s.fork()), "got a closed one"),
        (lambda s, _: (s.close(), s.reuse([0])), "got a closed one"),
        (lambda s, _: (s.close(), s.truncate(1)), "got a closed one"),
        (lambda s, _: (source := s.fork(), s.close(), s.assign(source)), "got a closed one"),
        (lambda s, _: (setattr(s._held, "runner", 0), run(s._pool, (s, [0]))), "got a running one"),
    ],
)
def test_refusals(call, message):
    sequence, other = started(build_pool(20), [0, 1, 2]), started(build_pool(20), [0])
    with pytest.raises(ValueError, match=message):
        call(sequence, other)
    assert other.tokens == [0] and sequence.tokens == [0, 1, 2]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_pages_have_one_owner(copied):
    sequence = started(build_pool(20), [0, 1, 2])
    with pytest.raises(TypeError, match="CachedSequence cannot be copied"):
        copied(sequence)
    with pytest.raises(TypeError, match="load the model in each process"):
        copied(sequence._pool)


def test_a_pool_of_no_more_than_the_bytes_asked_for(monkeypatch):
    monkeypatch.setattr("decodestep.decoding.page_pool.memory_limit", lambda: 43_999)
    assert new_pool(TokenPages, 1000, None).pages == 10
    assert new_pool(TokenPages, 50_000, None).pages == 1
    monkeypatch.undo()
    kept = new_pool(TokenPages, MOST_KEPT_BYTES // 2, 4 * MOST_KEPT_BYTES)
    started(kept, [0] * 49).close()
    assert kept.kept == 2
    assert new_pool(TokenPages, 1000, 5999).pages == 5
    assert new_pool(TokenPages, 1000, 1000).pages == 1
    with pytest.raises(ValueError, match="^load: cache_bytes must be at least 1000, which a page of 16 tokens takes; got 999$"):
        new_pool(TokenPages, 1000, 999)

    def scarce(count):
        if count > 100:
            raise MemoryError
        return TokenPages(count)

    assert 50 <= new_pool(scarce, 1000, None).pages <= 100
    with pytest.raises(MemoryError, match="no address space for a cache of 200000 bytes"):
        new_pool(scarce, 1000, 200_000)
