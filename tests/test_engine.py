"""The engine: whatever comes, goes, is cancelled or fails beside a request, its tokens are those that it has alone."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace

import pytest

import decodestep as ds
from decodestep.generation.batch import Batch
from decodestep.generation.schedule import Beside
from decodestep.models.kv_cache import PAGE
from decodestep.models.page_pool import CacheFullError
from decodestep.models.prefill import Prefill, Room, keys_of
from decodestep.serving import Engine, EngineClosedError, QueueFullError

FREE = {"ignore_eos": True}


@pytest.fixture
def tiny(tiny_file):
    return ds.load(tiny_file(kind="Q8_0", context=400))


def requests(seed, count, longest=120):
    rng = random.Random(seed)
    common = [rng.randrange(297) for _ in range(70)]
    made = []
    for number in range(count):
        prompt = common[: rng.choice((0, 32, 70))] + [rng.randrange(297) for _ in range(rng.randint(1, longest))]
        params = ds.SamplingParams(
            max_new_tokens=rng.randint(1, 40),
            seed=number % 5,
            temperature=rng.choice((0, 0.7, 1.5)),
            top_k=rng.choice((0, 40)),
            repetition_penalty=rng.choice((1.0, 1.2)),
            logprobs=rng.choice((None, 2)),
            prompt_logprobs=rng.choice((None, None, 1)),
            stop_strings=rng.choice(((), ("a",))),
        )
        if not params.greedy and rng.random() < 0.2:
            params = replace(params, num_return_sequences=3)
        made.append((prompt, params))
    return made


def fresh_answers(model, made):
    answers = []
    for prompt, params in made:
        model.cache.clear()
        answers.append(ds.generate(model, [prompt], params))
    model.cache.clear()
    return answers


def told(ticket):
    """The text and the tokens of each sample, from its gains."""
    texts, tokens, reasons = ([""] * len(ticket.rows), [[] for _ in ticket.rows], [""] * len(ticket.rows))
    for gain in ticket:
        assert not reasons[gain.sample]
        texts[gain.sample] += gain.text
        tokens[gain.sample] += [] if gain.token is None else [gain.token]
        reasons[gain.sample] = gain.reason
    return list(zip(texts, tokens, reasons, strict=True))


@pytest.mark.parametrize("pages", [4096, 26])
def test_every_answer_is_that_of_the_request_alone(tiny, pages, monkeypatch):
    """With a cache of 26 pages and rows of up to 15, rows wait and may be suspended; the tokens stay the same."""
    made = requests(pages, 40)
    expected = fresh_answers(tiny, made)
    model = ds.load(tiny.path, cache_bytes=pages * tiny.cache.page_bytes, threads=2)
    monkeypatch.setattr(Beside, "AHEAD", 4)  # so that rows run out of pages
    forward, all_here = model.decoder.logits, threading.Event()
    monkeypatch.setattr(model.decoder, "logits", lambda *arguments: (all_here.wait(60), forward(*arguments))[1])
    with Engine(model, max_rows=12, max_waiting=200) as engine:
        tickets = [engine.submit(prompt, params) for prompt, params in made]
        all_here.set()
        gains = [told(ticket) for ticket in tickets]
        for ticket, alone, gained in zip(tickets, expected, gains, strict=True):
            assert ticket.completions() == alone
            assert gained == [(one.text, one.token_ids, one.finish_reason) for one in alone]
        assert model.cache.held == 0 and engine.live == 0


def test_a_row_that_is_suspended_for_lack_of_pages_loses_nothing(tiny, monkeypatch):
    """Two rows of 3 pages that grow to 7, in a cache of 9."""
    prompts = [list(range(47)), list(range(100, 147))]
    params = ds.SamplingParams(max_new_tokens=60, seed=1, **FREE)
    expected = [ds.generate(tiny, [prompt], params)[0] for prompt in prompts]
    model = ds.load(tiny.path, cache_bytes=9 * tiny.cache.page_bytes)
    monkeypatch.setattr(Beside, "AHEAD", 1)
    suspended, suspend = [], Batch._suspend_last
    monkeypatch.setattr(Batch, "_suspend_last", lambda batch: (suspended.append(1), suspend(batch)))
    forward, both_here = model.decoder.logits, threading.Event()
    monkeypatch.setattr(model.decoder, "logits", lambda *arguments: (both_here.wait(60), forward(*arguments))[1])
    with Engine(model) as engine:
        tickets = [engine.submit(prompt, params) for prompt in prompts]
        both_here.set()
        assert [told(ticket)[0][1] for ticket in tickets] == [one.token_ids for one in expected]
    assert suspended and model.cache.held == 0


def test_a_prompt_that_finds_no_pages_for_its_block_waits(tiny, monkeypatch):
    """The row is admitted, and suspended before its block: nothing is left to run but the other row."""
    params = ds.SamplingParams(max_new_tokens=30, seed=1, **FREE)
    expected = [ds.generate(tiny, [[n] * 20], params)[0].token_ids for n in (1, 2)]
    begin, refused = Prefill.begin, []

    def begin_or_refuse(prefill, room):
        if tiny.cache.held and not refused:
            refused.append(len(prefill))
            raise CacheFullError("none left")
        return begin(prefill, room)

    monkeypatch.setattr(Prefill, "begin", begin_or_refuse)
    with Engine(tiny) as engine:
        first = engine.submit([1] * 20, params)
        gains = iter(first)
        next(gains)
        second = engine.submit([2] * 20, params)
        assert told(second)[0][1] == expected[1] and refused == [1]
        list(gains)
        assert first.completions()[0].token_ids == expected[0] and engine.failures == 0


def test_a_cancelled_prompt_leaves_its_block_and_the_others_go_on(tiny, monkeypatch):
    monkeypatch.setattr(Beside, "room", lambda beside, rows, prompts: Room(300))
    monkeypatch.setattr(Beside, "layers", lambda beside, rows, prompts, left: 1)
    prompts = [[n] * 90 for n in range(3)]
    params = ds.SamplingParams(max_new_tokens=3, seed=1, **FREE)
    expected = [ds.generate(tiny, [prompt], params)[0].token_ids for prompt in prompts]
    tiny.cache.clear()
    logits, blocks = tiny.decoder.logits, []

    def cancel_in_the_middle(tokens, *rest):
        made = logits(tokens, *rest)
        blocks.append(len(tokens))
        if len(blocks) == 1:
            tickets[1].cancel()
        return made

    tickets, all_here = [], threading.Event()
    monkeypatch.setattr(tiny.decoder, "logits", lambda *arguments: (all_here.wait(60), cancel_in_the_middle(*arguments))[1])
    with Engine(tiny) as engine:
        tickets += [engine.submit(prompt, params) for prompt in prompts]
        all_here.set()
        told_of = [told(ticket)[0] for ticket in tickets]
    assert told_of[1][2] == "cancelled" and [told_of[n][1] for n in (0, 2)] == [expected[0], expected[2]]
    assert tiny.cache.held == 0


def test_a_long_prompt_runs_in_pieces_beside_the_others(tiny, monkeypatch):
    monkeypatch.setattr(Beside, "room", lambda beside, rows, prompts: Room(3))
    monkeypatch.setattr(Beside, "layers", lambda beside, rows, prompts, left: left)
    order, came = [], threading.Event()

    def deliver(news):
        order.extend(ticket.number for ticket, _ in news)
        if len(order) == 1:
            engine.submit(list(range(120)), ds.SamplingParams(max_new_tokens=1))
            came.set()

    engine = Engine(tiny, deliver=deliver)
    with engine:
        engine.submit([1, 2], ds.SamplingParams(max_new_tokens=60, **FREE))
        assert came.wait(60)
        engine.close(60)
    assert order.index(1) in (40, 41, 42) and len(order) == 61  # 120 tokens, 3 a pass, beside as many of the first


def test_a_short_prompt_does_not_wait_for_a_long_one_nor_a_long_one_for_ever(tiny, monkeypatch):
    monkeypatch.setattr(Beside, "room", lambda beside, rows, prompts: Room(4))
    done = []
    engine = Engine(tiny, deliver=lambda news: done.extend(ticket.number for ticket, gain in news if gain.reason))
    with engine:
        one = ds.SamplingParams(max_new_tokens=1)
        engine.submit(list(range(200)), one)
        for number in range(90):
            engine.submit([number, 5, 6], one)
        engine.close(60)
    assert done[0] != 0 and 0 in done[:90] and len(done) == 91


def test_a_cancelled_request_gives_back_its_pages_at_once(tiny):
    with Engine(tiny) as engine:
        tickets = [engine.submit([1, 2, 3, n], ds.SamplingParams(max_new_tokens=300, **FREE)) for n in range(4)]
        for ticket in tickets:
            next(iter(ticket))
        for ticket in tickets[:3]:
            ticket.cancel()
            assert told(ticket)[0][2] == "cancelled"
            ticket.cancel()
        held = -(-400 // PAGE)
        assert engine.live == 1 and tiny.cache.held <= held
        tickets[3].cancel()
        assert told(tickets[3])[0][2] == "cancelled"
        engine.close()
        assert tiny.cache.held == 0


def test_a_queue_has_a_bound_and_a_stopped_engine_takes_nothing(tiny):
    engine = Engine(tiny, max_rows=2, max_waiting=1)
    params = ds.SamplingParams(max_new_tokens=300, **FREE)
    tickets = [engine.submit([n], params) for n in range(3)]
    with pytest.raises(QueueFullError) as refused:
        engine.submit([4], params)
    assert 1 <= refused.value.retry_after <= 60
    with pytest.raises(ValueError, match="n must be at most 3"):
        engine.submit([4], replace(params, num_return_sequences=4, max_new_tokens=1))
    tickets[0].cancel()
    assert told(tickets[0])[0][2] == "cancelled"
    assert engine.submit([5], params).number == 3
    engine.close(0.01)
    assert {ticket.rows[0].reason for ticket in tickets} == {"cancelled"}
    with pytest.raises(EngineClosedError):
        engine.submit([5], params)


def test_deadlines_count_from_the_request_on(tiny):
    with Engine(tiny, max_rows=1) as engine:
        first = engine.submit([1], ds.SamplingParams(max_new_tokens=300, **FREE))
        late = engine.submit([2], ds.SamplingParams(max_time=1e-9))
        assert told(late) == [("", [], "time")]
        assert told(first)[0][2] == "length"


def test_what_a_row_raises_ends_it_alone_and_what_a_pass_raises_ends_the_rows_but_not_the_engine(tiny, monkeypatch):
    [alone] = ds.generate(tiny, [[7, 8]], ds.SamplingParams(seed=3, max_new_tokens=30))
    with Engine(tiny) as engine:
        bytes_of = tiny.tokenizer.token_bytes
        calls = iter(range(10**6))
        monkeypatch.setattr(tiny.tokenizer, "token_bytes", lambda token: bytes_of(token) if next(calls) < 3 else 1 / 0)
        failing = engine.submit([7, 8], ds.SamplingParams(seed=3, max_new_tokens=30))
        monkeypatch.undo()
        beside = engine.submit([7, 8], ds.SamplingParams(seed=3, max_new_tokens=30))
        assert told(beside) == [(alone.text, alone.token_ids, alone.finish_reason)]
        assert told(failing)[0][2] == "error" and isinstance(failing.rows[0].error, ZeroDivisionError)
        forward = tiny.decoder.logits
        monkeypatch.setattr(tiny.decoder, "logits", lambda *arguments: 1 / 0)
        assert told(engine.submit([1]))[0][2] == "error"
        monkeypatch.setattr(tiny.decoder, "logits", forward)
        assert told(engine.submit([7, 8], ds.SamplingParams(seed=3, max_new_tokens=30)))[0][1] == alone.token_ids
        assert engine.failures == 1 and tiny.cache.held == 0


def test_a_prompt_and_its_answer_stay_within_the_cache(tiny):
    model = ds.load(tiny.path, cache_bytes=3 * tiny.cache.page_bytes)
    with Engine(model) as engine:
        assert engine.capacity == 3 * PAGE
        with pytest.raises(ValueError, match="48 tokens that the cache has room for"):
            engine.submit([1] * 48)
        [(_, tokens, reason)] = told(engine.submit([1] * 40, ds.SamplingParams(max_new_tokens=None, **FREE)))
        assert (len(tokens), reason) == (8, "length")


def test_a_prompt_that_the_cache_holds_is_not_run_again(tiny, monkeypatch):
    ran = []
    logits = tiny.decoder.logits
    monkeypatch.setattr(tiny.decoder, "logits", lambda tokens, *rest: (ran.append(len(tokens)), logits(tokens, *rest))[1])
    with Engine(tiny) as engine:
        one = ds.SamplingParams(max_new_tokens=1, seed=0)
        prompt = list(range(200))
        first = told(engine.submit(prompt, one))
        before = sum(ran)
        assert told(engine.submit(prompt, one)) == first
        assert sum(ran) - before <= PAGE


def test_requests_from_many_threads(tiny):
    made = requests(1, 24)
    expected = fresh_answers(tiny, made)
    problems = []

    def client(number):
        rng = random.Random(number)
        for _ in range(6):
            which = rng.randrange(len(made))
            ticket = engine.submit(*made[which])
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.01)
                ticket.cancel()
                told(ticket)
            elif [completion for _ in [told(ticket)] for completion in ticket.completions()] != expected[which]:
                problems.append(which)

    with Engine(tiny, max_rows=5) as engine:
        threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not problems and tiny.cache.held == 0


class Machine:
    """Rows whose pass takes 10 ms and 1 us for each of their keys; a prompt's token 1 ms and 2 us for each of its keys."""

    LAYERS = 20

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.beside = Beside(64, self.LAYERS)
        monkeypatch.setattr("decodestep.generation.schedule.time.perf_counter", lambda: self.now)

    def rows(self, rows, keys=0):
        seconds = 0.01 + 1e-6 * rows * keys
        with self.beside.timed_rows():
            self.now += seconds
        return seconds

    def block(self, rows, position=0, *, keys=0, prompts=1):
        """Runs a block; returns its tokens, and for each interval between two passes of the rows its part of such a pass."""
        tokens = max(1, self.beside.room(rows, prompts).most(position))
        self.beside.begin([(position, tokens)])
        left, shares = self.LAYERS, []
        while left:
            layers = self.beside.layers(rows, prompts, left)
            seconds = (1e-3 * tokens + 2e-6 * keys_of(position, tokens)) * layers / self.LAYERS
            if layers:
                with self.beside.timed_layers(layers):
                    self.now += seconds
            left -= layers
            shares.append(seconds / (self.rows(rows, keys) if rows else 1))
        return tokens, shares


