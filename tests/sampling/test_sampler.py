"""Sampler: heterogeneous batches, rows that come and go, every way of ending, `processed` against transformers' chain."""

from __future__ import annotations

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep import Sampler, SamplingParams
from decodestep.sampling.param_steps import build_processors
from support.tolerances import assert_close, assert_same_chain

VOCAB = 80
EOS = 2


def logits_of(rng, batch=1):
    return (rng.standard_normal((batch, VOCAB)) * 3).astype(np.float32)


def random_params(rng):
    maybe = lambda value, neutral: value if rng.random() < 0.35 else neutral  # noqa: E731
    some = lambda n: tuple(int(i) for i in rng.choice(VOCAB, n, replace=False))  # noqa: E731
    return SamplingParams(
        do_sample=rng.random() < 0.8,
        temperature=maybe(float(rng.uniform(0.3, 1.8)), 1.0),
        top_k=maybe(int(rng.integers(1, 50)), 0),
        top_p=maybe(float(rng.uniform(0.2, 0.99)), 1.0),
        min_p=maybe(float(rng.uniform(0.0, 0.3)), 0.0),
        typical_p=maybe(float(rng.uniform(0.3, 0.95)), 1.0),
        top_h=maybe(0.8, 1.0),
        epsilon_cutoff=maybe(0.01, 0.0),
        eta_cutoff=maybe(0.01, 0.0),
        top_n_sigma=maybe(2.0, 0.0),
        xtc_probability=maybe(0.5, 0.0),
        repetition_penalty=maybe(float(rng.uniform(0.8, 1.5)), 1.0),
        presence_penalty=maybe(0.4, 0.0),
        frequency_penalty=maybe(0.2, 0.0),
        dry_multiplier=maybe(0.7, 0.0),
        dry_sequence_breakers=(),
        no_repeat_ngram_size=maybe(2, 0),
        min_new_tokens=maybe(4, 0),
        logit_bias=maybe({5: 2.0, 7: -3.0}, None),
        bad_words_ids=maybe((some(1), some(2)), ()),
        suppress_tokens=maybe(some(3), ()),
        begin_suppress_tokens=maybe(some(3), ()),
        allowed_token_ids=maybe(some(60), None),
        remove_invalid_values=bool(rng.random() < 0.2),
        renormalize_logits=bool(rng.random() < 0.2),
        stop_token_ids=maybe(some(2), ()),
        max_new_tokens=maybe(int(rng.integers(1, 12)), None),
        logprobs=maybe(3, None),
        seed=int(rng.integers(0, 2**63)),
    )


def alone(params, prompt, rows):
    """A row's tokens when it is by itself: `rows` are the logits of its steps."""
    sampler = Sampler(params, vocab_size=VOCAB, eos_token_id=EOS, prompt_ids=[prompt])
    out = []
    for row in rows:
        result = sampler.step(row[None])
        out.append(int(result.tokens[0]))
        if result.done[0]:
            break
    return out, result.reason[0]


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_a_row_is_the_same_whoever_comes_and_goes(seed):
    rng = np.random.default_rng(seed)
    everyone = [(random_params(rng), rng.integers(0, VOCAB, rng.integers(0, 6)).tolist()) for _ in range(6)]
    own = [[logits_of(rng)[0] for _ in range(10)] for _ in everyone]
    sampler = Sampler([], vocab_size=VOCAB, eos_token_id=EOS, prompt_ids=[])
    inside, taken, ended = [], [[] for _ in everyone], {}
    for _ in range(30):
        for i in range(len(everyone)):
            if i not in inside and i not in ended and rng.random() < 0.4:
                sampler.add(*everyone[i])
                inside.append(i)
        if not inside:
            continue
        result = sampler.step(np.stack([own[i][len(taken[i])] for i in inside]))
        for place, i in reversed(list(enumerate(inside))):
            taken[i].append(int(result.tokens[place]))
            if result.done[place] or len(taken[i]) == 10:
                ended[i] = result.reason[place]
                sampler.remove(place)
                inside.remove(i)
    for i in ended:
        assert (taken[i], ended[i]) == alone(*everyone[i], own[i])


