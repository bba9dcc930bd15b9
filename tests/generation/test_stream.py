"""stream and astream: pieces that join to the text, whatever ends it, and loops that may be left at any time."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import os
import threading
import weakref
from dataclasses import replace

import pytest

import decodestep as ds
from decodestep import SamplingParams
from support import processes

STORY = "Once upon a time"
GREEDY = SamplingParams(do_sample=False, max_new_tokens=12)


def workers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("decodestep-stream")]


async def read(stream, stop_after=None):
    pieces = []
    async for piece in stream:
        pieces.append(piece)
        if len(pieces) == stop_after:
            break
    return pieces


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        replace(GREEDY, stop_strings=("girl",)),
        replace(GREEDY, stop_strings=("a little girl named Zo", " named Lily, and")),
        replace(GREEDY, max_time=1e-9),
        replace(GREEDY, num_beams=3),
        SamplingParams(max_new_tokens=9, seed=5, temperature=1.4),
        replace(GREEDY, allowed_token_ids=[7], no_repeat_ngram_size=1, ignore_eos=True),
    ],
)
def test_pieces_join_to_the_text_and_the_completion_is_that_of_generate(model, params):
    (whole,) = ds.generate(model, STORY, params)
    stream = ds.stream(model, STORY, params)
    assert "".join(stream) == whole.text
    assert stream.completion == whole
    assert next(stream, "end") == "end"

    async def main():
        stream = ds.astream(model, STORY, params)
        assert "".join(await read(stream)) == whole.text
        assert stream.completion == whole

    asyncio.run(main())
    assert not workers()


def test_a_conversation_and_ids_stream_too(model):
    chat = [{"role": "user", "content": "Hi"}]
    assert "".join(ds.stream(model, chat, GREEDY)) == ds.generate(model, chat, GREEDY)[0].text
    assert "".join(ds.stream(model, [5, 6], GREEDY)) == ds.generate(model, [[5, 6]], GREEDY)[0].text


def test_leaving_the_loop_ends_the_row_and_frees_its_cache(model, passes):
    stream = ds.stream(model, STORY, GREEDY)
    cache = weakref.ref(stream._call._batch)
    for n, _ in enumerate(stream):
        if n == 3:
            break
    gc.disable()  # the last reference is enough
    try:
        left = weakref.ref(stream)
        del stream
        assert left() is None and cache() is None
    finally:
        gc.enable()
    assert passes.count == 4


def test_close_keeps_what_there_is(model):
    with ds.stream(model, STORY, GREEDY) as stream:
        with pytest.raises(RuntimeError, match="after the last piece"):
            _ = stream.completion
        pieces = [next(stream), next(stream)]
    done = stream.completion
    assert (done.finish_reason, done.text, len(done.token_ids)) == ("cancelled", "".join(pieces), 2)
    assert list(stream) == []
    stream.close()
    assert stream.completion is done


def test_held_back_text_that_nobody_read_is_not_in_the_text(model):
    first = ds.generate(model, STORY, replace(GREEDY, max_new_tokens=2))[0]
    stream = ds.stream(model, STORY, replace(GREEDY, stop_strings=(first.text + "zzz",)))
    assert [next(stream), next(stream)] == ["", ""]
    stream.close()
    assert (stream.completion.text, stream.completion.token_ids) == ("", first.token_ids)


def test_another_thread_may_close_a_stream_during_a_pass(model, passes):
    stream = ds.stream(model, STORY, GREEDY)
    passes.at(3, lambda: threading.Thread(target=stream.close).run())
    assert len(list(stream)) == 2
    assert passes.count == 3
    assert stream.completion.finish_reason == "cancelled"


def test_an_interrupt_in_the_prompt_reaches_the_reader(model, passes):
    ids = model.tokenizer.encode("one two three four " * 400)
    assert len(ids) > 1024

    def interrupt():
        raise KeyboardInterrupt

    passes.at(2, interrupt)
    stream = ds.stream(model, ids, GREEDY)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert (stream.completion.finish_reason, stream.completion.token_ids) == ("cancelled", [])
    assert list(stream) == []


def test_closing_during_a_long_prompt_takes_one_pass(model, passes):
    ids = model.tokenizer.encode("one two three four " * 400)
    stream = ds.stream(model, ids, GREEDY)
    passes.at(1, stream.close)
    assert list(stream) == []
    assert passes.count == 1


def test_what_is_wrong_is_refused_at_once(model):
    for prompt in ("", {"role": "user", "content": "x"}, ["Hello"]):
        with pytest.raises(ValueError, match="^generate: prompt must be"):
            ds.stream(model, prompt)
    with pytest.raises(ValueError, match="^stream: params must be of one completion"):
        ds.stream(model, STORY, SamplingParams(num_return_sequences=2))
    with pytest.raises(ValueError, match="^stream: params must be a SamplingParams"):
        ds.stream(model, STORY, [SamplingParams()])

    async def main():
        stream = ds.astream(model, "")
        with pytest.raises(ValueError, match="^generate: prompt must be"):
            await anext(stream)
        with pytest.raises(RuntimeError):
            _ = stream.completion

    asyncio.run(main())
    assert not workers()


def test_the_event_loop_goes_on_while_the_model_works(model, passes):
    async def main():
        loop, asked, answered = asyncio.get_running_loop(), threading.Event(), threading.Event()

        def wait_for_the_loop():  # in the worker, during a pass: the loop must be free to answer
            loop.call_soon_threadsafe(answered.set)
            asked.set()
            assert answered.wait(30)

        passes.at(2, wait_for_the_loop)
        assert len(await read(ds.astream(model, STORY, GREEDY))) == 12
        assert asked.is_set()

    asyncio.run(main())


def test_what_runs_in_the_thread_has_the_context_of_the_task(tiny_file):
    of_task, seen = contextvars.ContextVar("of_task", default="none"), set()

    def look(ids, scores):
        seen.add(of_task.get())
        return scores

    async def main():
        of_task.set("set")
        await read(ds.astream(ds.load(tiny_file()), [1, 2], GREEDY, processors=[look]))

    asyncio.run(main())
    assert seen == {"set"}


def test_leaving_an_async_loop_ends_the_thread(model, passes):
    async def main():
        pieces = await read(ds.astream(model, STORY, GREEDY), 3)
        assert len(pieces) == 3
        for thread in workers():
            await asyncio.to_thread(thread.join, 30)
        assert passes.count == 3
        async with ds.astream(model, STORY, GREEDY) as stream:
            await anext(stream)
        assert stream.completion.finish_reason == "cancelled"
        assert [piece async for piece in stream] == []

    asyncio.run(main())
    for thread in workers():
        thread.join(30)
    assert not workers()


def test_cancelling_the_task_ends_the_row_within_a_pass(model, passes):
    async def main():
        loop, inside, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def signal():
            loop.call_soon_threadsafe(inside.set)
            assert go_on.wait(30)

        passes.at(3, signal)
        stream = ds.astream(model, STORY, GREEDY)
        task = asyncio.create_task(read(stream))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await stream.aclose()  # waits for the pass that is under way
        assert passes.count == 3
        assert stream.completion.finish_reason == "cancelled"

    asyncio.run(main())
    for thread in workers():
        thread.join(30)
    assert not workers()


def test_streams_of_several_tasks_do_not_touch_each_other(model):
    params = [SamplingParams(max_new_tokens=8, seed=seed, temperature=1.3) for seed in range(3)]
    alone = [ds.generate(model, STORY, each)[0].text for each in params]

    async def main():
        streams = [ds.astream(model, STORY, each) for each in params]
        return ["".join(pieces) for pieces in await asyncio.gather(*map(read, streams))]

    assert asyncio.run(main()) == alone


def test_a_stream_is_not_copied(tiny_file):
    model = ds.load(tiny_file())
    with ds.stream(model, [1, 2]) as stream:
        for one in (stream, ds.astream(model, [1, 2])):
            with pytest.raises(TypeError, match="cannot be copied"):
                copy.copy(one)
        assert next(stream) is not None


def test_the_row_s_own_code_cannot_read_its_stream(tiny_file):
    def read_on(ids, scores):
        next(stream)
        return scores

    stream = ds.stream(ds.load(tiny_file()), [1, 2], processors=[read_on])
    with pytest.raises(RuntimeError, match="cannot read its stream"):
        list(stream)
    assert stream.completion.finish_reason == "error"


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
def test_a_processor_that_raises_stop_iteration_is_no_end_of_the_stream(tiny_file, kind):
    def fail(ids, scores):
        raise kind

    with pytest.raises(RuntimeError, match="a processor raised"):
        list(ds.stream(ds.load(tiny_file()), [1, 2], processors=[fail]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads
def test_a_forked_child_refuses_a_stream_that_another_thread_was_reading(tiny_file):
    model = ds.load(tiny_file())
    inside, forked = threading.Event(), threading.Event()

    def wait(ids, scores):
        inside.set()
        forked.wait()
        return scores

    read, idle = ds.stream(model, [1, 2], GREEDY, processors=[wait]), ds.stream(model, [1, 2], GREEDY)
    reader = threading.Thread(target=list, args=(read,))
    reader.start()
    inside.wait()

    def refuses_there():
        with pytest.raises(RuntimeError, match="another thread was reading it"):
            next(read)
        read.close()
        return bool("".join(idle))

    with processes.forked_child(refuses_there):
        forked.set()
        reader.join()
    assert read.completion.text == "".join(idle)
