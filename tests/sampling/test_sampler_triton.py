"""Sampler on logits of a device, interpreted where there is no GPU: the same seeds give the tokens of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep._base import arrays
from decodestep.ops.decode_step import triton
from decodestep.ops.decode_step.rows import accept_tokens
from decodestep.sampling import device_step
from support import triton_interpreter as gpu
from support.triton_interpreter import guard_zones  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
VOCAB = 60


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    whole = triton.Workspace
    monkeypatch.setattr(triton, "Workspace", lambda b, v, d, block=64: whole(b, v, d, block=block, programs=1))


def logits_of(rng, batch, dtype=np.float32):
    return (rng.normal(size=(batch, VOCAB)) * 2).astype(dtype)


def samplers(params, prompts, **options):
    return [ds.Sampler(params, vocab_size=VOCAB, prompt_ids=prompts, backend=b, **options) for b in ("cpu", "triton")]


def same(a, b):
    assert b.tokens.tolist() == a.tokens.tolist()
    assert b.logprobs == a.logprobs
    assert b.done.tolist() == a.done.tolist()
    assert (b.reason, b.text) == (a.reason, a.text)


PARAMS = [
    ds.SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=1, repetition_penalty=1.4, no_repeat_ngram_size=2),
    ds.SamplingParams(do_sample=False, frequency_penalty=0.7, presence_penalty=0.3, max_new_tokens=6),
    ds.SamplingParams(seed=2**64 - 1, min_p=0.1, bad_words_ids=[[3, 4], [5]], allowed_token_ids=list(range(0, 60, 2))),
    ds.SamplingParams(seed=3, typical_p=0.8, min_new_tokens=3, stop_token_ids=[7, 9], logprobs=2, logit_bias={1: 2.0}),
    ds.SamplingParams(seed=4, temperature=2.0, stop_strings=["bc"], suppress_tokens=[1, 2], begin_suppress_tokens=[3]),
]


def test_rows_go_the_way_that_they_go_on_the_cpu(monkeypatch):
    """Of a batch's logits nothing comes to the host: less than one row's."""
    gpu.forbid_copies_to_host(monkeypatch, VOCAB)
    rng = np.random.default_rng(1)
    prompts = [[1, 2, 3], [4], [3], [], [9, 9]]
    on_cpu, on_device = samplers(PARAMS, prompts, eos_token_id=8, token_bytes=lambda t: bytes([97 + t % 26]))
    for number in range(4):
        if number == 2:  # rows come and go
            for one in (on_cpu, on_device):
                one.remove(1)
                one.add(ds.SamplingParams(seed=6, top_p=0.5), [7])
        logits = logits_of(rng, len(on_cpu.rows))
        logits[:, 8] += 3 * (number > 2)  # ends come
        same(on_cpu.step(logits), on_device.step(gpu.on_device(logits)))
    assert any(row.reason for row in on_cpu.rows)
    for a, b in zip(on_cpu.rows, on_device.rows, strict=True):
        assert a.history.tokens == b.history.tokens
        assert a.logprobs == b.logprobs


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_logits_and_what_the_processors_leave(dtype):
    rng = np.random.default_rng(2)
    on_cpu, on_device = samplers(PARAMS[:2], [[1], [2]])
    logits = arrays.view("test", "logits", torch.from_numpy(logits_of(rng, 2)).to(getattr(torch, dtype)))
    there = gpu.on_device(logits)
    left = on_device.processed(there)
    assert left.device.type == gpu.DEVICE
    np.testing.assert_array_equal(gpu.on_host(left), on_cpu.processed(logits))
    same(on_cpu.step(logits), on_device.step(there))


def test_a_row_whose_steps_cannot_be_made_ends_alone():
    on_cpu, on_device = samplers(PARAMS[:2], [[1], [2]])

    def broken(_):
        raise KeyError("mine")

    on_device.rows[0].plan.tail.steps = broken
    logits = logits_of(np.random.default_rng(3), 2)
    want, result = on_cpu.step(logits), on_device.step(gpu.on_device(logits))
    assert result.reason == ("error", "") and isinstance(on_device.rows[0].error, KeyError)
    assert result.tokens.tolist() == [-1, want.tokens[1]]
    again = on_device.step(gpu.on_device(logits))
    assert again.tokens[0] == -1 and len(on_device.rows[0].history) == 1


def test_what_is_no_error_of_a_row_ends_all(monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    _, one = samplers(PARAMS[:2], [[1], [2]])
    monkeypatch.setattr(device_step, "decode_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        one.step(gpu.on_device(logits_of(np.random.default_rng(3), 2)))
    assert [row.reason for row in one.rows] == ["error", "error"]


def test_masks_of_a_constraint():
    params = ds.SamplingParams(seed=5, regex="[ab]+c", max_new_tokens=8)
    made = samplers([params], [[1]], eos_token_id=59, token_bytes=lambda t: b"" if t == 59 else bytes([97 + t % 26]))
    rng = np.random.default_rng(4)
    for _ in range(3):
        logits = logits_of(rng, 1)
        same(made[0].step(logits), made[1].step(gpu.on_device(logits)))


def test_what_is_refused_and_that_no_row_changes():
    _, one = samplers([PARAMS[0], PARAMS[1]], [[1], [2]])
    good = gpu.on_device(logits_of(np.random.default_rng(5), 2))
    for logits, message in (
        (good[:, :9], "Sampler: logits must be of shape 2x60"),
        (good[:1], "Sampler: logits must be of shape 2x60"),
        (good.double(), "Sampler: logits must be float32 or float16 or bfloat16"),
        (good.cpu().numpy(), "Sampler: backend must be able to serve the call; got 'triton'"),
    ):
        for call in (one.step, one.processed):
            with pytest.raises(ValueError, match=message):
                call(logits)
    assert [row.history.tokens for row in one.rows] == [[1], [2]]
    _, unfused = samplers([PARAMS[0]], [[1]], processors=[lambda ids, scores: scores])
    with pytest.raises(ValueError, match="processors must be fused where the logits are on a device; got function"):
        unfused.step(good[:1])
    with pytest.raises(ValueError, match="backend must be"):
        ds.Sampler(PARAMS[0], vocab_size=9, backend="gpu")


def test_accepted_tokens_are_checked_before_any_row_changes():
    one = ds.Sampler([PARAMS[1]] * 2, vocab_size=VOCAB, prompt_ids=[[1], [2]])
    rows = [row.native for row in one.rows]
    for given, tokens, message in (
        (rows, [3, VOCAB], "in \\[0, vocab\\)"),
        (rows, [3, -2], "in \\[0, vocab\\)"),
        (rows, [3, 2**70], "in \\[0, vocab\\)"),
        (rows, [3, 1.0], "integers"),
        (rows, [3], "one token for each row"),
        ([rows[0], rows[0]], [3, 4], "one step at a time"),
    ):
        with pytest.raises(ValueError, match=message):
            accept_tokens(given, tokens, VOCAB)
    with pytest.raises(ValueError, match="same vocabulary"):
        accept_tokens(rows, [3, 4], VOCAB + 1)
    assert accept_tokens(rows, [3, -1], VOCAB) == bytes([0, 4])
    assert [row.history.tokens for row in one.rows] == [[1, 3], [2]]
    assert accept_tokens(rows, [4, 5], VOCAB) == bytes([0, 0])
    assert [row.history.tokens for row in one.rows] == [[1, 3, 4], [2]]


def test_drafts_are_stepped_on_as_on_the_cpu():
    rng = np.random.default_rng(2)
    on_cpu, on_device = samplers(PARAMS[:2], [[1, 2, 3], [4]])
    for _ in range(2):
        logits = logits_of(rng, 7)
        logits[:, 11] += 40  # so that drafts are drawn
        drafts = [[11, 11, 11], [11, 5]]
        want = list(on_cpu.steps(logits, drafts))
        got = list(on_device.steps(gpu.on_device(logits), drafts))
        assert [indices for indices, _ in got] == [indices for indices, _ in want]
        for (_, one), (_, other) in zip(want, got, strict=True):
            same(one, other)
    assert len(want) > 1