@pytest.mark.slow
@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_processed_is_what_the_chain_of_classes_gives(seed):
    rng = np.random.default_rng(seed)
    params = [random_params(rng) for _ in range(3)]
    prompts = [rng.integers(0, VOCAB, rng.integers(1, 9)).tolist() for _ in params]
    logits = logits_of(rng, 3).astype(np.float64)
    sampler = Sampler(params, vocab_size=VOCAB, eos_token_id=EOS, prompt_ids=prompts)
    got = sampler.processed(logits)
    for b, (row, prompt) in enumerate(zip(params, prompts, strict=True)):
        scores = logits[b : b + 1]
        try:
            for c in build_processors(row, prompt_length=len(prompt), vocab_size=VOCAB, eos_token_ids={EOS}):
                scores = c(np.array([prompt]), scores)
        except ValueError:
            assert not np.isfinite(got[b]).any()
            continue
        scores = np.where(np.isnan(scores), -np.inf, scores)
        np.testing.assert_array_equal(np.isfinite(got[b]), np.isfinite(scores[0]))
        assert_same_chain(got[b], scores[0])


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_ended_rows_may_stay_where_they_are(seed):
    rng = np.random.default_rng(seed)
    params = [random_params(rng) for _ in range(7)]
    prompts = [rng.integers(0, VOCAB, rng.integers(0, 6)).tolist() for _ in params]
    logits = [logits_of(rng, 7) for _ in range(8)]
    sampler = Sampler(params, vocab_size=VOCAB, eos_token_id=EOS, prompt_ids=prompts)
    results = [sampler.step(batch) for batch in logits]
    for b in range(7):
        tokens, reason = alone(params[b], prompts[b], [batch[b] for batch in logits])
        assert [int(result.tokens[b]) for result in results] == tokens + [-1] * (8 - len(tokens))
        assert [result.reason[b] for result in results[len(tokens) :]] == [reason] * (8 - len(tokens))
        reported = [result.logprobs[b] for result in results if result.logprobs[b] is not None]
        held = sampler.rows[b].logprobs
        assert held == reported and held[-2:] == reported[-2:]


def test_log_probabilities_are_held_compactly():
    """20 alternatives are 480 bytes a token as numbers, and 5000 as Python's objects: gigabytes in a server's long rows."""
    rng = np.random.default_rng(1)
    logits = [logits_of(rng, 1) for _ in range(40)]
    sampler = Sampler(SamplingParams(logprobs=20, ignore_eos=True, max_new_tokens=1010), vocab_size=VOCAB, prompt_ids=[[1]])
    for _ in range(10):
        sampler.step(logits[0])
    tracemalloc.start()
    try:
        for batch in logits * 25:
            sampler.step(batch)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(sampler.rows[0].logprobs) == 1010 and held < 1000 * 1010


def chain_of_transformers(config, prompt_length, own=()):
    from transformers import LlamaConfig, LlamaForCausalLM

    tiny = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
        )
    )
    return tiny._get_logits_processor(
        config,
        input_ids_seq_length=prompt_length,
        encoder_input_ids=torch.zeros((1, prompt_length), dtype=torch.long),
        logits_processor=list(own),
        device="cpu",
    )


class Own:
    """A processor of the caller."""

    def __call__(self, input_ids, scores):
        return scores * 0.5


@pytest.mark.parametrize("settings_", [{}, {"do_sample": False}, {"top_k": 5}, {"temperature": 1.0, "top_p": 1.0}], ids=str)
@pytest.mark.parametrize("after", [{}, {"renormalize_logits": True}, {"watermarking_config": {"bias": 1.5}}], ids=str)
def test_own_processors_are_where_transformers_has_them(settings_, after, rng):
    from transformers import GenerationConfig

    settings_ = {"do_sample": True, "top_k": 0, "repetition_penalty": 1.5, **settings_, **after}
    theirs = chain_of_transformers(GenerationConfig(**settings_, eos_token_id=2), 4, [Own()])
    params = SamplingParams.from_generation_config(GenerationConfig(**settings_))
    sampler = Sampler(params, vocab_size=VOCAB, prompt_ids=[[1, 2, 3, 4]], processors=[Own()])
    assert [type(c).__name__ for c in sampler.rows[0].plan.processors] == [type(c).__name__ for c in theirs]
    logits = logits_of(rng, 1)
    expected = theirs(torch.tensor([[1, 2, 3, 4]]), torch.from_numpy(logits)).numpy()
    assert_close(sampler.processed(logits), expected)


