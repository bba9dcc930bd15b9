"""The processors that a caller adds: shared ones, factories, ones with state, ones that are told which row they serve."""

from __future__ import annotations

import numpy as np
import pytest

import decodestep as ds
from decodestep import Sampler, SamplingParams, processors
from support import late_annotations

VOCAB = 40


def step(sampler):
    return sampler.step(np.zeros((len(sampler.rows), VOCAB), np.float32))


def build_sampler(given, rows=3):
    return Sampler(SamplingParams(do_sample=False), vocab_size=VOCAB, prompt_ids=[[7]] * rows, processors=given)


class Counts(processors.LogitsProcessor):
    """Allows token n at its n-th call."""

    stateful = True

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return np.where(np.arange(VOCAB) == self.calls, scores, -np.inf)


STATEFUL = [
    Counts(),
    processors.SynthIDTextWatermarkLogitsProcessor(5, [1, 2], 64, 0, 8, device="cpu"),
    processors.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, None),
    processors.DiaEOSDelayPatternLogitsProcessor([0, 1], 5, 10, "cpu"),
    processors.WhisperNoSpeechDetection(5, 0, False),
]


@pytest.mark.parametrize("shared", STATEFUL, ids=lambda shared: type(shared).__name__)
def test_a_shared_object_with_state_serves_one_row(shared):
    build_sampler([shared], rows=1)
    with pytest.raises(
        ValueError, match=rf"^Sampler: processors must be a factory .*got one {type(shared).__name__}, with state"
    ):
        build_sampler([shared], rows=2)


@pytest.mark.parametrize("made", STATEFUL, ids=lambda made: type(made).__name__)
def test_state_does_not_follow_beams(made):
    for given in ([made], lambda row: [made]):
        sampler = build_sampler(given, rows=0)
        with pytest.raises(ValueError, match=f"^Sampler: processors must be without state .*got {type(made).__name__}"):
            sampler.new_row(SamplingParams(do_sample=False), [7], num_beams=2)
        assert sampler.new_row(SamplingParams(do_sample=False), [7])


def test_a_refused_row_does_not_use_up_a_processor_with_state():
    sampler = build_sampler([Counts()], rows=0)
    with pytest.raises(ValueError, match="prompt_ids"):
        sampler.add(SamplingParams(), [VOCAB])
    sampler.add(SamplingParams(), [1])


def test_a_factory_makes_processors_for_each_row():
    numbers = []

    def factory(row):
        numbers.append(row)
        return [Counts()]

    sampler = build_sampler(factory)
    assert [step(sampler).tokens.tolist() for _ in range(2)] == [[1] * 3, [2] * 3]
    sampler.remove(0)
    sampler.add(SamplingParams(do_sample=False), [7])
    assert step(sampler).tokens.tolist() == [3, 3, 1]
    sampler.add(SamplingParams(do_sample=False), [7], number=17)
    assert numbers == [0, 1, 2, 3, 17]


def test_a_factory_is_annotated_with_what_type_checkers_know():
    sampler = build_sampler(late_annotations.define("def made(row: Number) -> list[Unknown]: return []"))
    assert len(sampler.rows) == 3


def test_generate_calls_a_factory_with_the_prompt(model):
    told = []
    params = SamplingParams(max_new_tokens=1, seed=1)
    beams = SamplingParams(max_new_tokens=1, num_beams=2, do_sample=False)
    two = SamplingParams(max_new_tokens=1, seed=1, num_return_sequences=2)
    ds.generate(model, ["a", "b", "c"], [params, beams, two], processors=lambda row: told.append(row) or [])
    assert told == [0, 1, 2, 2]


def test_a_prefix_function_is_told_the_row(model):
    told = []

    def allowed(row, ids):
        told.append(row)
        return [row + 10]

    shared = [processors.PrefixConstrainedLogitsProcessor(allowed, 1)]
    assert step(build_sampler(shared)).tokens.tolist() == [10, 11, 12]
    params = SamplingParams(max_new_tokens=1, do_sample=False)
    wide = SamplingParams(max_new_tokens=1, do_sample=False, num_beams=2)
    done = ds.generate(model, ["a", "b"], [wide, params], processors=shared)
    assert [one.token_ids for one in done] == [[10], [11]]


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("made", ["a list", "a factory"])
def test_a_prefix_function_is_told_the_row_for_every_beam(model, num_beams, made):
    told = []

    def allowed(row, ids):
        told.append(row)
        return [row + 10, row + 20, row + 30]

    shared = [processors.PrefixConstrainedLogitsProcessor(allowed, num_beams)]
    params = [SamplingParams(max_new_tokens=3, do_sample=False, num_beams=n) for n in (1, 3, 3)]
    for row, one in enumerate(
        ds.generate(model, ["a", "b", "c"], params, processors=shared if made == "a list" else lambda row: shared)
    ):
        assert one.error is None and {token % 10 for token in one.token_ids} == {row}
    assert set(told) == {0, 1, 2}


