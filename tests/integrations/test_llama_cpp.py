"""llama-cpp-python: our rows in create_completion, on a context's own logits, and as a llama_sampler in llama.cpp's chains."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decodestep import Sampler, SamplingParams
from support import processes
from support.project import ROOT

llama_cpp = pytest.importorskip("llama_cpp")

from decodestep.integrations import llama_cpp as ours  # noqa: E402

PROMPT = [1, 5, 9, 11]
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
PARAMS = [
    SamplingParams(top_p=0.9, temperature=1.4, seed=3),
    SamplingParams(seed=4, top_k=40, repetition_penalty=1.2, dry_multiplier=0.8, dry_sequence_breakers=()),
    SamplingParams(seed=5, min_p=0.02, xtc_probability=0.5, top_n_sigma=1.5),
]


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Any:
    return llama_cpp.Llama(str(model_path), n_ctx=96, verbose=False, n_threads=1, n_threads_batch=1)


def generate_tokens(llm: Any, count: int, **options: Any) -> list[int]:
    llm.reset()
    tokens = []
    for token in llm.generate(PROMPT, **options):
        tokens.append(token)
        if len(tokens) == count:
            return tokens
    raise AssertionError("generate has ended by itself")


def logits_of(ctx: Any, index: int, vocab: int) -> np.ndarray:
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx.ctx, index), (vocab,)).copy()


def test_greedy_text_is_llama_cpps_own(llm: Any) -> None:
    own = generate_tokens(llm, 12, temp=0.0)
    with ours.sampling(llm, SamplingParams(do_sample=False)):
        assert generate_tokens(llm, 12) == own


@pytest.mark.parametrize("params", PARAMS)
def test_a_text_is_what_sampler_draws_of_the_same_logits(llm: Any, params: SamplingParams) -> None:
    with ours.sampling(llm, params):
        text = generate_tokens(llm, 10)
    llm.reset()
    sampler = Sampler(params, vocab_size=llm.n_vocab(), prompt_ids=[PROMPT])
    llm.eval(PROMPT)
    for token in text:
        assert sampler.step(logits_of(llm._ctx, -1, llm.n_vocab())[None]).tokens.tolist() == [token]
        llm.eval([token])


def test_the_calls_seed_decides_where_params_have_none(llm: Any) -> None:
    def completion(**options: Any) -> str:
        llm.reset()
        return llm.create_completion(PROMPT, max_tokens=8, **options)["choices"][0]["text"]

    with ours.sampling(llm, SamplingParams(seed=7)):
        expected = completion()
        assert completion(seed=9) == expected  # params decide
    with ours.sampling(llm, SamplingParams()):
        assert completion(seed=7) == expected != completion(seed=8)
        pieces = llm.create_completion(PROMPT, max_tokens=8, seed=7, stream=True)
        assert "".join(piece["choices"][0]["text"] for piece in pieces) == expected
    assert "_init_sampler" not in vars(llm)


def test_the_sampler_is_given_back(llm: Any) -> None:
    """llama-cpp-python keeps the last text's sampler for `Llama.sample`, which would call ours with what it does not take."""
    llm.create_completion([1], max_tokens=1, temperature=0.0)
    own = llm._sampler
    with ours.sampling(llm, PARAMS[0]):
        llm.create_completion([1], max_tokens=2)
        assert llm._sampler is not own
    assert llm._sampler is own
    assert isinstance(llm.sample(), int)


def test_rows_of_a_batch_draw_as_alone(llm: Any) -> None:
    """Three sequences of different lengths in one llama_decode."""
    prompts = [[1, 5, 9], [7], [2, 3, 4, 8, 6]]
    options = llama_cpp.llama_context_default_params()
    options.n_ctx, options.n_seq_max, options.n_threads = 256, 3, 1
    ctx = llama_cpp.llama_init_from_model(llm._model.model, options)
    batch = llama_cpp.llama_batch_init(16, 0, 1)
    rows = [ours.RowSampler(p, vocab_size=llm.n_vocab(), prompt_ids=ids) for p, ids in zip(PARAMS, prompts, strict=True)]
    alone = [Sampler(p, vocab_size=llm.n_vocab(), prompt_ids=[ids]) for p, ids in zip(PARAMS, prompts, strict=True)]
    feed, lengths = prompts, [0, 0, 0]
    try:
        for _ in range(6):
            last = []
            batch.n_tokens = 0
            for sequence, ids in enumerate(feed):
                for offset, token in enumerate(ids):
                    n = batch.n_tokens
                    batch.token[n], batch.pos[n], batch.n_seq_id[n] = token, lengths[sequence] + offset, 1
                    batch.seq_id[n][0], batch.logits[n] = sequence, offset == len(ids) - 1
                    batch.n_tokens += 1
                lengths[sequence] += len(ids)
                last.append(batch.n_tokens - 1)
            assert llama_cpp.llama_decode(ctx, batch) == 0
            drawn = [row.sample(ctx, last[i]) for i, row in enumerate(rows)]
            for i, sampler in enumerate(alone):
                row = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx, last[i]), (1, llm.n_vocab()))
                assert sampler.step(row.copy()).tokens.tolist() == [drawn[i]]
            feed = [[token] for token in drawn]
    finally:
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(ctx)