def test_the_default_order_is_that_of_transformers():
    from transformers import GenerationConfig

    settings_ = {
        "do_sample": True,
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[5]],
        "min_length": 9,
        "min_new_tokens": 4,
        "forced_bos_token_id": 1,
        "forced_eos_token_id": 2,
        "remove_invalid_values": True,
        "exponential_decay_length_penalty": (3, 1.1),
        "suppress_tokens": [7],
        "begin_suppress_tokens": [8],
        "sequence_bias": [[[4, 3], 1.0]],
        "temperature": 0.7,
        "top_h": 0.9,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.9,
        "epsilon_cutoff": 0.01,
        "eta_cutoff": 0.01,
        "renormalize_logits": True,
        "max_new_tokens": 10,
        "watermarking_config": {"bias": 1.5},
    }
    config = GenerationConfig(**settings_, eos_token_id=2, pad_token_id=0)
    config._eos_token_tensor = torch.tensor([2])
    config.max_length = 14
    theirs = chain_of_transformers(config, 4)
    # Of a config, min_new_tokens takes the place of min_length; this chain has both.
    params = SamplingParams.from_generation_config(GenerationConfig(**settings_), min_length=9)
    ours = build_processors(params, prompt_length=4, vocab_size=VOCAB, eos_token_ids={2})
    assert [type(c).__name__ for c in ours] == [type(c).__name__ for c in theirs]
    Sampler(params, vocab_size=VOCAB, eos_token_id=2, prompt_ids=[[1, 2, 3, 4]])


@pytest.mark.parametrize("forced", [None, 1])
def test_tokens_that_are_not_drawn_first_after_a_forced_one(forced, rng):
    """Fused steps and classes against transformers, in a batch of prompts of which one alone is short enough to be forced."""
    from transformers import GenerationConfig

    settings_ = {"forced_bos_token_id": forced, "begin_suppress_tokens": [2, 3]}
    params, histories = SamplingParams(**settings_, do_sample=False), [[7], [7, 8], [4, 5, 6], [9]]
    sampler = Sampler(params, vocab_size=VOCAB, prompt_ids=histories)
    theirs = [chain_of_transformers(GenerationConfig(**settings_), len(ids)) for ids in histories]
    classes = [build_processors(params, prompt_length=len(ids), vocab_size=VOCAB, eos_token_ids=set()) for ids in histories]
    for _ in range(4):
        logits = logits_of(rng, len(histories))
        logits[:, 2:4] += 20
        fused = sampler.processed(logits)
        tokens = sampler.step(logits).tokens
        for b, ids in enumerate(histories):
            expected = theirs[b](torch.tensor([ids]), torch.from_numpy(logits[b : b + 1]))[0].numpy()
            scores = logits[b : b + 1]
            for each in classes[b]:
                scores = each(np.array([ids]), scores)
            np.testing.assert_array_equal(fused[b], expected)
            np.testing.assert_array_equal(scores[0], expected)
            assert tokens[b] == expected.argmax()
            ids.append(int(tokens[b]))


def row(**params):
    return Sampler(
        SamplingParams(**params),
        vocab_size=VOCAB,
        eos_token_id=[EOS, 3],
        prompt_ids=[[9, 9]],
        token_bytes=lambda token: bytes([97 + token % 26]),
    )


def peak(token):
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, token] = 50
    return logits


@pytest.mark.parametrize(
    ("params", "tokens", "reason"),
    [
        ({}, [5, EOS], "eos"),
        ({}, [3], "eos"),
        ({"ignore_eos": True, "max_new_tokens": 2}, [EOS, 3], "length"),
        ({"stop_token_ids": [7]}, [5, 7], "stop"),
        ({"max_new_tokens": 1}, [5], "length"),
        ({"max_new_tokens": 1}, [EOS], "eos"),
        ({"stop_strings": "bc"}, [1, 2 + 26], "stop"),
        ({"max_time": 1e-9}, [5], "time"),
    ],
)
def test_every_way_of_ending(params, tokens, reason):
    sampler = row(do_sample=False, **params)
    for token in tokens[:-1]:
        assert not sampler.step(peak(token)).done[0]
    result = sampler.step(peak(tokens[-1]))
    assert result.tokens.tolist() == tokens[-1:]
    assert (bool(result.done[0]), result.reason[0]) == (True, reason)
    after = sampler.step(peak(5))
    assert after.tokens.tolist() == [-1]
    assert after.reason[0] == reason