def test_a_list_class_that_can_be_called_is_a_sequence():
    chain = processors.LogitsProcessorList([processors.AllowedTokenIdsLogitsProcessor([5])])
    assert step(build_sampler(chain)).tokens.tolist() == [5] * 3


@pytest.mark.parametrize(
    "given",
    [lambda ids, scores: scores, processors.TopKLogitsWarper(3), 5, None, lambda: None],
    ids=["a function", "a processor", "a number", "None", "a function of nothing"],
)
def test_refuses_what_is_neither(given):
    with pytest.raises(
        ValueError, match="^Sampler: processors must be a sequence of processors, or a function of a row's number"
    ):
        build_sampler(given)


def test_refuses_a_factory_that_makes_no_sequence():
    with pytest.raises(ValueError, match="^Sampler: processors must be a function that returns a sequence"):
        build_sampler(lambda row: Counts())


def test_encoder_rows_of_several_are_refused():
    def shared(rows):
        return [processors.EncoderRepetitionPenaltyLogitsProcessor(2.0, np.arange(rows * 2).reshape(rows, 2))]

    with pytest.raises(ValueError, match="^plan: encoder_input_ids must be one row"):
        build_sampler(shared(2))
    assert build_sampler(shared(1)).rows[0].reason == ""


def test_packed_masks_of_a_caller_are_steps_of_the_core(rng):
    """In any integration, since each takes processors: the same tokens as with the list of what they allow."""
    vocab = 1000
    masks = [rng.random(vocab) < share for share in (0.5, 0.001, 0.9, 1.0, 0.2)]
    words = [np.packbits(np.append(mask, np.ones(24, bool)), bitorder="little").view(np.int32) for mask in masks]
    packed = processors.AllowedBitsLogitsProcessor(lambda tokens: words[len(tokens)] if len(tokens) != 3 else None)
    params = SamplingParams(seed=3, top_p=0.9)
    sampler = Sampler(params, vocab_size=vocab, processors=[packed])
    plan = sampler.rows[0].plan
    assert not plan.unfused
    for place, mask in enumerate(masks):
        logits = rng.normal(size=(1, vocab)).astype(np.float32)
        listed = Sampler(params, vocab_size=vocab, prompt_ids=[sampler.rows[0].history.tokens],
                         processors=[processors.AllowedTokenIdsLogitsProcessor(np.flatnonzero(mask))])  # fmt: skip
        assert sampler.step(logits).tokens[0] == listed.step(logits).tokens[0], place


def test_bad_words_are_their_tokens_alone_and_after_a_blank():
    texts = ["a", " a", "b", " b", "a b", " "]
    encode = {"a": [0], " a": [1], "a b": [0, 3], " a b": [1, 3]}.__getitem__
    options = {"vocab_size": 6, "encode": encode, "token_bytes": lambda i: texts[i].encode()}
    logits = np.array([[9.0, 8, 2, 1, 0, 0]], np.float32)
    sampler = Sampler(SamplingParams(bad_words="a", do_sample=False), **options)
    assert sampler.step(logits).tokens[0] == 2
    sampler = Sampler(SamplingParams(bad_words=["a b"], do_sample=False), **options)
    after = np.array([[0.0, 0, 2, 3, 0, 0]], np.float32)
    assert [sampler.step(each).tokens[0] for each in (logits, after, after)] == [0, 2, 3]
    with pytest.raises(ValueError, match="encode must be given where a row has bad_words"):
        Sampler(SamplingParams(bad_words="a"), vocab_size=6)


def test_breakers_of_dry_are_tokens_or_texts_that_tokens_have():
    texts = ["a", "b\n", "c", ": x"]
    options = {"vocab_size": 4, "prompt_ids": [[0, 1, 2, 0, 1]]}
    logits = np.array([[0.0, 0, 1, 0.5]], np.float32)
    dry = {"dry_multiplier": 9.0, "dry_allowed_length": 1, "do_sample": False}
    plain = Sampler(SamplingParams(dry_sequence_breakers=(), **dry), **options).processed(logits)
    assert plain[0, 2] < 0.5
    by_text = {"token_bytes": lambda i: texts[i].encode()}
    for breakers in (None, "\n", ["\n", ":"], [1], [3, "\n"]):
        sampler = Sampler(SamplingParams(dry_sequence_breakers=breakers, **dry), **options, **by_text)
        np.testing.assert_array_equal(sampler.processed(logits), logits)
    for breakers in ((), ":", [3]):  # none of the usual ones beside those that are given
        sampler = Sampler(SamplingParams(dry_sequence_breakers=breakers, **dry), **options, **by_text)
        np.testing.assert_array_equal(sampler.processed(logits), plain)
    for breakers in ("\n", None):
        with pytest.raises(ValueError, match="token_bytes must be given where dry_sequence_breakers has strings, or is None"):
            Sampler(SamplingParams(dry_sequence_breakers=breakers, **dry), **options)
        Sampler(SamplingParams(dry_sequence_breakers=breakers), **options)  # without DRY nothing is looked for