def build_chain(*samplers: Any) -> Any:
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for sampler in samplers:
        llama_cpp.llama_sampler_chain_add(chain, sampler)
    return chain


def test_in_a_chain_it_draws_appends_resets_and_clones(llm: Any) -> None:
    """llama_sampler_sample copies the logits, lets a filter of llama.cpp's run first, and calls apply and accept."""
    llm.reset()
    llm.eval(PROMPT)
    vocab, ctx = llm.n_vocab(), llm._ctx.ctx
    logits = logits_of(llm._ctx, -1, vocab)
    top = np.full(vocab, -np.inf, np.float32)
    kept = np.argsort(-logits, kind="stable")[:50]
    top[kept] = logits[kept]
    for first, seen in ((None, logits), (llama_cpp.llama_sampler_init_top_k(50), top)):
        sampler = Sampler(PARAMS[1], vocab_size=vocab, prompt_ids=[PROMPT])
        expected = [int(sampler.step(seen[None]).tokens[0]) for _ in range(5)]
        row = ours.RowSampler(PARAMS[1], vocab_size=vocab, prompt_ids=PROMPT)
        chain = build_chain(*([first] if first else []), row.pointer())
        draws = [llama_cpp.llama_sampler_sample(chain, ctx, -1) for _ in range(3)]
        copy = llama_cpp.llama_sampler_clone(chain)
        for each in (chain, copy):
            assert draws + [llama_cpp.llama_sampler_sample(each, ctx, -1) for _ in range(2)] == expected
        assert row.tokens == PROMPT + expected
        llama_cpp.llama_sampler_reset(chain)
        assert llama_cpp.llama_sampler_sample(chain, ctx, -1) == expected[0]
        llama_cpp.llama_sampler_free(chain)
        llama_cpp.llama_sampler_free(copy)
        assert not ours._owned


def candidates_of(logits: np.ndarray) -> tuple[Any, Any]:
    data = (llama_cpp.llama_token_data * len(logits))(*[(i, float(x), 0.0) for i, x in enumerate(logits)])
    return llama_cpp.llama_token_data_array(data, len(logits), -1, False), data


def test_a_token_that_the_host_puts_in_place_of_the_drawn_one_counts(rng: np.random.Generator) -> None:
    logits = rng.standard_normal((3, 64)).astype(np.float32)
    row = ours.RowSampler(PARAMS[1], vocab_size=64)
    made = row.pointer()
    for _ in range(2):  # applied twice without an accept: the same position
        array, data = candidates_of(logits[0])
        llama_cpp.llama_sampler_apply(made, ctypes.byref(array))
    other = (data[array.selected].id + 1) % 64
    llama_cpp.llama_sampler_accept(made, other)
    sampler = Sampler(PARAMS[1], vocab_size=64)
    assert int(sampler.step(logits[:1]).tokens[0]) == data[array.selected].id
    fresh = ours.RowSampler(PARAMS[1], vocab_size=64)
    fresh.accept(other)
    assert row.draw(logits[1:2]) == fresh.draw(logits[1:2])
    llama_cpp.llama_sampler_free(made)


def test_errors_in_a_chain_are_told_and_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: told.append(str(error.exc_value)))
    row = ours.RowSampler(SamplingParams(seed=1), vocab_size=8)
    made = row.pointer()
    array, _ = candidates_of(np.full(8, -np.inf, np.float32))
    llama_cpp.llama_sampler_apply(made, ctypes.byref(array))
    assert array.selected == 0 and isinstance(row.error, ValueError) and told == [str(row.error)]
    llama_cpp.llama_sampler_free(made)