def test_a_row_may_have_end_tokens_of_its_own():
    assert row(do_sample=False, eos_token_id=7).step(peak(7)).reason == ("eos",)
    assert row(do_sample=False, eos_token_id=7).step(peak(EOS)).reason == ("",)
    for end in (7, {7}, np.array(7), torch.tensor(7), torch.tensor([7])):
        sampler = Sampler(SamplingParams(do_sample=False), vocab_size=VOCAB, eos_token_id=end)
        assert sampler.step(peak(7)).reason == ("eos",)
    held = row(do_sample=False, eos_token_id=(7, 8), min_new_tokens=1)
    assert held.step(peak(7) + peak(8)).tokens[0] not in (7, 8)


def test_max_length_counts_the_prompt():
    sampler = row(do_sample=False, max_length=4)  # a prompt of 2
    assert [sampler.step(peak(5)).reason[0] for _ in range(2)] == ["", "length"]
    assert row(do_sample=False, max_length=9, max_new_tokens=1).step(peak(5)).reason == ("length",)
    forced = row(do_sample=False, max_length=3, forced_eos_token_id=6)
    assert forced.step(peak(5)).tokens.tolist() == [6]
    with pytest.raises(ValueError, match="^Sampler: max_length must be above the 2 tokens of the prompt; got 2"):
        row(max_length=2)


def test_an_infinite_bias_forbids_its_token():
    for biases in ({"logit_bias": {5: -np.inf}}, {"sequence_bias": {(5,): -np.inf}}):
        sampler = row(**biases)
        assert sampler.processed(peak(5))[0, 5] == -np.inf
        assert all(sampler.step(peak(5)).tokens[0] != 5 for _ in range(5))


def test_min_tokens_holds_back_every_end():
    sampler = row(do_sample=False, min_tokens=2, stop_token_ids=[7])
    for _ in range(2):
        logits = peak(EOS) + peak(3) + peak(7)
        assert sampler.step(logits).tokens[0] not in (EOS, 3, 7)
    assert sampler.step(peak(EOS)).reason[0] == "eos"


def test_min_tokens_holds_back_stop_strings_and_min_new_tokens_does_not():
    """A string that is complete within the first tokens is passed over for good."""
    for least, steps, text in (({"min_tokens": 2}, 3, "ff"), ({"min_new_tokens": 2}, 1, ""), ({"min_tokens": 0}, 1, "")):
        params = SamplingParams(do_sample=False, stop_strings=["f", "zz"], max_new_tokens=9, **least)
        sampler = Sampler(params, vocab_size=VOCAB, token_bytes=lambda token: bytes([97 + token % 26]), prompt_ids=[[1]])
        reasons = [sampler.step(peak(5)).reason[0] for _ in range(steps)]
        assert reasons == [""] * (steps - 1) + ["stop"] and sampler.rows[0].text.text == text


@pytest.mark.parametrize("logits", [np.full((1, VOCAB), -np.inf), np.full((1, VOCAB), np.nan)])
def test_a_row_without_a_candidate_ends_and_says_so(logits):
    for greedy in (True, False):
        result = row(do_sample=not greedy, top_p=0.5).step(logits.astype(np.float32))
        assert (result.tokens.tolist(), result.reason) == ([-1], ("no_candidate",))


def test_contradictory_constraints_end_the_row_and_never_draw_what_is_banned():
    sampler = row(allowed_token_ids=[5, 6], suppress_tokens=[5, 6])
    assert sampler.step(peak(5)).reason == ("no_candidate",)
    narrow = row(allowed_token_ids=[5, 6], bad_words_ids=[[5]], top_k=3)
    assert {int(narrow.step(peak(5)).tokens[0]) for _ in range(20)} == {6}


def test_torch_and_half_precision():
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(seed=1, top_k=9), SamplingParams(seed=2, logprobs=1)]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        ours = Sampler(params, vocab_size=VOCAB).step(logits.to(dtype))
        assert isinstance(ours.tokens, torch.Tensor)
        plain = Sampler(params, vocab_size=VOCAB).step(logits.to(dtype).float().numpy())
        assert ours.tokens.tolist() == plain.tokens.tolist()


def test_a_users_own_processor_stands_before_the_temperature():
    seen = []

    def own(input_ids, scores):
        seen.append((input_ids.tolist(), float(scores[0, 5])))
        return scores

    sampler = Sampler(
        SamplingParams(temperature=0.5, repetition_penalty=2.0), vocab_size=VOCAB, prompt_ids=[[5]], processors=[own]
    )
    sampler.step(peak(5))
    assert seen == [([[5]], 25.0)]
    assert "own" in sampler.explain()


