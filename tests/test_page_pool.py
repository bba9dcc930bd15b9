"""The pages of a model's cache: who holds which, what is found again, what goes first; and the bits, which never change."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

import decodestep as ds
import processes
from decodestep._base.arrays import BFLOAT16
from decodestep.models import CachedSequence, CacheFullError
from decodestep.models.forward import forward
from decodestep.models.kv_cache import HUGE_PAGE, PAGE, Pages, SlabPages, _bytes_of_huge_pages, grouped_layout
from decodestep.models.page_pool import LOCK, PagePool, new_pool
from decodestep.models.prefill import Prefill
from decodestep.models.sequence import admit

VOCAB = 3
LAYOUT = grouped_layout(30, 3, 64, BFLOAT16)
LONG = 100  # more than any token


class TokenPages(Pages):
    """Pages that hold the token of each position, LONG more if long frequencies rotated it; -1: nothing has been written."""

    page_bytes = 1000

    def __init__(self, count):
        self.count = count
        self.tokens = np.full((count, PAGE), -1)

    def copy(self, source, target):
        self.tokens[target] = self.tokens[source]


class Recall:
    """A decoder whose logits of a token are all tokens of its sequence, as its pages hold them."""

    class config:  # noqa: N801
        vocab_size, context = VOCAB, 200

    def logits(self, batch, pages):
        tokens, sequence, positions, page_table, wanted, long = batch
        written = tokens if long is None else tokens + LONG * long
        for token, row, position in zip(written, sequence, positions, strict=True):
            pages.tokens[page_table[row, position // PAGE], position % PAGE] = token
        out = np.full((len(wanted), self.config.context), -1)
        for place, t in enumerate(wanted):
            held = pages.tokens[page_table[sequence[t], : positions[t] // PAGE + 1]].reshape(-1)
            out[place, : positions[t] + 1] = held[: positions[t] + 1]
        return out


def printed(code):
    return processes.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True).stdout


def seen(logits):
    return [int(token) for token in logits if token >= 0]


def pool_of(pages, max_kept=10**6, long_after=None):
    return PagePool(TokenPages(pages), max_kept, long_after)


def run(pool, *batch):
    return [seen(row) for row in forward(Recall(), pool, batch, every=False)]


def started(pool, tokens, capacity=None):
    sequence = CachedSequence(pool, capacity)
    sequence.reuse(tokens)
    run(pool, (sequence, tokens[len(sequence) :]))
    return sequence


class Sequences(RuleBasedStateMachine):
    """Whatever is done to sequences, each sees its own tokens, and every page is held, kept, free or fresh."""

    sequences = Bundle("sequences")
    long_after = None

    def __init__(self):
        super().__init__()
        self.pool = pool_of(12, max_kept=5, long_after=self.long_after)
        self.open = {}
        self.expected = {}

    def read(self, sequence, tokens):
        """What pages hold of tokens that are read now."""
        is_long = self.long_after is not None and self.expected[sequence] > self.long_after
        return [token + LONG * is_long for token in tokens]

    @rule(target=sequences, capacity=st.none() | st.integers(0, 60), tokens=st.lists(st.integers(0, 1), max_size=50))
    def begin(self, capacity, tokens):
        try:
            sequence = CachedSequence(self.pool, capacity)
        except CacheFullError:
            sequence = CachedSequence(self.pool)
        reused = sequence.reuse(tokens)
        assert reused == len(sequence) and (reused < len(tokens) or not tokens)
        self.expected[sequence] = len(tokens)
        self.open[sequence] = self.read(sequence, tokens[:reused])
        return sequence

    @rule(several=st.lists(sequences, min_size=1, max_size=3, unique=True), data=st.data())
    def extend(self, several, data):
        several = [sequence for sequence in several if sequence in self.open]
        more = [data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=40)) for _ in several]
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
        return sequence

    @rule(target_=sequences, source=sequences)
    def assign(self, target_, source):
        if target_ in self.open and source in self.open:
            try:
                target_.assign(source)
            except CacheFullError:
                return
            self.open[target_], self.expected[target_] = list(self.open[source]), self.expected[source]

    @rule(sequence=sequences, data=st.data())
    def truncate(self, sequence, data):
        if sequence in self.open:
            length = data.draw(st.integers(0, len(sequence)))
            try:
                sequence.truncate(length)
            except CacheFullError:
                return
            self.open[sequence], self.expected[sequence] = self.open[sequence][:length], length

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
        assert pool._reserved == sum(sequence._reserved for sequence in self.open)
        assert all(s._reserved <= max(0, s._promised - len(s._pages)) for s in self.open)
        with LOCK:
            assert pool.available_locked() >= 0
        kept = list(pool._kept)
        for place, page in enumerate(kept):  # what follows a page in the tree goes before it
            assert all(child in kept[:place] for child in page.children.values())


Sequences.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSequences = Sequences.TestCase


class LongRope(Sequences):
    """Of a model whose rotations change after 30 tokens."""

    long_after = 30


LongRope.TestCase.settings = Sequences.TestCase.settings
TestLongRope = LongRope.TestCase


def test_pages_that_a_truncation_drops_are_forgotten_from_the_end():
    pool = pool_of(20)
    with started(pool, [0] * 48) as sequence:
        sequence.truncate(1)
        kept = list(pool._kept)
        assert [page.parent for page in kept] == [*kept[1:], pool.roots[0]]


def test_a_kept_page_is_not_copied_where_the_copy_would_take_a_page_of_another():
    pool = pool_of(2)
    started(pool, [0] * PAGE).close()
    with CachedSequence(pool, 1), CachedSequence(pool, 1) as sequence:
        assert sequence.reuse([0, 0]) == 0
        assert (pool.held, pool.kept) == (0, 1)
        assert run(pool, (sequence, [0, 0])) == [[0, 0]]


def test_a_prompt_is_found_again_but_for_its_last_token():
    pool = pool_of(20)
    tokens = [1, 0] * 24
    started(pool, tokens).close()
    assert (pool.held, pool.kept) == (0, 3)
    for length, expected in ((48, 47), (49, 48), (33, 32), (32, 31), (17, 16), (16, 15), (2, 1), (1, 0), (0, 0)):
        with CachedSequence(pool) as sequence:
            assert sequence.reuse([*tokens, 1][:length]) == expected == len(sequence)
    with CachedSequence(pool) as sequence:
        assert sequence.reuse([1, 0] * 8 + [0] * 30) == 16
        assert sequence.reuse([1, 0, 0]) == 2 and len(sequence._pages) == 2


def test_a_prompt_that_waits_takes_the_page_that_another_fills_in_place_of_its_own():
    pool = pool_of(20)
    started(pool, [1] * 16).close()
    with CachedSequence(pool) as one, CachedSequence(pool) as two:
        prompt = [1] * 8 + [0] * 32
        assert one.reuse(prompt) == two.reuse(prompt) == 8 and one.next_page(prompt[8:]) == two.next_page(prompt[8:])
        run(pool, (one, prompt[8:]))
        assert two.reuse(prompt[8:]) == 24 and two._pages[0] is one._pages[0] and pool.held == 3
        assert run(pool, (two, prompt[32:])) == [prompt]


def test_after_a_pass_that_failed_nothing_is_reused():
    class Failing(Recall):
        def logits(self, *arguments):
            raise MemoryError

    pool = pool_of(20)
    started(pool, [1] * 40).close()
    with CachedSequence(pool) as sequence:
        with pytest.raises(MemoryError):
            forward(Failing(), pool, [(sequence, [1] * 20)], every=False)
        assert sequence.reuse([1] * 40) == 0
        assert run(pool, (sequence, [1] * 40)) == [[1] * 40]


@pytest.mark.parametrize(("kind", "name"), [(PagePool, "take_locked"), (CachedSequence, "end_pass")])
def test_an_interrupt_at_the_edge_of_a_pass_leaves_sequences_idle(monkeypatch, kind, name):
    """Where it begins and takes pages, or where it ends; after it a caller closes them."""
    pool = pool_of(20)
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


def test_sequences_that_begin_alike_share_pages():
    pool = pool_of(20)
    first = started(pool, [1] * 40)
    second = started(pool, [1] * 36 + [0])
    assert pool.held == 4 and [p.number for p in first._pages[:2]] == [p.number for p in second._pages[:2]]
    assert run(pool, (first, [2]), (second, [2])) == [[1] * 40 + [2], [1] * 36 + [0, 2]]


def test_equal_pages_of_two_callers_become_one():
    pool = pool_of(20)
    first, second = CachedSequence(pool), CachedSequence(pool)
    run(pool, (first, [1] * 20), (second, [1] * 20))
    assert pool.held == 3 and first._pages[0] is second._pages[0]


def test_the_least_recently_used_goes_first():
    pool = pool_of(6)
    for token in (0, 1):
        started(pool, [token] * 33).close()  # two full pages each, and one that is free again
    started(pool, [0] * 33).close()
    started(pool, [2] * 49).close()  # takes three: the free ones, and of the kept the last page of the ones
    with CachedSequence(pool) as zeros, CachedSequence(pool) as ones:
        assert (zeros.reuse([0] * 33), ones.reuse([1] * 33)) == (32, 0)


def test_no_more_is_kept_than_the_bound():
    pool = pool_of(100, max_kept=3)
    for token in range(3):
        started(pool, [token] * 70).close()
        assert pool.kept == 3 and pool.held == 0
    assert pool._fresh == 5 + 3  # what is beyond the bound is used again


def test_a_full_cache_says_so_and_changes_nothing():
    pool = pool_of(4)
    first = started(pool, [0] * 40)
    second = started(pool, [1] * 10)
    words = "has 0 of its 4 pages of 16 tokens free, and 1 are needed: load the model with more cache_bytes"
    with pytest.raises(CacheFullError, match=words):
        run(pool, (first, [2]), (second, [2] * 7))
    assert len(first) == 40 and len(second) == 10
    first.close()
    assert run(pool, (second, [2] * 7)) == [[1] * 10 + [2] * 7]


def test_a_promise_is_kept():
    pool = pool_of(4)
    first = CachedSequence(pool, 48)
    with pytest.raises(CacheFullError):
        CachedSequence(pool, 17)
    second = started(pool, [1] * 10)
    with pytest.raises(CacheFullError):
        run(pool, (second, [1] * 10))
    assert run(pool, (first, [0] * 48)) == [[0] * 48]
    with pytest.raises(CacheFullError):
        run(pool, (first, [0]))
    first.close()
    assert pool.kept == 3
    CachedSequence(pool, 48)


def test_a_promise_outlives_a_truncation():
    """What it frees stays reserved: the sequence can grow again to its capacity, whatever others want."""
    pool = pool_of(3)
    sequence = started(pool, [0] * 48, capacity=48)
    for length in (47, 33, 32, 31, 16, 5, 0):
        sequence.truncate(length)
        assert len(sequence._pages) + sequence._reserved == 3
        with pytest.raises(CacheFullError):
            CachedSequence(pool, 1)
        assert run(pool, (sequence, [1] * (48 - length))) == [[0] * length + [1] * (48 - length)]
        sequence.truncate(length)
        run(pool, (sequence, [0] * (48 - length)))
    with CachedSequence(pool_of(3), 48) as other:
        run(other._pool, (other, [0] * 40))
        other.assign(CachedSequence(other._pool))
        assert other._reserved == 3


def test_a_page_of_a_sequence_alone_is_truncated_where_there_is_no_other():
    pool = pool_of(1)
    sequence = started(pool, [0] * 16)
    sequence.truncate(15)
    assert run(pool, (sequence, [1])) == [[0] * 15 + [1]]
    with CachedSequence(pool_of(2)) as first:
        run(first._pool, (first, [0] * 16))
        with first.fork() as second:
            run(first._pool, (second, [0]))
            with pytest.raises(CacheFullError):
                first.truncate(15)
            assert len(first) == 16 and run(first._pool, (second, [1])) == [[0] * 17 + [1]]


def test_what_is_garbage_collected_comes_back():
    pool = pool_of(4)
    sequence = started(pool, [0] * 40, capacity=64)
    sequence.cycle = sequence
    del sequence
    gc.collect()
    assert (pool.held, pool.kept, pool._reserved) == (0, 2, 0)


def test_waiting_for_pages():
    pool = pool_of(4)
    with pytest.raises(CacheFullError):
        pool.wait_for(5)  # nobody could give any back
    [first], [second] = admit(pool, 1, 32), admit(pool, 1, 32)
    with pytest.raises(CacheFullError):
        admit(pool, 1, 1)
    pool.wait_for(4)  # comes back without them: the caller may look around
    thread = threading.Thread(target=first.close)
    thread.start()
    while pool.pages - pool._reserved < 2:
        pool.wait_for(2)
    thread.join()
    own = CachedSequence(pool, 32)  # of a caller that may never close it
    del second  # the last that was admitted is garbage collected: an error instead of waiting for ever
    while pool._sequences - {own}:
        gc.collect()
    with pytest.raises(CacheFullError):
        pool.wait_for(4)
    assert own._reserved == pool._reserved == 2


def test_all_or_none_are_admitted():
    pool = pool_of(5)
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
        (lambda s, _: run(s._pool, s), "forward: batch must be of pairs of a sequence and its new token ids"),
        (lambda s, _: run(s._pool, (s, [0] * 198)), "no longer than the context of 200 tokens; got 201"),
        (lambda s, _: run(s._pool, (s, [0]), (s, [0])), "of different sequences; got one sequence 2 times"),
        (lambda s, other: run(s._pool, (s, [0]), (other, [0])), "of sequences of this model"),
        (lambda s, _: (s.close(), run(s._pool, (s, [0]))), "open and used by one thread at a time; got a closed one"),
        (lambda s, _: (s.close(), s.fork()), "got a closed one"),
        (lambda s, _: (setattr(s, "_runner", 0), run(s._pool, (s, [0]))), "got a running one"),
    ],
)
def test_refusals(call, message):
    sequence, other = started(pool_of(20), [0, 1, 2]), started(pool_of(20), [0])
    with pytest.raises(ValueError, match=message):
        call(sequence, other)
    assert other.tokens == [0] and sequence.tokens == [0, 1, 2]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_pages_have_one_owner(copied):
    sequence = started(pool_of(20), [0, 1, 2])
    with pytest.raises(TypeError, match="CachedSequence cannot be copied"):
        copied(sequence)
    with pytest.raises(TypeError, match="load the model in each process"):
        copied(sequence._pool)


def test_a_pool_of_no_more_than_the_bytes_asked_for():
    assert new_pool(TokenPages, 1000, 5999).pages == 5
    assert new_pool(TokenPages, 1000, 1).pages == 1

    def scarce(count):
        if count > 100:
            raise OSError("cannot allocate memory")
        return TokenPages(count)

    assert 50 <= new_pool(scarce, 1000, None).pages <= 100
    with pytest.raises(MemoryError, match="no address space for a cache of 200000 bytes"):
        new_pool(scarce, 1000, 200_000)


def test_prompts_of_one_batch_run_what_they_share_once(tiny_file, rng):
    model = ds.load(tiny_file(context=400))
    common = rng.integers(0, 297, 100).tolist()
    prompts = [common + rng.integers(0, 297, n).tolist() for n in (5, 60, 1, 17)] + [common, common[:50] + [3] * 90, [7]]
    prefill = Prefill(model)
    sequences = [model.sequence() for _ in prompts]
    for key, (sequence, prompt) in enumerate(zip(sequences, prompts, strict=True)):
        prefill.add(key, sequence, prompt)
    done = {}
    while prefill:
        done |= prefill.run()
    assert sorted(done) == list(range(len(prompts)))
    shared, alone = 96 // PAGE, [(len(p) + 15) // PAGE for p in prompts]
    assert model.cache.held == shared + sum(alone[:4]) - 4 * shared + 1 + (alone[5] - 48 // PAGE) + 1
    fresh = ds.load(model.path)
    for key, prompt in enumerate(prompts):
        assert np.array_equal(done[key], fresh.logits(prompt)[-1])


def test_a_sequence_takes_ids_of_any_kind_and_no_others(tiny_file):
    model, prompt = ds.load(tiny_file()), [5] * 40
    with model.sequence(prompt) as first:
        model.forward([(first, prompt)])
        for ids in (prompt, np.array(prompt), torch.tensor(prompt)):
            with model.sequence(ids) as again:
                assert again.tokens == [5] * 32
        for wrong in ([5] * 39 + [300], [-1], [0.5], "ab", None, 5, [[5]]):
            with pytest.raises(ValueError, match=r"^sequence: token_ids must be token ids in \[0, 300\); got "):
                model.sequence(wrong)
    assert model.cache.held == 0


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_reuse_changes_no_bit(tiny_file, dtype, rng):
    """A chat's turns, forks and rollbacks on one model, each compared with the same tokens on a model without a past."""
    path = tiny_file(kind="Q8_0", context=300)
    model, fresh = ds.load(path, dtype=dtype), ds.load(path, dtype=dtype, cache_bytes=1_000_000)
    history: list[int] = []
    for _ in range(4):
        history += rng.integers(0, 297, 23).tolist()
        with model.sequence(history) as sequence:
            for _ in range(9):
                logits = model.forward([(sequence, history[len(sequence) :])])[0]
                assert np.array_equal(logits, fresh.logits(history)[-1])
                history.append(int(logits.argmax()))
            with sequence.fork() as branch:
                branch.truncate(len(branch) - 5)
                logits = model.forward([(branch, [1, 2, 3])])[0]
                assert np.array_equal(logits, fresh.logits([*branch.tokens[:-3], 1, 2, 3])[-1])
            logits = model.forward([(sequence, [5])])[0]
            assert np.array_equal(logits, fresh.logits([*sequence.tokens[:-1], 5])[-1])