def test_an_interrupt_leaves_the_row_as_it_was(rng: np.random.Generator) -> None:
    logits, interrupts = rng.standard_normal((3, 64)).astype(np.float32), [False, True, False, False]

    def interrupt(ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        if interrupts.pop(0):
            raise KeyboardInterrupt
        return scores

    row, alone = (ours.RowSampler(PARAMS[1], vocab_size=64, processors=own) for own in ([interrupt], []))
    for each in (row, alone):
        each.accept(each.draw(logits[:1]))
    with pytest.raises(KeyboardInterrupt):
        row.draw(logits[1:2])
    assert row.tokens == alone.tokens
    assert [row.draw(logits[i : i + 1]) for i in (1, 2)] == [alone.draw(logits[i : i + 1]) for i in (1, 2)]


def test_ten_thousand_tokens_take_no_memory(llm: Any) -> None:
    import resource

    llm.reset()
    llm.eval(PROMPT)

    def draw(count: int) -> int:
        row = ours.RowSampler(SamplingParams(seed=1, top_p=0.9), vocab_size=llm.n_vocab())
        for _ in range(count):
            row.sample(llm._ctx)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = draw(500)
    gc.disable()  # nothing may lean on the collector
    try:
        after = draw(10_000)
    finally:
        gc.enable()
    assert after - before < 4096  # KiB; one leaked array of a token's logits is 192


def test_the_plain_processor_gives_what_the_chain_of_transformers_would(llm: Any) -> None:
    params = SamplingParams(repetition_penalty=1.3, min_p=0.1, do_sample=True, seed=0, top_n_sigma=1.0)
    seen: list[tuple[list[int], np.ndarray, np.ndarray]] = []
    processor = ours.LogitsProcessor(params)

    def spy(ids: Any, scores: Any) -> Any:
        before = np.array(scores)
        seen.append((ids.tolist(), before, processor(ids, scores)))
        return seen[-1][2]

    processors = llama_cpp.LogitsProcessorList([spy])
    generate_tokens(llm, 4, logits_processor=processors, temp=1.0, top_k=0, top_p=1.0, min_p=0.0)
    assert [len(ids) for ids, _, _ in seen] == [4, 5, 6, 7]
    for ids, before, after in seen:
        sampler = Sampler(params, vocab_size=llm.n_vocab(), prompt_ids=[ids])
        np.testing.assert_array_equal(after, sampler.processed(before[None])[0])
    with pytest.raises(ValueError, match="continuation of the 7 tokens"):
        processor(np.array([1, 2]), seen[0][1])


@pytest.mark.parametrize(
    ("option", "word"),
    [({"temperature": 0.5}, "temperature"), ({"top_p": 0.5}, "top_p"), ({"repeat_penalty": 1.1}, "repeat_penalty"),
     ({"logit_bias": {3: 1.0}}, "logits_processor"), ({"mirostat_mode": 2}, "mirostat_mode")],
)  # fmt: skip
def test_what_the_call_asks_of_llama_cpps_samplers_is_refused(llm: Any, option: dict[str, Any], word: str) -> None:
    with ours.sampling(llm, PARAMS[0]), pytest.raises(ValueError, match=f"llama_cpp: {word} must be left at its default"):
        llm.create_completion(PROMPT, max_tokens=2, **option)


@pytest.mark.parametrize(
    "field", ["max_new_tokens", "stop_strings", "logprobs", "num_return_sequences", "stop_token_ids", "regex", "json_schema"]
)
def test_what_is_the_hosts_is_refused_by_name(llm: Any, field: str) -> None:
    values = {"stop_strings": "a", "stop_token_ids": [3], "regex": "a", "json_schema": {}}
    params = SamplingParams(**{field: values.get(field, 2)})
    with pytest.raises(ValueError, match=f"{field} must be left at its default"), ours.sampling(llm, params):
        pass
    assert "_init_sampler" not in vars(llm)


def test_missing_logits_are_an_error(llm: Any) -> None:
    llm.reset()
    llm.eval(PROMPT)
    with pytest.raises(ValueError, match="an output of the last llama_decode"):
        ours.RowSampler(PARAMS[0], vocab_size=llm.n_vocab()).sample(llm._ctx, 99)


@pytest.mark.parametrize("index", [2**32 - 1, -(2**32) - 1, 1.5, True, None])
def test_an_index_that_c_would_read_as_another_is_refused(llm: Any, index: Any) -> None:
    llm.reset()
    llm.eval(PROMPT)
    row = ours.RowSampler(PARAMS[0], vocab_size=llm.n_vocab(), prompt_ids=PROMPT)
    with pytest.raises(ValueError, match="llama_cpp: index must be an output of the last llama_decode"):
        row.sample(llm._ctx, index)
    assert row.tokens == PROMPT


@pytest.mark.parametrize("change", [-1, 1, 100_000])
def test_logits_of_another_width_are_not_read(llm: Any, change: int) -> None:
    llm.reset()
    llm.eval(PROMPT)
    vocab = llm.n_vocab() + change
    row = ours.RowSampler(PARAMS[0], vocab_size=vocab)
    with pytest.raises(ValueError, match=f"ctx must be of a model with the row's vocab_size {vocab}; got {llm.n_vocab()}"):
        row.sample(llm._ctx)


def test_a_closed_context_is_refused(model_path: Path) -> None:
    closed = llama_cpp.Llama(str(model_path), n_ctx=96, verbose=False)
    row, context = ours.RowSampler(PARAMS[0], vocab_size=closed.n_vocab()), closed._ctx
    closed.close()
    with pytest.raises(ValueError, match="llama_cpp: ctx must be an open llama_context"):
        row.sample(context)
    with pytest.raises(ValueError, match="llama_cpp: llm must be a llama_cpp.Llama; got"), ours.sampling(context, PARAMS[0]):
        pass


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_row_is_copied_by_clone_alone(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="a HostRow cannot be copied or pickled: use clone"):
        copied(ours.RowSampler(PARAMS[0], vocab_size=8))


def test_the_example_runs(model_path: Path) -> None:
    example = ROOT / "examples/llama_cpp_sampling.py"
    lines = processes.run([sys.executable, str(example), str(model_path), "--tokens", "5"], check=True).stdout.splitlines()
    assert len(lines) == 4 and lines[0] == lines[1] and lines[2] == lines[3]
