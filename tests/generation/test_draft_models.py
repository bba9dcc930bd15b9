"""Drafts by a smaller model: the row's own draws accept them as often as coupling promises."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest

import decodestep as ds
from decodestep import SamplingParams
from decodestep.generation.drafts.coupled_row import CoupledRow
from decodestep.generation.drafts.draft_model import DraftModel
from decodestep.generation.drafts.drafter import Drafter
from decodestep.sampling.row import Row
from decodestep.sampling.row_factory import RowFactory
from support import tiny_gguf_files
from support.tiny_gguf_files import VOCABULARY

PROMPT = [5, 6, 7, 8, 9]
# The model's logits have a deviation of about 2.
KINDS = [
    SamplingParams(do_sample=False),
    SamplingParams(seed=1, temperature=0.7),
    SamplingParams(seed=2, top_p=0.9, repetition_penalty=1.2),
    SamplingParams(seed=3, top_k=20, presence_penalty=0.5),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return ds.load(tiny_gguf_files.write(tmp_path_factory.mktemp("model") / "target.gguf", context=400))


@pytest.fixture(scope="module")
def noisy_file(tmp_path_factory):
    """The target with noise on its weights."""
    path = tiny_gguf_files.write(tmp_path_factory.mktemp("model") / "noisy.gguf", context=400)
    rng = np.random.default_rng(1)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        tensor.data[:] += 0.04 * np.std(tensor.data) * rng.standard_normal(tensor.data.shape).astype(np.float32)
    return path


@pytest.fixture
def noisy(noisy_file):
    return ds.load(noisy_file)


class Text:
    """A row of the target, and the drafter of it: a step of `advance` is what a batch does with a draft."""

    def __init__(self, target: ds.Model, source: DraftModel, params: SamplingParams, prompt: list[int] = PROMPT) -> None:
        self.target = target
        self.row: Row = RowFactory(VOCABULARY).row(params, prompt)
        self.drafter: Drafter = source(self.row)
        self.sequence = target.sequence()
        self.drafted = self.accepted = 0

    def advance(self, draft: list[int]) -> None:
        tokens = self.row.history.tokens
        logits = self.target.forward([(self.sequence, [*tokens[len(self.sequence) :], *draft])], every=True)
        taken = self.row.step(logits[-len(draft) - 1 :], draft)
        self.drafted += len(draft)
        self.accepted += len(taken) - 1
        self.sequence.truncate(len(self.row.history) - 1)

    def wanted(self, count: int) -> list[int]:
        """The tokens that the target draws without drafts."""
        prompt = self.row.history.tokens[: self.row.history.prompt_length]
        params = replace(self.row.params, max_new_tokens=count, ignore_eos=True)
        return ds.generate(self.target, [prompt], params)[0].token_ids


def run(text: Text, limit: int, count: int) -> None:
    while len(text.row.history) - text.row.history.prompt_length < count and not text.row.reason:
        text.advance(list(text.drafter.propose(text.row, limit)))


@pytest.mark.parametrize("params", KINDS)
def test_a_model_that_drafts_for_itself_is_always_right(target, params):
    text = Text(target, DraftModel(target, target), params)
    run(text, 4, 60)
    assert text.row.history.tokens[len(PROMPT) :][:60] == text.wanted(60)
    assert text.accepted == text.drafted >= 40


@pytest.mark.parametrize("params", KINDS)
def test_another_model_changes_no_token(target, noisy, params):
    text = Text(target, DraftModel(noisy, target), params)
    for limit in (1, 3, 7, 2, 5):
        run(text, limit, len(text.row.history) + 30)
    count = len(text.row.history) - len(PROMPT)
    assert text.row.history.tokens[len(PROMPT) :] == text.wanted(count)
    assert 0 < text.accepted < text.drafted


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_acceptance_is_what_coupling_promises(target, noisy, temperature):
    """Over all positions of sampled texts; each draws once with the row's noise, and once with another seed's."""
    same, promised, independent = [], [], []
    for seed in range(4):
        params = SamplingParams(seed=seed, temperature=temperature, max_new_tokens=200, ignore_eos=True)
        tokens = [*PROMPT, *ds.generate(target, [PROMPT], params)[0].token_ids]
        row = RowFactory(VOCABULARY).row(params, PROMPT)
        coupled = CoupledRow(row)
        p, q = (distributions(model.logits(tokens[:-1])[len(PROMPT) - 1 :], temperature) for model in (target, noisy))
        variation = np.abs(p - q).sum(1) / 2
        promised += ((1 - variation) / (1 + variation)).tolist()
        independent += (p * q).sum(1).tolist()
        for place, logits in enumerate(noisy.logits(tokens[:-1])[len(PROMPT) - 1 :]):
            coupled.follow(tokens[: len(PROMPT) + place])
            same.append(coupled.draw(logits) == tokens[len(PROMPT) + place])
    error = np.sqrt(np.mean(same) * (1 - np.mean(same)) / len(same))
    assert np.mean(same) >= np.mean(promised) - 2 * error
    assert temperature == 0 or np.mean(same) > np.mean(independent) + 10 * error


def distributions(logits: np.ndarray, temperature: float) -> np.ndarray:
    if temperature == 0:
        return np.eye(logits.shape[1])[logits.argmax(1)]
    raised = np.exp((logits.astype(np.float64) - logits.max(1, keepdims=True)) / temperature)
    return raised / raised.sum(1, keepdims=True)


def test_rows_draft_together_in_one_pass_for_each_token(target, noisy, monkeypatch):
    source = DraftModel(noisy, target)
    texts = [Text(target, source, params, PROMPT[: i + 1]) for i, params in enumerate(KINDS)]
    alone = [Text(target, DraftModel(noisy, target), params, PROMPT[: i + 1]) for i, params in enumerate(KINDS)]
    passes, forward = [], noisy.forward
    limits = [2, 5, 1, 4]
    for _ in range(6):
        wanted = [one.drafter.propose(one.row, limit) for one, limit in zip(alone, limits, strict=True)]
        with monkeypatch.context() as patch:
            patch.setattr(noisy, "forward", lambda batch: passes.append(len(batch)) or forward(batch))
            asked = [(text.drafter, text.row, limit) for text, limit in zip(texts, limits, strict=True)]
            assert type(texts[0].drafter).propose_all(asked) == wanted
        for text, one, draft in zip(texts, alone, wanted, strict=True):
            text.advance(list(draft))
            one.advance(list(draft))
        limits = limits[1:] + limits[:1]
    assert passes == [4, 3, 2, 2, 1] * 6


def test_what_the_cache_has_no_room_for_is_not_drafted(target, noisy_file):
    """Five rows of five pages each, in a cache of twelve."""
    page = ds.load(noisy_file).cache.page_bytes
    small = ds.load(noisy_file, cache_bytes=12 * page)
    source = DraftModel(small, target)
    texts = [Text(target, source, SamplingParams(seed=seed, temperature=0.7), PROMPT + [seed] * 20) for seed in range(5)]
    empty = 0
    while len(texts[0].row.history) < 75:
        asked = [(text.drafter, text.row, 4) for text in texts]
        for text, draft in zip(texts, type(texts[0].drafter).propose_all(asked), strict=True):
            text.advance(list(draft))
            empty += not draft
    assert empty > 10 and texts[0].accepted > 10
    for text in texts:
        count = len(text.row.history) - text.row.history.prompt_length
        assert text.row.history.tokens[-count:] == text.wanted(count)
        text.drafter.close()
    assert small.cache.held == 0


def test_drafts_end_with_the_models_context_and_with_the_row(target, tmp_path):
    short = ds.load(tiny_gguf_files.write(tmp_path / "short.gguf", context=16))
    text = Text(target, DraftModel(short, target), KINDS[1])
    while len(text.row.history) < 30:
        length = len(text.row.history)
        most = max(0, min(6, 17 - length))
        assert text.drafter.outlook(text.row, 6).tokens == most
        draft = text.drafter.propose(text.row, 6)
        assert len(draft) == most
        text.advance(list(draft))
    ends = Text(target, DraftModel(target, target), SamplingParams(do_sample=False))
    first = ends.drafter.propose(ends.row, 8)
    row = RowFactory(VOCABULARY, eos_token_id=first[3]).row(SamplingParams(do_sample=False), PROMPT)
    assert DraftModel(target, target)(row).propose(row, 8) == first[: first.index(first[3]) + 1]


def test_the_outlook_has_the_time_of_a_token_and_a_share_of_the_prompts(target, noisy, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("decodestep.generation.drafts.draft_model.time.perf_counter", lambda: float(next(clock)))
    source = DraftModel(noisy, target)
    text = Text(target, source, SamplingParams(seed=1, max_new_tokens=100), PROMPT * 8)
    assert text.drafter.outlook(text.row, 5).seconds == 0
    text.drafter.propose(text.row, 3)  # a pass of 40 tokens, and two of one, of a second each
    other = Text(target, source, SamplingParams(seed=1, max_new_tokens=100), PROMPT * 8)
    assert other.drafter.outlook(other.row, 5) == (5, 0.6, 1 + 40 / 40 / 100)
    assert text.drafter.outlook(text.row, 5).seconds == 1


def test_what_became_of_drafts_is_known_to_all_rows_of_the_same_models(target, noisy):
    """And kept from one call to the next."""
    row = RowFactory(VOCABULARY).row(SamplingParams(seed=1), PROMPT)
    one, other = DraftModel(noisy, target)(row), DraftModel(noisy, target)(row)
    assert one.experience is other.experience is not DraftModel(noisy, noisy)(row).experience
    before = one.experience.chance(0.6)
    for seed in range(3):
        ds.generate(target, [PROMPT], SamplingParams(seed=seed, max_new_tokens=20, ignore_eos=True), draft=noisy)
    assert one.experience.chance(0.6) != before


def test_generate_drafts_with_a_model(target, noisy, monkeypatch):
    """Three tokens for each row at a time, whether this pays or not."""
    monkeypatch.setattr(
        "decodestep.generation.drafts.drafting.choose_lengths",
        lambda outlooks, *_: [min(3, outlook.tokens) for outlook in outlooks],
    )
    params = [replace(each, max_new_tokens=80, seed=i, logprobs=1) for i, each in enumerate(KINDS)]
    params += [SamplingParams(seed=9, regex="[a-z]{30,60}"), SamplingParams(seed=8, stop_strings=["e", "Q"])]
    alone, drafted = (ds.generate(target, [PROMPT] * len(params), params, draft=draft) for draft in (None, noisy))
    assert drafted == alone
    assert sum(completion.accepted for completion in drafted) > 50
    assert noisy.cache.held == target.cache.held == 0


def test_a_model_with_other_tokens_is_refused_by_name(target, tmp_path):
    tokens = [target.tokenizer.token(i) for i in range(VOCABULARY)]
    other = {"tokenizer.ggml.tokens": [*tokens[:70], "<other>", *tokens[71:]]}
    model = ds.load(tiny_gguf_files.write(tmp_path / "other.gguf", **other))
    rule = "draft: model must be one with the target's tokens, of which 70 is 'F'; got one with '<other>'"
    with pytest.raises(ValueError, match=rule):
        ds.generate(target, [PROMPT], draft=model)