def test_threads_share_a_model(tiny_file, rng):
    model = ds.load(tiny_file(context=200), cache_bytes=60 * ds.load(tiny_file(context=200)).cache.page_bytes)
    prompts = [[i % 3] * 20 + rng.integers(0, 297, 30).tolist() for i in range(12)]
    expected = [model.logits(prompt) for prompt in prompts]
    wrong = []

    def work(seed):
        own = np.random.default_rng(seed)
        for i in own.integers(0, len(prompts), 25):
            cut = int(own.integers(1, 50))
            with model.sequence(prompts[i]) as sequence:
                start = len(sequence)
                if start < cut:
                    model.forward([(sequence, prompts[i][start:cut])])
                logits = model.forward([(sequence, prompts[i][len(sequence) :])], every=True)
                if not np.array_equal(logits, expected[i][-len(logits) :]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and model.cache.held == 0


def test_a_child_has_the_pages_of_threads_that_it_has_not(tiny_file):
    code = f"""
import os, threading
import decodestep as ds
model = ds.load({str(tiny_file())!r}, cache_bytes=4 * ds.load({str(tiny_file())!r}).cache.page_bytes)
own = model.sequence()
model.forward([(own, [1, 2, 3])])
made, go_on = threading.Event(), threading.Event()
def hold():
    with model.sequence(capacity=40):
        made.set()
        go_on.wait()
thread = threading.Thread(target=hold)
thread.start()
made.wait()
child = os.fork()
if child == 0:
    own.fork().close()
    ds.generate(model, [[4] * 20], ds.SamplingParams(max_new_tokens=20))
    os._exit(0 if model.cache.held == 1 and len(model.forward([(own, [4])])) else 1)
print(os.waitpid(child, 0)[1])
try:
    model.logits(range(40))
except ds.models.CacheFullError:
    print("full")
go_on.set()
thread.join()
"""
    assert printed(code).split() == ["0", "full"]


def test_a_fork_beside_busy_threads_can_use_the_cache(tiny_file):
    code = f"""
import os, threading
import decodestep as ds
model = ds.load({str(tiny_file())!r})
expected = model.logits(range(40)).tobytes()
stop = threading.Event()
def work():
    while not stop.is_set():
        with model.sequence(range(40)) as sequence:
            model.forward([(sequence, range(len(sequence), 40))])
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(0 if model.logits(range(40)).tobytes() == expected else 1)
    codes.append(os.waitpid(child, 0)[1])
stop.set()
for thread in threads: thread.join()
print(codes)
"""
    assert printed(code).strip() == str([0] * 20)


def test_pages_take_memory_only_when_they_are_written(tiny_file):
    """A quarter of the machine's memory is the bound; a short text takes a few pages of it."""
    code = f"""
import decodestep as ds
from processes import resident
model = ds.load({str(tiny_file(context=4000))!r})
model.logits([1])
before = resident()
model.logits(range(200))
print(model.cache.pages * model.cache.page_bytes > 2**28, (resident() - before) < 2**24)
"""
    assert printed(code).split() == ["True", "True"]


def huge_pages_of(memory):
    """The numbers of the huge pages that an array has a part of."""
    first = memory.ctypes.data
    return range(first // HUGE_PAGE, (first + memory.nbytes - 1) // HUGE_PAGE + 1)


@pytest.mark.parametrize("first", [0, 1, HUGE_PAGE - 1, 3 * HUGE_PAGE // 2])
@pytest.mark.parametrize("size", [1, 5000, HUGE_PAGE, HUGE_PAGE + 1, 2 * HUGE_PAGE + 7])
def test_each_huge_page_of_memory_has_one_byte(first, size):
    memory = np.zeros(5 * HUGE_PAGE, np.uint8)[first : first + size]
    found = _bytes_of_huge_pages(memory)
    assert all(byte.shape == (1,) and np.shares_memory(byte, memory) for byte in found)
    assert sorted(byte.ctypes.data // HUGE_PAGE for byte in found) == list(huge_pages_of(memory))


def test_memory_of_coming_pages_is_taken_a_little_at_a_time():
    """Slabs of 45 pages: that of the next fresh page and no other, and none that somebody may be writing."""
    pages = SlabPages(LAYOUT, 200)
    slab = pages.keys.shape[3]
    pages.keys[0] = pages.values[0] = 1
    for fresh, number in ((1, 1), (slab - 1, None), (slab, None), (slab + 1, 2), (2 * slab + 1, 3), (3 * slab + 1, None)):
        calls = 0
        while pages.prepare(fresh):
            calls += 1
        parts = [] if number is None else [pages.keys[number], pages.values[number]]
        assert calls == sum(len(huge_pages_of(part)) for part in parts), fresh
    assert (pages.keys[0] == 1).all() and (pages.values[0] == 1).all() and not pages.keys[1:].any()
    assert not SlabPages(LAYOUT, slab).prepare(1)


def test_memory_is_taken_for_several_slabs_ahead_if_asked_for():
    pages = SlabPages(LAYOUT, 200)
    slab, slabs = pages.keys.shape[3], len(pages.keys)
    of_slab = [sum(len(huge_pages_of(part[number])) for part in (pages.keys, pages.values)) for number in range(slabs)]
    for fresh, ahead, numbers in ((0, 2, (0, 1)), (0, 2, ()), (1, 2, (2,)), (slab + 1, 9, (3,)), (4 * slab, 9, ())):
        calls = 0
        while pages.prepare(fresh, ahead):
            calls += 1
        assert calls == sum(of_slab[number] for number in numbers), (fresh, ahead)


def test_memory_that_has_been_handed_out_meanwhile_is_left_alone():
    pages = SlabPages(LAYOUT, 200)
    slab = pages.keys.shape[3]
    assert pages.prepare(1)  # the first of several calls for slab 1
    pages.keys[1] = pages.values[1] = 1
    while pages.prepare(slab + 1):
        pass
    assert (pages.keys[1] == 1).all() and (pages.values[1] == 1).all()