def test_raw_log_probabilities_are_of_the_logits_before_a_users_own_processor():
    logits = np.float32([[3, 2, 1, 0], [3, 2, 1, 0]])
    params = SamplingParams(do_sample=False, logprobs=3)
    plain = Sampler(params, vocab_size=4, prompt_ids=[[1]]).step(logits[:1]).logprobs[0]
    sampler = Sampler(params, vocab_size=4, prompt_ids=[[1], [1]], processors=[lambda ids, scores: scores * [[0, 0, 1, 0]]])
    forced = Sampler(params, vocab_size=4, prompt_ids=[[1]], processors=[lambda ids, s: np.where([[0, 0, 1, 0]], s, -np.inf)])
    for step in (*sampler.step(logits).logprobs, *forced.step(logits[:1]).logprobs):
        assert step.raw == pytest.approx(plain.top_raw[2][1], abs=1e-6)
        assert [token for token, _ in step.top_raw] == [0, 1, 2]
        assert [value for _, value in step.top_raw] == pytest.approx([value for _, value in plain.top_raw], abs=1e-6)
    assert sampler.step(logits).logprobs[0].processed == pytest.approx(1 - np.log(np.e + 3))


def test_samplers_choose_the_order():
    names = ("top_p", "temperature")
    given_ = SamplingParams(temperature=0.2, top_p=0.6, samplers=names)
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))
    kept = lambda params: int(np.isfinite(Sampler(params, vocab_size=4).processed(logits)).sum())  # noqa: E731
    assert kept(given_) == 2
    assert kept(SamplingParams(temperature=0.2, top_p=0.6)) == 1


def test_explain_tells_rows_of_one_plan_together():
    text = Sampler([SamplingParams(top_k=3), SamplingParams(), SamplingParams(top_k=3)], vocab_size=VOCAB).explain()
    assert text.splitlines()[0] == "row 0, 2"
    assert "TopKLogitsWarper(top_k=3)" in text


BAD = [
    ("vocab_size", {"vocab_size": 0}),
    ("vocab_size", {"vocab_size": 2**70}),
    ("eos_token_id", {"eos_token_id": VOCAB}),
    ("prompt_ids", {"prompt_ids": [[VOCAB]]}),
    ("prompt_ids", {"prompt_ids": [[-1]]}),
    ("params", {"params": [SamplingParams()] * 2, "prompt_ids": [[1]]}),
    ("token_bytes", {"params": SamplingParams(stop_strings="x")}),
    ("token_bytes", {"token_bytes": [b"x"]}),
    ("spelled_bytes", {"spelled_bytes": b"x"}),
    ("encode", {"encode": "utf-8"}),
    ("allowed_token_ids", {"params": SamplingParams(allowed_token_ids=[VOCAB])}),
    ("logit_bias", {"params": SamplingParams(logit_bias={VOCAB: 1.0})}),
    ("bad_words_ids", {"params": SamplingParams(bad_words_ids=[[1, VOCAB]])}),
    ("stop_token_ids", {"params": SamplingParams(stop_token_ids=[VOCAB])}),
    ("eos_token_id", {"params": SamplingParams(eos_token_id=VOCAB)}),
    ("forced_bos_token_id", {"params": SamplingParams(forced_bos_token_id=VOCAB)}),
    ("forced_eos_token_id", {"params": SamplingParams(forced_eos_token_id=[1, VOCAB])}),
    ("dry_sequence_breakers", {"params": SamplingParams(dry_sequence_breakers=[VOCAB])}),
    ("eos_token_id", {"eos_token_id": True}),
    ("prompt_ids", {"prompt_ids": [1, 2]}),
    ("prompt_ids", {"prompt_ids": [b"\x01"]}),
    ("prompt_ids", {"prompt_ids": 5}),
    ("params", {"params": 5}),
    ("params", {"params": [{"top_k": 5}]}),
    ("params", {"params": SamplingParams(num_beams=2)}),
]


@pytest.mark.parametrize(("name", "options"), BAD)
def test_refuses(name, options):
    options = {"params": SamplingParams(), "vocab_size": VOCAB, **options}
    with pytest.raises(ValueError, match=rf"^Sampler: {name} must be .*; got "):
        Sampler(options.pop("params"), **options)


def test_refuses_logits_of_another_shape_and_rows_that_are_not_there():
    sampler = Sampler(SamplingParams(), vocab_size=VOCAB, prompt_ids=[[1]])
    for shape in ((2, VOCAB), (1, VOCAB - 1), (VOCAB,)):
        with pytest.raises(ValueError, match="^Sampler: logits must be of shape 1x80"):
            sampler.step(np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="^Sampler: index must be"):
        sampler.remove(1)
    assert ds.Sampler is Sampler


