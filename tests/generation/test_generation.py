"""generate: rows that know nothing of each other, every way of stopping, streaming."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

import decodestep as ds
from decodestep import SamplingParams
from decodestep.decoding.sequence import admit
from decodestep.generation import model_search
from decodestep.sampling.row import Row

STORY = "Once upon a time"


def run(model, prompts, *params, **options):
    return ds.generate(model, prompts, list(params) if len(params) > 1 else params[0], **options)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_text_in_any_batch_and_on_any_threads(model, monkeypatch):
    monkeypatch.setattr("decodestep._base.threads.thread_limit", lambda: 64)  # whatever the CPUs
    params = SamplingParams(max_new_tokens=24, temperature=0.9, top_p=0.95, top_k=40, repetition_penalty=1.1, seed=1)
    alone = run(model, [STORY], params)[0]
    mates = [SamplingParams(max_new_tokens=n, temperature=1.3, seed=n) for n in (1, 5, 30, 8, 17, 2)]
    prompts = ["def f(", "The", "1 2 3", "Paris is", "x", "In a hole in the ground"]
    for place in (0, 3, 6):
        batch = run(model, [*prompts[:place], STORY, *prompts[place:]], *mates[:place], params, *mates[place:])
        assert batch[place] == alone
    before = model.threads
    try:
        for threads in (1, 2, 3, 7, 16, 64):
            model.threads = threads
            assert run(model, [STORY], params)[0] == alone
    finally:
        model.threads = before
    assert run(model, [STORY], SamplingParams(max_new_tokens=24, temperature=0.9, seed=2))[0].text != alone.text


def test_rows_without_a_seed_get_one_each_and_report_it(model):
    params = SamplingParams(max_new_tokens=6, temperature=1.5)
    several = run(model, [STORY] * 4, params)
    assert len({done.text for done in several}) > 1  # with one seed for all there would be one text
    assert len({done.seed for done in several}) == 4
    for done in several:
        assert run(model, STORY, replace(params, seed=done.seed)) == [done]
    assert run(model, STORY, SamplingParams(max_new_tokens=1, do_sample=False))[0].seed is None  # nothing is drawn


def test_samples_of_a_prompt(model):
    params = SamplingParams(max_new_tokens=5, temperature=1.5, num_return_sequences=3, seed=11)
    pieces = {}
    done = ds.generate(
        model,
        ["The", STORY, "Paris"],
        [replace(params, num_return_sequences=1), params, replace(params, num_return_sequences=2)],
        stream=lambda index, piece: pieces.setdefault(index, []).append(piece),
    )
    assert [one.row for one in done] == [0, 1, 1, 1, 2, 2]
    assert [one.seed for one in done] == [11, *(ds.random.sample_seed(11, k) for k in (0, 1, 2, 0, 1))]
    for index, one in enumerate(done):
        alone = replace(params, num_return_sequences=1, seed=one.seed)
        assert run(model, [one.prompt_token_ids], alone) == [one]
        assert "".join(pieces[index]) == one.text
    assert len({one.text for one in done[1:4]}) == 3


def test_beams_say_which_prompt_they_belong_to(model):
    beams = SamplingParams(do_sample=False, max_new_tokens=2, num_beams=2, num_return_sequences=2)
    done = run(model, ["The", STORY, "Paris"], beams, replace(beams, num_beams=1, num_return_sequences=1), beams)
    assert [one.row for one in done] == [0, 0, 1, 2, 2]


def test_one_conversation_is_one_prompt(model):
    chat = [{"role": "user", "content": "Hi"}]
    params = SamplingParams(do_sample=False, max_new_tokens=2)
    assert run(model, chat, params) == run(model, [chat], params)


def test_rows_stop_on_their_own(model):
    chat = [{"role": "user", "content": "What is the capital of Japan?"}]
    greedy = {"do_sample": False}
    first = run(model, [chat], SamplingParams(**greedy))[0]
    assert first.finish_reason == "eos"
    assert first.text == "The capital of Japan is Tokyo."
    assert first.token_ids[-1] in model.tokenizer.end_token_ids
    several = run(
        model,
        [chat, chat, chat, chat],
        SamplingParams(**greedy),
        SamplingParams(**greedy, max_new_tokens=3),
        SamplingParams(**greedy, stop_strings=["Japan is To", "zzz"]),
        SamplingParams(**greedy, ignore_eos=True, max_new_tokens=12),
    )
    assert several[0] == first
    assert [c.finish_reason for c in several] == ["eos", "length", "stop", "length"]
    assert several[1].token_ids == first.token_ids[:3]
    assert several[2].text == "The capital of "
    assert len(several[3].token_ids) == 12
    assert several[3].token_ids[: len(first.token_ids)] == first.token_ids


@pytest.mark.parametrize(
    ("stop", "text", "count"),
    [
        ("<|im_end|>", "The capital of Japan is Tokyo.", 8),
        ("Tokyo.<|im_end|>", "The capital of Japan is ", 8),
        ("d|>\n", "The capital of Japan is Tokyo.", 9),
        ("<|im_end|>\n", "The capital of Japan is Tokyo.", 9),
    ],
)
def test_a_stop_string_may_spell_a_control_token(model, stop, text, count):
    chat = [{"role": "user", "content": "What is the capital of Japan?"}]
    params = SamplingParams(do_sample=False, ignore_eos=True, stop_strings=[stop], max_new_tokens=20)
    pieces = []
    [done] = run(model, [chat], params, stream=lambda row, piece: pieces.append(piece))
    assert (done.finish_reason, done.text, len(done.token_ids)) == ("stop", text, count) and "".join(pieces) == text
    [beam] = run(model, [chat], replace(params, num_beams=2))
    assert (beam.finish_reason, beam.text, beam.token_ids) == ("stop", text, done.token_ids)
    [done] = run(model, [chat], replace(params, ignore_eos=False))
    assert done.finish_reason == "eos" and done.text == (text if "Tokyo" in stop else "The capital of Japan is Tokyo.")


@pytest.mark.parametrize(
    ("regex", "prompt"), [("{}", "The word: "), ("{}", "The word: anti"), ("[0-9]{}", STORY), ("[a-z]{{3}}{}", "The word: ")]
)
def test_forced_text_is_written_in_the_tokens_that_the_tokenizer_gives_for_it(model, regex, prompt):
    word = "antidisestablishmentarianism"
    tokens = [model.tokenizer.token(i) for i in model.tokenizer.encode_within(word)]
    assert tokens == ["ant", "idis", "establish", "ment", "arianism"]
    [done] = run(model, prompt, SamplingParams(regex=regex.format(word), do_sample=False))
    assert [model.tokenizer.token(i) for i in done.token_ids[-6:-1]] == tokens and done.finish_reason == "eos"
    [within] = run(model, prompt, SamplingParams(json_schema={"const": f"{word}, he said: 1 2 3"}, do_sample=False))
    assert within.token_ids[:-1] == model.tokenizer.encode_within(f'"{word}, he said: 1 2 3"')


def test_prompts_come_as_text_ids_or_messages(model):
    params = SamplingParams(do_sample=False, max_new_tokens=4)
    messages = [{"role": "user", "content": "Hi"}]
    text = model.chat_prompt(messages)
    ids = model.tokenizer.encode(text)
    one, two, three = run(model, [messages, text, ids], params)
    assert one == two == three
    assert one.prompt_token_ids == ids
    assert run(model, text, params) == [one]
    assert run(model, [np.array(ids)], params) == [one]
    assert ds.generate(model, [], params) == []


def test_streaming_gives_the_text_piece_by_piece(model):
    pieces = {0: [], 1: []}
    params = SamplingParams(do_sample=False, max_new_tokens=16)
    done = run(model, [STORY, "你好，世界！请用中文回答"], params, stream=lambda row, piece: pieces[row].append(piece))
    for row, completion in enumerate(done):
        assert "".join(pieces[row]) == completion.text
        assert len(pieces[row]) == len(completion.token_ids)


def test_a_stream_that_says_no_ends_its_row(model):
    seen = []

    def stream(row, piece):
        seen.append(row)
        return not (row == 0 and len(seen) > 4)

    first, second = run(model, [STORY, STORY], SamplingParams(do_sample=False, max_new_tokens=9), stream=stream)
    assert first.finish_reason == "cancelled"
    assert len(first.token_ids) == 3
    assert second.finish_reason == "length"
    assert second.text.startswith(first.text)


def test_a_stream_may_say_no_as_numpy_says_it(model):
    params = SamplingParams(do_sample=False, max_new_tokens=9)
    assert run(model, STORY, params, stream=lambda row, piece: np.bool_(False))[0].finish_reason == "cancelled"
    assert run(model, STORY, params, stream=lambda row, piece: 0)[0].finish_reason == "length"


def late_after(monkeypatch, looks):
    """Rows with a max_time are late from this look at their clock on."""
    seen = []
    monkeypatch.setattr(Row, "late", lambda row: row.params.max_time is not None and (seen.append(1) or len(seen) > looks))


@pytest.mark.parametrize("reason", ["cancelled", "callback", "time", "length"])
def test_what_was_held_back_is_streamed_too(model, monkeypatch, reason):
    start = run(model, STORY, SamplingParams(do_sample=False, max_new_tokens=4))[0].text
    params = SamplingParams(do_sample=False, max_new_tokens=3, stop_strings=[start], max_time=1e9 if reason == "time" else None)
    late_after(monkeypatch, 4)  # two a pass
    pieces = []

    def stream(index, piece):
        pieces.append(piece)
        return not (reason == "callback" and len(pieces) == 2)

    stops = {"stream": stream, "cancelled": lambda: reason == "cancelled" and len(pieces) == 2}
    done = run(model, STORY, params, **stops)[0]
    assert done.finish_reason == ("cancelled" if reason == "callback" else reason)
    assert done.text and start.startswith(done.text)  # it might have become the stop string
    assert "".join(pieces) == done.text


@pytest.mark.slow
def test_cancelling_in_a_long_prompt_takes_one_pass(model, passes):
    ids = model.tokenizer.encode("one two three four " * 600)
    asked, pieces = [], []
    stops = {"cancelled": lambda: asked.append(1) or len(asked) > 2, "stream": lambda *piece: pieces.append(piece)}
    done = ds.generate(model, [ids, ids], **stops)
    assert [(one.finish_reason, one.token_ids) for one in done] == [("cancelled", [])] * 2
    assert passes.count == 2 and not pieces


@pytest.mark.parametrize(("after", "tokens"), [(0, 0), (2, 0), (3, 1), (5, 3)])
def test_cancelling_a_beam_search_takes_one_pass(model, passes, after, tokens, monkeypatch):
    monkeypatch.setattr(model_search, "BLOCK", 32)
    ids = model.tokenizer.encode("one two three four " * 20)[:70]  # three blocks
    beams = SamplingParams(do_sample=False, num_beams=2, num_return_sequences=2, max_new_tokens=9, ignore_eos=True)
    done = ds.generate(model, [ids], beams, cancelled=lambda: passes.count >= after)
    assert passes.count == after
    assert {one.finish_reason for one in done} == {"cancelled"}
    assert [len(one.token_ids) for one in done] == ([tokens] * 2 if tokens else [0])
    if tokens:
        whole = run(model, [ids], replace(beams, max_new_tokens=tokens))
        assert [one.token_ids for one in done] == [one.token_ids for one in whole]


def test_a_cancelled_call_begins_no_further_search(model, passes):
    beams = SamplingParams(do_sample=False, num_beams=2, max_new_tokens=3)
    done = run(model, ["The", STORY], beams, beams, cancelled=lambda: passes.count >= 2)
    assert [(one.finish_reason, len(one.token_ids), one.row) for one in done] == [("cancelled", 2, 0), ("cancelled", 0, 1)]


def test_time_ends_a_search_and_not_the_reason_of_beams_that_had_ended(model, monkeypatch):
    late_after(monkeypatch, 6)
    first = run(model, STORY, SamplingParams(do_sample=False, max_new_tokens=1))[0].token_ids[0]
    beams = SamplingParams(
        do_sample=False, num_beams=3, num_return_sequences=3, max_new_tokens=20, max_time=1e9, stop_token_ids=[first]
    )
    done = run(model, STORY, beams)
    assert {one.finish_reason for one in done} == {"stop", "time"}
    for one in done:
        assert (one.token_ids[-1] == first) == (one.finish_reason == "stop")


def test_a_search_reads_each_token_a_few_times_for_its_stop_strings(model, monkeypatch):
    reads, token_bytes = [], model.tokenizer.token_bytes
    monkeypatch.setattr(model.tokenizer, "token_bytes", lambda token: reads.append(token) or token_bytes(token))
    beams = SamplingParams(do_sample=False, num_beams=2, max_new_tokens=60, stop_strings=["zzz"], ignore_eos=True)
    run(model, STORY, beams)
    assert len(reads) < 60 * 2 * 3 * 5 + 60  # candidates of a step, and a few tokens for each; whole texts would be 10000


@pytest.mark.parametrize("where", ["stream", "cancelled"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError])
def test_what_a_callback_raises_ends_the_call(model, passes, where, error):
    def fail(*_):
        if passes.count == 2:
            raise error

    with pytest.raises(error):
        run(model, ["The", STORY], SamplingParams(max_new_tokens=9), **{where: fail})
    assert passes.count == 2


def test_time_ends_a_row(model):
    late, whole = run(model, [STORY, STORY], SamplingParams(max_time=1e-9), SamplingParams(max_new_tokens=2))
    assert (late.finish_reason, late.token_ids) == ("time", [])
    assert whole.finish_reason == "length"


def test_time_does_not_end_a_row_that_has_ended(model, monkeypatch):
    """Its deadline passes while the others go on."""
    monkeypatch.setattr(Row, "late", lambda row: bool(row.reason))
    short, long = run(model, [STORY, STORY], *(SamplingParams(max_new_tokens=count, ignore_eos=True) for count in (1, 3)))
    assert (short.finish_reason, long.finish_reason) == ("length", "length")


def test_the_context_ends_a_row(tiny_file):
    small = ds.load(tiny_file())
    filled = run(small, [[5] * 60], SamplingParams(ignore_eos=True))[0]
    assert filled.finish_reason == "length"
    assert len(filled.token_ids) == 4


@pytest.mark.parametrize(
    "prompt", ["", [], [300], [-1], [0.5], ["a"], [True], [0] * 64, "\ud800", b"a", np.array(3), 5, None, {3, 4}]
)
def test_refuses_a_prompt(tiny_file, prompt):
    with pytest.raises(ValueError, match="^generate: prompt must be"):
        run(ds.load(tiny_file()), [prompt], SamplingParams())


def test_refuses_params_that_do_not_fit(tiny_file):
    words = "^generate: params must be a SamplingParams for all prompts, or 2, one for each; got a list of 1$"
    with pytest.raises(ValueError, match=words):
        ds.generate(ds.load(tiny_file()), [[1], [2]], [SamplingParams()])


def test_says_where_the_ids_of_one_prompt_belong(tiny_file):
    with pytest.raises(ValueError, match=r"got 1: the ids of one prompt are a list in the list of prompts$"):
        ds.generate(ds.load(tiny_file()), [1, 2, 3])


@pytest.mark.parametrize("params", ["x", 0, 5, [None], {"top_k": 3}])
def test_refuses_what_is_no_params(tiny_file, params):
    with pytest.raises(ValueError, match="^generate: params must be a SamplingParams, or one for each prompt; got"):
        ds.generate(ds.load(tiny_file()), [[1]], params)


@pytest.mark.parametrize("prompts", [None, {"role": "user", "content": "x"}, np.array([1])])
def test_refuses_what_is_no_list_of_prompts(tiny_file, prompts):
    with pytest.raises(ValueError, match="^generate: prompts? must be"):
        ds.generate(ds.load(tiny_file()), prompts)


@pytest.mark.parametrize(
    ("name", "value"), [("threads", "4"), ("cache_bytes", "1"), ("name_or_path", ""), ("name_or_path", None)]
)
def test_load_quotes_what_is_wrong(tiny_file, name, value):
    with pytest.raises(ValueError, match=f"^load: {name} must be .*; got {value!r}$"):
        ds.load(**{"name_or_path": tiny_file(), name: value})


@pytest.mark.parametrize("name", ["stream", "cancelled"])
def test_refuses_what_is_no_function(tiny_file, name):
    with pytest.raises(ValueError, match=f"^generate: {name} must be a function or None; got True"):
        ds.generate(ds.load(tiny_file()), [[1]], **{name: True})


@pytest.mark.parametrize("ids", ["ab", None, 5, [300], [[1]], [1.0], b"a", {3, 4}])
def test_a_sequence_refuses_what_are_no_token_ids(tiny_file, ids):
    with pytest.raises(ValueError, match=r"^sequence: token_ids must be token ids in \[0, "):
        ds.load(tiny_file()).sequence(ids)


@pytest.mark.parametrize("size", [2**62, 10**30])
def test_a_cache_beyond_the_address_space_is_a_memory_error(tiny_file, size):
    with pytest.raises(MemoryError, match="no address space for a cache of"):
        ds.load(tiny_file(), cache_bytes=size)


def test_beams_without_a_candidate_end_their_row_alone(tiny_file):
    forbidden = SamplingParams(
        allowed_token_ids=[7], no_repeat_ngram_size=1, ignore_eos=True, max_new_tokens=3, num_beams=2, logprobs=1
    )
    other = SamplingParams(max_new_tokens=3, ignore_eos=True)
    dead, going = run(ds.load(tiny_file()), [[1, 2], [1, 2]], forbidden, other)
    assert (dead.token_ids, dead.finish_reason, dead.logprobs) == ([], "no_candidate", [])
    assert len(going.token_ids) == 3


@pytest.mark.slow
def test_of_many_rows_as_many_run_as_fill_a_pass(tiny_file):
    """Each holds its logits, which of ten thousand rows would be gigabytes."""
    model, held = ds.load(tiny_file(kind="Q8_0")), []
    params = SamplingParams(max_new_tokens=2, seed=1, ignore_eos=True)
    prompts = [[i % 256, i // 256] for i in range(1100)]
    done = ds.generate(model, prompts, params, stream=lambda *_: held.append(model.cache.held))
    assert max(held) == 512
    for i in (0, 700, 1099):
        assert done[i] == ds.generate(model, [prompts[i]], params)[0]


def test_rows_that_do_not_fit_into_the_cache_wait(tiny_file):
    path = tiny_file(context=200)
    params = [ds.SamplingParams(max_new_tokens=5 + 7 * i, seed=i, ignore_eos=True) for i in range(6)]
    prompts = [[10 + i] * (1 + 9 * i) for i in range(6)]
    model = ds.load(path)
    small = ds.load(path, cache_bytes=8 * model.cache.page_bytes)
    assert ds.generate(small, prompts, params) == ds.generate(model, prompts, params)
    assert small.cache.held == 0 and small.cache.pages == 8
    whole = ds.SamplingParams(max_new_tokens=29, ignore_eos=True)  # the last of them does not run
    assert len(ds.generate(small, [[5] * 100], whole)[0].token_ids) == 29
    with pytest.raises(ds.models.CacheFullError, match="a row may need 9 pages, and the cache has 8"):
        ds.generate(small, [[5] * 100], replace(whole, max_new_tokens=30))
    params = [ds.SamplingParams(max_new_tokens=5), ds.SamplingParams(num_beams=3, max_new_tokens=5)]
    pieces = []
    with pytest.raises(ds.models.CacheFullError, match="a beam search may need 9 pages, and the cache has 8"):
        ds.generate(small, [[5], [5] * 40], params, stream=lambda index, piece: pieces.append(piece))
    assert not pieces  # refused before any work


@pytest.mark.parametrize("beams", [1, 3])
def test_a_row_that_waits_for_other_callers_can_be_cancelled(tiny_file, beams, monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    path = tiny_file()
    model = ds.load(path, cache_bytes=4 * ds.load(path).cache.page_bytes)
    others = admit(model.cache, 1, 64)
    asked = iter([False] * 4)
    params = ds.SamplingParams(max_new_tokens=5, num_beams=beams, seed=1, ignore_eos=True)
    [completion] = ds.generate(model, [[1, 2, 3]], params, cancelled=lambda: next(asked, True))
    assert (completion.finish_reason, completion.token_ids) == ("cancelled", [])
    others[0].close()
    assert ds.generate(model, [[1, 2, 3]], params)[0].finish_reason == "length"


@pytest.mark.parametrize(("beams", "tokens"), [(1, 20), (3, 10)])
def test_in_a_program_of_one_thread_nothing_waits_for_a_stream_that_nobody_reads(tiny_file, beams, tokens, monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    path = tiny_file()
    model = ds.load(path, cache_bytes=4 * ds.load(path).cache.page_bytes)
    params = ds.SamplingParams(max_new_tokens=31, seed=1, ignore_eos=True)
    with ds.stream(model, [1, 2, 3], params) as stream:
        next(stream)
        [completion] = ds.generate(model, [[1, 2, 3]], replace(params, max_new_tokens=tokens, num_beams=beams))
        assert completion.finish_reason == "error" and isinstance(completion.error, ds.models.CacheFullError)
        assert len(list(stream)) == 30


def test_samples_and_turns_share_their_beginnings(tiny_file):
    model = ds.load(tiny_file(context=300))
    prompt, held = list(range(100)), []
    params = ds.SamplingParams(max_new_tokens=4, num_return_sequences=5, seed=3, ignore_eos=True)
    ds.generate(model, [prompt], params, stream=lambda *_: held.append(model.cache.held))
    assert max(held) == 6 + 5  # the prompt's full pages, and one of each sample
    assert model.cache.held == 0 and model.cache.kept == 6
    with model.sequence([*prompt, 7]) as sequence:
        assert len(sequence) == 96


def test_of_equal_prompts_one_runs(tiny_file, monkeypatch):
    model, ran = ds.load(tiny_file()), []
    logits = model.decoder.logits
    monkeypatch.setattr(model.decoder, "logits", lambda batch, pages: (ran.append(len(batch.tokens)), logits(batch, pages))[1])
    ds.generate(model, [[1, 2, 3], [1, 2, 3]], ds.SamplingParams(max_new_tokens=1, num_return_sequences=3, seed=0))
    assert ran == [3]


@pytest.mark.slow
def test_a_long_prompt_runs_in_blocks(model):
    ids = model.tokenizer.encode("one two three four five six seven eight " * 40)
    assert len(ids) > 256
    greedy = run(model, [ids, ids[:100]], SamplingParams(do_sample=False, max_new_tokens=2))
    assert greedy[0].token_ids[0] == int(model.logits(ids)[-1].argmax())
    assert greedy[1].token_ids[0] == int(model.logits(ids[:100])[-1].argmax())


def test_profile_names_the_operators_at_work(model):
    with ds.profile() as profile:
        run(model, [STORY], SamplingParams(max_new_tokens=2))
    assert profile.costs["decoder_forward", "cpu"].calls == 2
    assert "decode_step" in {op for op, _ in profile.costs}


def test_beams_run_beside_samples_and_stream_as_one_piece(model):
    greedy = run(model, [STORY], SamplingParams(do_sample=False, max_new_tokens=6))[0]
    wide = SamplingParams(do_sample=False, max_new_tokens=6, num_beams=3, num_return_sequences=2)
    pieces = []
    first, best, second, last = run(
        model,
        [STORY, STORY, STORY],
        SamplingParams(do_sample=False, max_new_tokens=6),
        wide,
        SamplingParams(do_sample=False, max_new_tokens=6),
        stream=lambda row, piece: pieces.append((row, piece)),
    )
    assert first == last == greedy
    assert best.text != second.text
    assert (1, best.text) in pieces

    def score(completion):
        ids = completion.prompt_token_ids + completion.token_ids
        logits = model.logits(ids).astype(np.float64)[len(completion.prompt_token_ids) - 1 : -1]
        shifted = logits - logits.max(1, keepdims=True)
        return (shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))[
            np.arange(len(completion.token_ids)), completion.token_ids
        ].sum()

    assert score(best) >= score(second)
    assert score(best) >= score(greedy)


def test_beams_stop_too(model):
    chat = [{"role": "user", "content": "What is the capital of Japan?"}]
    done = run(model, [chat], SamplingParams(do_sample=False, num_beams=2, stop_strings=["Tokyo"], max_new_tokens=20))[0]
    assert "Tokyo" not in done.text
    assert done.finish_reason in ("stop", "eos")
    groups = SamplingParams(
        do_sample=False, num_beams=4, num_beam_groups=2, diversity_penalty=5.0, max_new_tokens=4, num_return_sequences=4
    )
    assert len({tuple(c.token_ids) for c in run(model, [chat], groups)}) == 4


def test_log_probabilities_sum_to_what_the_model_says(model):
    done = run(model, [STORY], SamplingParams(do_sample=False, max_new_tokens=3, logprobs=2))[0]
    logits = model.logits(done.prompt_token_ids + done.token_ids)
    for step, (token, got) in enumerate(zip(done.token_ids, done.logprobs, strict=True)):
        row = logits[len(done.prompt_token_ids) - 1 + step].astype(np.float64)
        assert got.raw == pytest.approx(row[token] - row.max() - np.log(np.exp(row - row.max()).sum()), abs=1e-6)
        assert got.top_raw[0][0] == token


def test_log_probabilities_of_a_prompt(model, passes):
    ids = model.tokenizer.encode("one two three four five six " * 16)
    logits = model.logits(ids)
    params = SamplingParams(do_sample=False, max_new_tokens=3, prompt_logprobs=2)
    passes.count = 0
    other = replace(params, prompt_logprobs=None)
    done, whole, short = run(model, [ids, ids, ids[:1]], params, other, replace(params, prompt_logprobs=0))
    assert passes.count == -(-len(ids) // 64) + 1 + 1 + 2  # blocks that keep the logits small; the others' in one each; tokens
    assert done.token_ids == whole.token_ids and done.text == whole.text and whole.prompt_logprobs is None
    assert short.prompt_logprobs == [None]
    steps = [(ds.steps.Force(np.array([token])),) for token in ids[1:]]
    expected = ds.decode_step(logits[:-1], steps, top_logprobs=[2] * (len(ids) - 1)).logprobs
    assert done.prompt_logprobs[0] is None
    assert [(one.raw, one.top_raw) for one in done.prompt_logprobs[1:]] == [(one.raw, one.top_raw) for one in expected]
    assert all(one.processed == one.raw and one.top_processed == one.top_raw for one in done.prompt_logprobs[1:])
    row = logits[4].astype(np.float64)
    assert done.prompt_logprobs[5].raw == pytest.approx(row[ids[5]] - row.max() - np.log(np.exp(row - row.max()).sum()))
    with pytest.raises(ValueError, match="^SamplingParams: prompt_logprobs must be None beside several beams"):
        SamplingParams(num_beams=2, prompt_logprobs=1)


def test_equal_prompts_are_scored_once_and_each_row_has_its_own_scores(model, passes):
    ids = model.tokenizer.encode("one two three four five six " * 16)
    one = SamplingParams(do_sample=False, max_new_tokens=2, prompt_logprobs=2, num_return_sequences=1)
    [alone] = run(model, [ids], one)
    model.cache.clear()
    passes.count = 0
    *equal, other = run(model, [ids] * 4, one, one, one, replace(one, prompt_logprobs=0))
    assert passes.count == 2 * -(-len(ids) // 64) + 1  # the first tokens come with the prompts' logits
    assert equal == [alone] * 3 and len({id(each.prompt_logprobs) for each in equal}) == 3
    assert other.prompt_logprobs == [each and each._replace(top_raw=(), top_processed=()) for each in alone.prompt_logprobs]


def test_log_probabilities_of_beams(model):
    """Each beam's own, in float32: the tokens of several beams come from rows that moved about."""
    params = SamplingParams(do_sample=False, max_new_tokens=6, num_beams=4, num_return_sequences=4, logprobs=1)
    for done in run(model, [STORY], params):
        logits = model.logits(done.prompt_token_ids + done.token_ids)[len(done.prompt_token_ids) - 1 : -1].astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        expected = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        assert [p.raw for p in done.logprobs] == pytest.approx(expected[range(6), done.token_ids].tolist(), abs=1e-5)
        assert [p.top_raw[0][0] for p in done.logprobs] == logits.argmax(axis=1).tolist()
        assert all(p.processed == p.raw for p in done.logprobs)  # nothing is set that would change them