def test_blocks_follow_what_passes_take(monkeypatch):
    """A block's layers fill what prompts may take between passes, which is more for more of them, and none waits long."""
    machine = Machine(monkeypatch)
    machine.rows(1)
    for prompts, rows, share in ((1, 1, 0.5), (4, 1, 2.0), (1, 0, 0.15)):
        for _ in range(40):
            tokens, shares = machine.block(rows, prompts=prompts)
        assert max(shares) < 1.1 * share and sum(shares) / len(shares) > 0.8 * share, (prompts, rows)
        assert len(shares) <= 1.3 * Beside.BLOCK_PASSES + 1 if rows else 100 < tokens < 160


def test_blocks_allow_for_the_keys_that_they_and_the_rows_attend_to(monkeypatch):
    """Prompts of 3000 tokens beside rows that go on."""
    machine = Machine(monkeypatch)
    length, all_shares = 20, []
    for turn in range(4):
        for _ in range(200):
            machine.rows(8, length)
            length += 1
        position = 0
        while position < 3000:
            tokens, shares = machine.block(8, position, keys=length)
            position, length = position + tokens, length + len(shares)
            all_shares += shares if turn else []
    assert max(all_shares) < 1.3 * Beside.SLOWER
    assert 0.75 * Beside.SLOWER < sum(all_shares) / len(all_shares) < 1.05 * Beside.SLOWER


