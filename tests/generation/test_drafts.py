"""Drafts change the time and nothing else: text, tokens, log-probabilities, pieces and ends are those without any."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

import decodestep as ds
from decodestep.decoding.kv_cache import PAGE
from decodestep.generation.drafts import Drafter, Outlook
from decodestep.generation.drafts.drafter import DrafterFactory
from decodestep.generation.drafts.drafting import MOST, Drafting
from decodestep.generation.drafts.lookup import LookupDrafter, PairIndex
from decodestep.sampling.row_factory import RowFactory
from support.scripted_drafts import Scripted
from support.servers import wait_until

VOCAB = 297


@pytest.fixture
def tiny(tiny_file):
    return ds.load(tiny_file(kind="Q8_0", context=400))


def lookup(row):
    return LookupDrafter(PairIndex(row.history))


def adversaries(answers):
    """Drafters by name, for rows whose whole sequences are known: {their prompts: their prompts and answers}."""

    def rest(tokens):
        known = [whole for prompt, whole in answers if tokens[: len(prompt)] == prompt and whole[: len(tokens)] == tokens]
        return known[0][len(tokens) :] if known else []

    def wrong(tokens):
        return [(token + 1) % VOCAB for token in rest(tokens)] or [0]

    def sometimes(tokens):
        chance = random.Random(len(tokens))
        return [token if chance.random() < 0.8 else (token + 7) % VOCAB for token in rest(tokens)]

    return {
        "right": rest,
        "right and beyond": lambda tokens: [*rest(tokens), *range(MOST)],
        "wrong": wrong,
        "sometimes right": sometimes,
        "random": lambda tokens: random.Random(sum(tokens)).choices(range(VOCAB), k=len(tokens) % 20),
        "no tokens": lambda tokens: [-1, VOCAB, 2**40],
        "right, then none": lambda tokens: [*rest(tokens)[:3], -1, *rest(tokens)[4:]],
        "none": lambda tokens: [],
        "the end": lambda tokens: [*rest(tokens)[:2], 2, 2, 2],
    }


NAMES = [*adversaries([]), "lookup", "auto"]


def scripted(name, answers) -> str | DrafterFactory:
    if name in ("lookup", "auto"):
        return name
    tokens = adversaries(answers)[name]
    return lambda row: Scripted(tokens)


def requests(seed, count, longest=60):
    rng = random.Random(seed)
    made = []
    for number in range(count):
        prompt = [*[7, 8, 9, number] * rng.randint(0, 6), *(rng.randrange(VOCAB) for _ in range(rng.randint(1, longest)))]
        params = ds.SamplingParams(
            max_new_tokens=rng.randint(1, 50),
            seed=number,
            temperature=rng.choice((0, 0.7, 1.5)),
            top_k=rng.choice((0, 3)),
            top_p=rng.choice((1.0, 0.9)),
            repetition_penalty=rng.choice((1.0, 1.2)),
            frequency_penalty=rng.choice((0.0, 0.3)),
            no_repeat_ngram_size=rng.choice((0, 0, 3)),
            dry_multiplier=rng.choice((0.0, 0.8)),
            min_tokens=rng.choice((0, 8)),
            logprobs=rng.choice((None, 2)),
            stop_strings=rng.choice(((), ("a",), ("e", "th"))),
            xtc_probability=rng.choice((0.0, 0.5)),
            typical_p=rng.choice((1.0, 0.8)),
            ignore_eos=rng.random() < 0.5,
        )
        if number % 6 == 5:
            params = replace(params, regex="[ab]{3}: what follows is known, [0-9]{3}[a-z ]*", stop_strings=(), ignore_eos=False)
        if number % 8 == 3 and not params.greedy:
            params = replace(params, num_return_sequences=3)
        made.append((prompt, params))
    return made


def answers_of(completions):
    return [(one.prompt_token_ids, [*one.prompt_token_ids, *one.token_ids]) for one in completions]


@pytest.mark.parametrize("name", NAMES)
def test_no_drafter_changes_anything(tiny, name):
    """In a batch of rows of all kinds, alone, and in an engine; the cache then holds only what rows have accepted."""
    made = requests(1, 24)
    prompts, params = [list(each) for each in zip(*made, strict=True)]
    plain = ds.generate(tiny, prompts, params, draft=None)
    draft = scripted(name, answers_of(plain))
    pieces = [[] for _ in plain]
    drafted = ds.generate(tiny, prompts, params, draft=draft, stream=lambda i, piece: pieces[i].append(piece))
    assert drafted == plain and tiny.cache.held == 0
    without = [[] for _ in plain]
    ds.generate(tiny, prompts, params, draft=None, stream=lambda i, piece: without[i].append(piece))
    assert pieces == without and all(one.drafted == 0 for one in plain)
    alone = [ds.generate(tiny, [prompt], each, draft=draft) for prompt, each in made[:8]]
    assert [one for each in alone for one in each] == plain[: sum(map(len, alone))]
    with ds.Engine(tiny, draft=draft) as engine:
        submitted = [engine.submit(prompt, each) for prompt, each in made]
        assert [one for request in submitted for one in request.result()] == plain
        assert engine.submit(*made[0]).result() == alone[0]
    assert tiny.cache.held == 0


def test_right_drafts_take_few_passes_and_are_counted(tiny, monkeypatch):
    ran, logits = [], tiny.decoder.logits
    monkeypatch.setattr(tiny.decoder, "logits", lambda batch, pages: (ran.append(len(batch.tokens)), logits(batch, pages))[1])
    params = ds.SamplingParams(max_new_tokens=3 * MOST + 3, seed=3, ignore_eos=True)
    [plain] = ds.generate(tiny, [[1, 2, 3]], params, draft=None)
    ran.clear()
    rest = adversaries([([1, 2, 3], [1, 2, 3, *plain.token_ids])])["right"]

    class Uncertain(Scripted):
        is_certain = False

    monkeypatch.setattr("decodestep.generation.drafts.drafting.choose_lengths", lambda offers, *_: [o.tokens for o in offers])
    [one] = ds.generate(tiny, [[1, 2, 3]], params, draft=lambda row: Uncertain(rest))
    assert one == plain and (one.drafted, one.accepted) == (3 * MOST - 1, 3 * MOST - 1)
    assert ran == [1, MOST + 1, MOST + 1, MOST]


def test_what_is_not_accepted_leaves_no_trace_in_the_cache(tiny):
    """Pages of drafts come into no other sequence's hands, and what is drafted evicts nothing."""
    params = ds.SamplingParams(max_new_tokens=5 * PAGE, seed=1, ignore_eos=True)
    [plain] = ds.generate(tiny, [[4] * 20], params, draft=None)
    whole = [*[4] * 20, *plain.token_ids]
    tiny.cache.clear()
    wrong = [token for token in range(40, 40 + MOST)]
    assert ds.generate(tiny, [[4] * 20], params, draft=lambda row: Scripted(lambda tokens: wrong)) == [plain]
    assert tiny.cache.kept == (len(whole) - 1) // PAGE
    with tiny.sequence(whole) as sequence:
        assert len(sequence) == (len(whole) - 1) // PAGE * PAGE
    with tiny.sequence([*whole[: 2 * PAGE], *wrong]) as sequence:
        assert len(sequence) == 2 * PAGE

    pages = -(-len(whole) // PAGE)
    model = ds.load(tiny.path, cache_bytes=(pages + 2) * tiny.cache.page_bytes)
    with model.sequence() as other:
        model.forward([(other, list(range(100, 100 + 2 * PAGE)))])
    assert model.cache.kept == 2
    assert ds.generate(model, [[4] * 20], params, draft=lambda row: Scripted(lambda tokens: wrong)) == [plain]
    with model.sequence([*range(100, 100 + 2 * PAGE), 1]) as again:
        assert len(again) == 2 * PAGE


def test_rows_that_wait_and_are_preempted_draft_as_well(tiny, monkeypatch, hold_passes):
    made = [([n] * 40, ds.SamplingParams(max_new_tokens=60, seed=n, ignore_eos=True)) for n in range(6)]
    plain = [ds.generate(tiny, [prompt], params, draft=None) for prompt, params in made]
    answers = answers_of(one for [one] in plain)
    monkeypatch.setattr("decodestep.generation.scheduler.ChunkedPrefill.RESERVED_TOKENS", 4)
    for name in ("right", "sometimes right", "wrong"):
        model = ds.load(tiny.path, cache_bytes=10 * tiny.cache.page_bytes)
        all_here = hold_passes(model)
        with ds.Engine(model, draft=scripted(name, answers)) as engine:
            submitted = [engine.submit(prompt, params) for prompt, params in made]
            all_here.set()
            assert [request.result() for request in submitted] == plain
        assert model.cache.held == 0


def test_a_stream_ends_between_two_accepted_tokens(tiny):
    params = ds.SamplingParams(max_new_tokens=40, seed=1, ignore_eos=True)
    [plain] = ds.generate(tiny, [[1, 2]], params, draft=None)
    draft = scripted("right", [([1, 2], [1, 2, *plain.token_ids])])
    for tokens in (1, 2, 7, 34):
        after = iter([True] * (tokens - 1))
        [one] = ds.generate(tiny, [[1, 2]], params, draft=draft, stream=lambda *_, after=after: next(after, False))
        assert (one.token_ids, one.finish_reason) == (plain.token_ids[:tokens], "cancelled")
        with ds.stream(tiny, [1, 2], params, draft=draft) as pieces:
            for _ in range(tokens):
                next(pieces)
        assert pieces.completion.token_ids == plain.token_ids[:tokens]
        asked = iter([False] * (tokens + 1))
        [one] = ds.generate(tiny, [[1, 2]], params, draft=draft, cancelled=lambda asked=asked: next(asked, True))
        assert len(one.token_ids) in (tokens, tokens + 1) and one.finish_reason == "cancelled"
        assert one.token_ids == plain.token_ids[: len(one.token_ids)]
    assert tiny.cache.held == 0


def test_an_engines_request_ends_between_two_accepted_tokens(tiny):
    params = ds.SamplingParams(max_new_tokens=40, seed=1, ignore_eos=True)
    [plain] = ds.generate(tiny, [[1, 2]], params, draft=None)
    seen = []

    def deliver(deltas):
        for request, delta in deltas:
            seen.append(delta.token)
            if len(seen) == 5:
                request.cancel()

    with ds.Engine(tiny, draft=scripted("right", [([1, 2], [1, 2, *plain.token_ids])]), deliver=deliver) as engine:
        [one] = engine.submit([1, 2], params).result()
    assert one.token_ids == plain.token_ids[:5] and one.finish_reason == "cancelled" and engine.passes <= 2


def test_asynchronous_streams_have_the_same_pieces(tiny):
    params = [ds.SamplingParams(max_new_tokens=30, seed=n, ignore_eos=True) for n in range(4)]
    plain = [ds.generate(tiny, [[1, n]], each, draft=None)[0] for n, each in enumerate(params)]
    answers = [([1, n], [1, n, *one.token_ids]) for n, one in enumerate(plain)]

    async def read(n, draft):
        return [piece async for piece in ds.astream(tiny, [1, n], params[n], draft=draft)]

    async def read_all():
        drafts = (None, "auto", scripted("right", answers), None)
        return await asyncio.gather(*(read(n, draft) for n, draft in enumerate(drafts)))

    for pieces, one in zip(asyncio.run(read_all()), plain, strict=True):
        assert "".join(pieces) == one.text and len(pieces) >= 30


def test_a_request_can_turn_drafts_off(tiny):
    params = ds.SamplingParams(max_new_tokens=30, seed=1, draft=False, ignore_eos=True)
    made = []
    ds.generate(tiny, [[1], [2]], [params, replace(params, draft=True)], draft=lambda row: made.append(row) or lookup(row))
    assert len(made) == 1


@pytest.mark.parametrize("draft", ["none", 4, ["lookup"], b"auto", 0.5])
def test_other_drafts_are_refused(tiny, draft):
    for call in (lambda: ds.generate(tiny, [[1]], draft=draft), lambda: ds.Engine(tiny, draft=draft)):
        with pytest.raises(ValueError, match="draft must be "):
            call()


def test_drafts_end_where_the_context_and_max_new_tokens_do(tiny):
    room = tiny.config.context
    prompt = [5] * (room - 20)
    for tokens in (1, 2, 19, 20, None):
        params = ds.SamplingParams(max_new_tokens=tokens, seed=2, ignore_eos=True)
        [plain] = ds.generate(tiny, [prompt], params, draft=None)
        for name in ("right and beyond", "random", "wrong"):
            answers = [(prompt, [*prompt, *plain.token_ids])]
            assert ds.generate(tiny, [prompt], params, draft=scripted(name, answers)) == [plain]


def test_a_callers_processor_sees_accepted_tokens_only(tiny):
    params = ds.SamplingParams(max_new_tokens=30, seed=1, ignore_eos=True)

    def run(draft):
        seen = []
        done = ds.generate(
            tiny, [[1, 2]], params, draft=draft, processors=[lambda ids, s: (seen.append(ids[0].tolist()), s)[1]]
        )
        return done, seen

    plain, seen = run(None)
    answers = [([1, 2], [1, 2, *plain[0].token_ids])]
    for name in ("right", "sometimes right", "wrong"):
        assert run(scripted(name, answers)) == (plain, seen)


class Broken(Drafter):
    """Raises, or proposes what is no list of ids, where it is told to."""

    def __init__(self, where, result=None):
        self._where, self._result = where, result

    def _at(self, where):
        if self._where == where and self._result is None:
            raise OSError(where)

    def outlook(self, row, most):
        self._at("outlook")
        return Outlook(most, 1.0)

    def propose(self, row, limit):
        self._at("propose")
        return self._result if self._where == "propose" else []

    def attach(self, sequence):
        self._at("attach")

    def close(self):
        self._at("close")


FAULTS = [  # where a drafter raises, or what it proposes
    ("attach", None),
    ("outlook", None),
    ("propose", None),
    ("propose", ["a"]),
    ("propose", [float("nan")]),
    ("close", None),
]


@pytest.mark.parametrize(("where", "result"), FAULTS)
def test_what_a_drafter_raises_ends_its_row_alone(tiny, where, result, monkeypatch):
    monkeypatch.setattr("decodestep.generation.drafts.drafting.choose_lengths", lambda offers, *_: [3 for _ in offers])
    params = ds.SamplingParams(max_new_tokens=20, seed=1, ignore_eos=True)
    [plain] = ds.generate(tiny, [[1, 2]], params, draft=None)
    broken = [[9, 9]]
    draft = lambda row: Broken(where, result) if row.history.tokens[:2] in broken else lookup(row)  # noqa: E731
    reason = "length" if where == "close" else "error"
    done = ds.generate(tiny, [[1, 2], [9, 9]], params, draft=draft)
    assert done[0] == plain and done[1].finish_reason == reason
    with ds.Engine(tiny, draft=draft) as engine:
        requests = [engine.submit(prompt, params) for prompt in ([9, 9], [1, 2])]
        assert [one.finish_reason for request in requests for one in request.result()] == [reason, "length"]
        assert requests[1].result() == [plain] and engine.failures == 0
    assert tiny.cache.held == 0


def test_a_drafter_holds_nothing_once_its_row_has_ended(tiny):
    small = ds.load(tiny.path)
    params = ds.SamplingParams(max_new_tokens=60, seed=1, ignore_eos=True)
    with ds.Engine(tiny, draft=small) as engine:
        [one] = engine.submit([1, 2], params).result()
        assert one == ds.generate(tiny, [[1, 2]], params, draft=None)[0]
        assert engine.submit([3], replace(params, max_new_tokens=1)).result()
        wait_until(lambda: small.cache.held == 0)  # the engine delivers the last token before

    def refuse(i, piece):
        raise KeyboardInterrupt

    calls = iter(range(100))
    for call in ({"stream": refuse}, {"cancelled": lambda: next(calls) > 8 and refuse(0, "")}):
        with pytest.raises(KeyboardInterrupt) as kept:
            ds.generate(tiny, [[1, 2]], params, draft=small, **call)
        assert kept and small.cache.held == tiny.cache.held == 0
    with pytest.raises(ValueError, match="draft must be another model than the one that draws"):
        ds.generate(tiny, [[1]], draft=tiny)


@pytest.mark.parametrize("draft", [None, "auto"])
def test_a_constraint_that_takes_too_long_ends_its_row_and_no_other(tiny, monkeypatch, draft):
    monkeypatch.setattr("decodestep.constraints.processor._STEP_SECONDS", -1)
    params = ds.SamplingParams(max_new_tokens=20, seed=1)
    [plain] = ds.generate(tiny, [[1, 2]], params, draft=None)
    done = ds.generate(tiny, [[1, 2], [1, 2]], [params, replace(params, regex="[ab]{9}")], draft=draft)
    assert done[0] == plain and done[1].finish_reason == "error" and "costs too much" in str(done[1].error)


def test_a_prediction_that_has_no_tokens_is_none(tiny, monkeypatch):
    def encode(text, *rest):
        raise ds.ModelError("no token")

    params = ds.SamplingParams(max_new_tokens=5, seed=1)
    plain = ds.generate(tiny, [[1, 2]], params)
    monkeypatch.setattr(type(tiny.tokenizer), "encode", encode)
    assert ds.generate(tiny, [[1, 2]], replace(params, prediction="price: 5 €")) == plain


def test_where_only_what_is_certain_is_drafted_no_other_drafter_is_asked():
    drafting, asked = Drafting(), []

    class Uncertain(Drafter):
        def outlook(self, row, most):
            asked.append(row)
            return Outlook(2, 0.9)

        def propose(self, row, limit):
            return [7] * limit

    rows = {key: RowFactory(VOCAB).row(ds.SamplingParams(), [1, 2]) for key in range(3)}
    for key, row in rows.items():
        drafting.add(key, row, [Uncertain()])
    assert drafting.possible(uncertain=True) and not drafting.possible(uncertain=False)
    drafting.add(2, rows[2], [Uncertain(), Scripted(lambda tokens: [5, 6])])
    assert drafting.possible(uncertain=False)
    drafting.choose(rows, lambda key: 9, None)
    assert [drafting.tokens(key) for key in rows] == [[], [], [5, 6]] and not asked
    drafting.choose(rows, lambda key: 9, lambda drafted: 1.0)
    assert [drafting.tokens(key) for key in rows] == [[7, 7], [7, 7], [5, 6]] and len(asked) == 3


FOLDERS = [("llama", {"cache_dtype": "int8"}), ("gemma3_text", {}), ("gemma3_text", {"dtype": "int8"}), ("deepseek_v3", {})]
FOLDERS += [
    ("deepseek_v3", {"dtype": "float32"}),
    ("deepseek_v3", {"cache_dtype": "int8"}),
    ("qwen3_moe", {"dtype": "bfloat16"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "how"), FOLDERS, ids=lambda case: str(case))
def test_every_decoder_and_cache_has_the_same_text_with_drafts(tmp_path, family, how):
    """Windows, latents, experts, and what is kept of keys in int8."""
    from support import family_models

    sizes = family_models.ALIGNED.get(family, {"hidden_size": 64, "intermediate_size": 96})
    model = ds.load(family_models.save(family_models.build_model(family, 0, **sizes), tmp_path), **how)
    prompts = [[n + 40, *[3, 4, 5] * n] for n in range(5)]
    params = [ds.SamplingParams(max_new_tokens=40, seed=n, temperature=n / 3, ignore_eos=True, logprobs=1) for n in range(5)]
    plain = ds.generate(model, prompts, params, draft=None)
    for name in ("right", "sometimes right", "random", "lookup"):
        assert ds.generate(model, prompts, params, draft=scripted(name, answers_of(plain))) == plain