@pytest.mark.parametrize("dtype", [np.int64, np.float64, bool])
def test_logits_of_another_dtype_reach_no_processor(dtype):
    called = []
    sampler = Sampler(
        SamplingParams(), vocab_size=VOCAB, prompt_ids=[[1]], processors=[lambda ids, scores: called.append(1) or scores]
    )
    with pytest.raises(ValueError, match="logits must be float32 or float16 or bfloat16"):
        sampler.step(np.zeros((1, VOCAB), dtype))
    assert not called and sampler.rows[0].reason == ""
    if dtype is not np.float64:
        with pytest.raises(ValueError, match="logits must be float32"):
            sampler.processed(np.zeros((1, VOCAB), dtype))


@pytest.mark.filterwarnings("error")
def test_biases_past_the_range_of_floats_are_silent():
    params = ds.SamplingParams(sequence_bias={(3,): 1e300, (1, 2): -1e300}, do_sample=False)
    processed = ds.Sampler(params, vocab_size=4, prompt_ids=[[1]]).processed(np.zeros((1, 4), np.float32))
    assert processed.tolist() == [[0.0, 0.0, -np.inf, np.inf]]


def test_a_length_penalty_past_the_range_of_floats():
    params = ds.SamplingParams(exponential_decay_length_penalty=(0, 2.0), do_sample=False, max_new_tokens=None)
    sampler = ds.Sampler(params, vocab_size=4, eos_token_id=3, prompt_ids=[[1]])
    logits = np.float32([[0, 1, 2, 0]])  # an end token of score 0 is never lifted
    for _ in range(1100):  # 2 ** 1024 has no float64
        assert sampler.step(logits).tokens.tolist() == [2]
    ended = ds.Sampler(params, vocab_size=4, eos_token_id=3, prompt_ids=[[1]])
    assert ended.step(np.float32([[0, 1, 2, 1]])).tokens.tolist() == [2]
    assert ended.step(np.float32([[0, 1, 2, 1.5]])).tokens.tolist() == [3]


def test_a_row_without_a_seed_draws_one_when_it_is_added():
    sampler = Sampler(SamplingParams(top_k=40, xtc_probability=0.5), vocab_size=VOCAB, prompt_ids=[[1]] * 8)
    seeds = [row.seed for row in sampler.rows]
    assert len(set(seeds)) == 8
    logits = np.zeros((8, VOCAB), np.float32)
    drawn = [sampler.step(logits).tokens.tolist() for _ in range(4)]
    assert len({tuple(column) for column in zip(*drawn, strict=True)}) > 1  # one logits, one history, but not one noise
    given = [SamplingParams(top_k=40, xtc_probability=0.5, seed=seed) for seed in seeds]
    again = Sampler(given, vocab_size=VOCAB, prompt_ids=[[1]] * 8)
    assert [again.step(logits).tokens.tolist() for _ in range(4)] == drawn
    with pytest.raises(ValueError, match="^Sampler: params must be of one sample"):
        sampler.add(SamplingParams(num_return_sequences=2))


@pytest.mark.parametrize("name", ["suppress_tokens", "begin_suppress_tokens", "forced_eos_token_id", "allowed_token_ids"])
def test_ids_may_be_named_more_often_than_there_are_tokens(name):
    params = SamplingParams(**{name: [1] * 5}, max_new_tokens=1, seed=0)
    sampler = Sampler(params, vocab_size=3, prompt_ids=[[0]])
    drawn = sampler.step(np.zeros((1, 3), np.float32)).tokens[0]
    assert (drawn == 1) == (name in ("forced_eos_token_id", "allowed_token_ids"))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_sampler_is_neither_copied_nor_pickled(duplicate):
    """A shallow copy stepped the rows of its original."""
    with pytest.raises(TypeError, match="a Sampler cannot be copied or pickled: make another with the same params and prompts"):
        duplicate(Sampler(SamplingParams(), vocab_size=VOCAB, prompt_ids=[[1]]))


def test_a_row_of_another_vocabulary_is_not_resumed():
    row = Sampler([], vocab_size=5).new_row(SamplingParams(), [1])
    sampler = Sampler([], vocab_size=6)
    with pytest.raises(ValueError, match="^Sampler: row must be of a vocabulary of 6 tokens; got one of 5"):
        sampler.resume(row)
    assert sampler.rows == []