def test_what_was_too_much_is_made_up_for(monkeypatch):
    machine = Machine(monkeypatch)
    for _ in range(20):
        machine.block(1)
    tokens = machine.beside.room(1, 1).most(0)
    machine.beside.begin([(0, tokens)])
    with machine.beside.timed_layers(machine.beside.layers(1, 1, machine.LAYERS)):
        machine.now += 10.0  # an interruption
    assert [machine.beside.layers(1, 1, 19) > 0 for _ in range(3)][:2] == [False, True]


def test_what_a_constraint_decides_needs_no_pass_and_changes_no_token(tiny, monkeypatch):
    one = ds.SamplingParams(regex="[ab]{3}:and-what-follows-is-known[0-9]{3}", seed=1, max_new_tokens=200)
    made = [([1, 2, 3, n], replace(one, seed=n, **({"logprobs": 1} if n == 2 else {}))) for n in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr("decodestep.generation.batch.jump", lambda row: "")
        alone = [ds.generate(tiny, [prompt], params) for prompt, params in made]
    assert [ds.generate(tiny, [prompt], params) for prompt, params in made] == alone
    with Engine(tiny) as engine:
        tickets = [engine.submit(prompt, params) for prompt, params in made[:2]]
        gained = [told(ticket)[0] for ticket in tickets]
        assert gained == [(done.text, done.token_ids, "eos") for [done] in alone[:2]]
        assert engine.passes < 20 < len(gained[0][1])


def test_logits_of_some_sequences(tiny):
    with tiny.sequence() as one, tiny.sequence() as two:
        both = tiny.forward([(one, [1, 2, 3]), (two, [4, 5])])
    with tiny.sequence() as one, tiny.sequence() as two:
        assert (tiny.forward([(one, [1, 2, 3]), (two, [4, 5])], wanted=[False, True]) == both[1:]).all()
        with pytest.raises(ValueError, match="wanted must be a flag for each of 1"):
            tiny.forward([(one, [1])], wanted=[True, True])
        assert len(one) == 3


def test_a_pass_in_parts_is_that_pass(tiny):
    with tiny.sequence() as whole, tiny.sequence() as other:
        expected = tiny.forward([(whole, list(range(40))), (other, [7, 8, 9])])
        after = tiny.forward([(whole, [1]), (other, [2])])
    for layers in (1, 2, 100):
        tiny.cache.clear()
        with tiny.sequence() as one, tiny.sequence() as two, tiny.sequence() as dropped:
            begun = tiny.begin([(one, list(range(40))), (dropped, [5] * 20), (two, [7, 8, 9])], wanted=[True, True, True])
            with pytest.raises(ValueError, match="one thread at a time"):
                tiny.forward([(one, [1])])
            begun.drop(dropped)
            while begun.layers_left:
                assert len(one) == 0
                logits = begun.advance(layers)
                assert len(logits) == (0 if begun.layers_left else 2)
            assert (logits == expected).all() and len(dropped) == 0
            assert (tiny.forward([(one, [1]), (two, [2])]) == after).all()
            again = tiny.begin([(dropped, [5] * 20)], wanted=[False])
            again.advance(1)
            again.close()
            assert len(dropped) == 0 and tiny.forward([(dropped, [5])]).shape[0] == 1
