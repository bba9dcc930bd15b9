"""Beam search: trees worked by hand, exhaustive search, slow references, transformers; the cache of a model."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep import processors
from decodestep.generation.beam_logits import BeamLogits
from decodestep.generation.beam_search import Beam, SearchInterrupt, beam_search
from decodestep.sampling.param_steps import processors_of

EARLY = (True, False, "never")


def tree(branches, vocab):
    """next_logits of a tree {prefix: probabilities}; it makes sure that parents say where each sequence comes from."""
    before = []

    def next_logits(sequences, parents):
        assert len(parents) == len(sequences)
        if before:
            assert [ids[:-1] for ids in sequences] == [before[parent] for parent in parents]
        else:
            assert parents == [0] and len(sequences) == 1
        before[:] = sequences
        with np.errstate(divide="ignore"):
            return np.log(np.array([branches(tuple(ids)) for ids in sequences], np.float64).reshape(-1, vocab))

    return next_logits


def random_tree(seed, vocab, sharpness=1.5):
    """Probabilities that depend on the whole prefix."""

    def branches(prefix):
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        powers = np.exp(rng.standard_normal(vocab) * sharpness)
        return powers / powers.sum()

    return branches


def as_pairs(beams):
    return [(tuple(beam.token_ids), beam.finished) for beam in beams]


def assert_same(ours, theirs, tolerance=1e-12):
    assert as_pairs(ours) == as_pairs(theirs)
    np.testing.assert_allclose([b.score for b in ours], [b.score for b in theirs], rtol=tolerance, atol=tolerance)


# Token 2 ends. Greedy takes 0 and is left with 0.5 * 0.4; the better start is 1.
WORKED = {
    (): [0.5, 0.4, 0.1],
    (0,): [0.4, 0.3, 0.3],
    (1,): [0.05, 0.05, 0.9],
    (0, 0): [1 / 3] * 3,
    (0, 1): [0.1, 0.1, 0.8],
    (1, 0): [1 / 3] * 3,
    (1, 1): [1 / 3] * 3,
}


def search_tree(**options):
    return beam_search(tree(WORKED.__getitem__, 3), [], vocab_size=3, eos_token_ids=[2], **options)


def test_a_tree_worked_by_hand():
    # One beam: 0, 0, then the first of three equals.
    assert as_pairs(search_tree(num_beams=1, max_new_tokens=3)) == [((0, 0, 0), False)]
    # Two beams, sums alone: (1, end) is 0.36; 0.5 * 0.4 = 0.2 lives on, and can no longer reach 0.36.
    best, second = search_tree(num_beams=2, num_return_sequences=2, max_new_tokens=3, length_penalty=0.0)
    assert as_pairs([best, second]) == [((1, 2), True), ((0, 1, 2), True)]
    assert math.isclose(best.score, math.log(0.36)) and math.isclose(second.score, math.log(0.5 * 0.3 * 0.8))
    # The length counts the end token: log(0.36) / 2 = -0.51, log(0.12) / 3 = -0.71; squared, -0.26 and -0.24.
    assert math.isclose(search_tree(num_beams=2, max_new_tokens=3)[0].score, math.log(0.36) / 2)
    longer = search_tree(num_beams=2, max_new_tokens=3, length_penalty=2.0)[0]
    assert longer.token_ids == [0, 1, 2] and math.isclose(longer.score, math.log(0.12) / 9)
    # Cut short: what lives is returned with what ended.
    assert as_pairs(search_tree(num_beams=2, num_return_sequences=2, max_new_tokens=2)) == [((1, 2), True), ((0, 0), False)]


def test_early_stopping_by_hand():
    # Ends at once with 0.3, or takes a long sure way: 0.7 and then certainty.
    branches = {(): [0.7, 0.3, 0.0], (0,): [0.5, 0.5, 0.0], (0, 0): [1.0, 0.0, 0.0], (0, 0, 0): [0.0, 1.0, 0.0]}
    run = partial(beam_search, vocab_size=3, eos_token_ids=[1], num_beams=2, max_new_tokens=4, num_return_sequences=2)

    def search(**options):
        return as_pairs(run(tree(lambda ids: branches.get(ids, [0.5, 0.5, 0.0]), 3), [], **options))

    assert search(early_stopping=True) == [((0, 1), True), ((1,), True)]  # 0.35 over 2, 0.3 over 1; both ended after 2 steps
    # 0.35 lives: over its length it scores as (0, end), better than log(0.3): the search goes on, and (0, 0, 0, end) is better.
    assert search(early_stopping=False)[0] == ((0, 0, 0, 1), True)
    assert search(early_stopping="never") == search(early_stopping=False)
    # With sums alone nothing can be gained; with a longer hope there is.
    assert search(early_stopping="never", length_penalty=0.0) == [((0, 1), True), ((0, 0, 0, 1), True)]
    assert search(early_stopping=True, length_penalty=-1.0) == [((1,), True), ((0, 1), True)]


def test_a_score_is_a_limit_where_the_power_of_the_length_is_beyond_the_floats():
    for penalty, limit in ((1e300, 0.0), (-1e300, -math.inf)):
        [beam] = search_tree(num_beams=1, max_new_tokens=2, length_penalty=penalty)
        assert beam.score == limit
        sure = tree(lambda ids: [1.0, 0.0], 2)
        [beam] = beam_search(sure, [], vocab_size=2, num_beams=1, max_new_tokens=2, length_penalty=penalty)
        assert (beam.token_ids, beam.score) == ([0, 0], 0.0)


def test_the_search_ends_where_every_beam_ends():
    branches = tree(lambda ids: [0.0, 0.0, 1.0] if ids else [0.6, 0.4, 0.0], 3)
    beams = beam_search(branches, [], vocab_size=3, eos_token_ids=[2], num_beams=2, num_return_sequences=2, max_new_tokens=9)
    assert as_pairs(beams) == [((0, 2), True), ((1, 2), True)]


def test_two_end_tokens_leave_a_candidate_that_goes_on():
    branches = tree(lambda ids: [0.0, 0.0, 1.0] if ids else [0.2, 0.3, 0.5], 3)
    search = partial(beam_search, branches, [], vocab_size=3, num_beams=1, max_new_tokens=3)
    assert as_pairs(search(eos_token_ids=[1, 2], length_penalty=2.0, early_stopping="never")) == [((0, 2), True)]


def test_ties_take_the_lowest_beam_then_the_lowest_token():
    alike = tree(lambda ids: [1 / 64] * 64, 64)
    beams = beam_search(alike, [3], vocab_size=64, num_beams=3, num_return_sequences=3, max_new_tokens=2)
    assert [beam.token_ids for beam in beams] == [[0, 0], [0, 1], [0, 2]]


def every_sequence(branches, vocab, ends, longest, prefix=(), total=0.0):
    """Each sequence that ends or is as long as may be, with the sum of its log-probabilities."""
    for token, p in enumerate(branches(prefix)):
        ids = (*prefix, token)
        if token in ends or len(ids) == longest:
            yield ids, total + math.log(p), token in ends
        else:
            yield from every_sequence(branches, vocab, ends, longest, ids, total + math.log(p))


@pytest.mark.parametrize("seed", range(12))
def test_with_beams_for_all_it_is_exhaustive(seed):
    vocab, longest = 2 + seed % 3, 1 + seed % 4
    ends = ([], [0], [vocab - 1, 0])[seed % 3]
    branches, penalty = random_tree(seed, vocab), (0.0, 1.0, -0.5, 1.7)[seed % 4]
    every = sorted(
        ((total / len(ids) ** penalty, ids, ended) for ids, total, ended in every_sequence(branches, vocab, ends, longest)),
        reverse=True,
    )
    for early in EARLY:
        beams = beam_search(
            tree(branches, vocab),
            [],
            vocab_size=vocab,
            max_new_tokens=longest,
            num_beams=len(every),
            num_return_sequences=len(every),
            eos_token_ids=ends,
            length_penalty=penalty,
            early_stopping=early,
        )
        assert_same(beams, [Beam(list(ids), score, ended) for score, ids, ended in every])


def slow_groups(branches, vocab, ends, longest, groups, size, diversity, penalty, early, returned):
    """Diverse beam search as the paper and transformers 4.41 have it: whole lists, sorted; nothing clever."""
    alive = [[((), 0.0)] for _ in range(groups)]
    kept = [[] for _ in range(groups)]
    over = [False] * groups
    for length in range(1, longest + 1):
        used = Counter()
        for g in range(groups):
            if over[g]:
                continue
            options = []
            for beam, (ids, total) in enumerate(alive[g]):
                for token, p in enumerate(branches(ids)):
                    options.append((-(total + math.log(p) - diversity * used[token]), beam, token))
            options = sorted(options)[: size * max(2, 1 + len(ends))]
            following = []
            for rank, (cost, beam, token) in enumerate(options):
                ids = (*alive[g][beam][0], token)
                if token not in ends:
                    following.append((ids, -cost))
                elif rank < size:
                    kept[g].append((-cost / length**penalty, ids, True))
            alive[g] = following[:size]
            kept[g] = sorted(kept[g], key=lambda k: -k[0])[:size]
            used.update(ids[-1] for ids, _ in alive[g])
            if len(kept[g]) == size:
                hope = longest if early == "never" and penalty > 0 else length
                over[g] = early is True or -options[0][0] / hope**penalty <= kept[g][-1][0]
            over[g] = over[g] or not alive[g]
    for g in range(groups):
        if not over[g]:
            kept[g] += [(total / longest**penalty, ids, False) for ids, total in alive[g]]
            kept[g] = sorted(kept[g], key=lambda k: -k[0])[:size]
    best = sorted(itertools.chain(*kept), key=lambda k: -k[0])[:returned]
    return [Beam(list(ids), score, ended) for score, ids, ended in best]


@pytest.mark.parametrize("seed", [*range(60), 154])  # 154: a group goes on for the sake of a candidate that ended
def test_groups_equal_a_slow_reference(seed):
    rng = np.random.default_rng(seed)
    vocab, longest, groups, size = (int(rng.integers(*bounds)) for bounds in ((3, 8), (1, 7), (2, 5), (1, 4)))
    ends = rng.choice(vocab, int(rng.integers(0, 3)), replace=False).tolist()
    branches, diversity = random_tree(seed, vocab), float(rng.choice([0.0, 0.25, 1.0, 4.0]))
    penalty, early = float(rng.choice([0.0, 1.0, -1.0, 2.0])), EARLY[seed % 3]
    returned = int(rng.integers(1, groups * size + 1))
    ours = beam_search(
        tree(branches, vocab),
        [],
        vocab_size=vocab,
        max_new_tokens=longest,
        num_beams=groups * size,
        num_beam_groups=groups,
        diversity_penalty=diversity,
        eos_token_ids=ends,
        length_penalty=penalty,
        early_stopping=early,
        num_return_sequences=returned,
    )
    assert_same(ours, slow_groups(branches, vocab, ends, longest, groups, size, diversity, penalty, early, returned))


def test_groups_differ_by_the_penalty():
    run = partial(beam_search, vocab_size=3, num_beams=2, num_beam_groups=2, max_new_tokens=1, num_return_sequences=2)
    branches = tree(lambda ids: [0.6, 0.3, 0.1], 3)
    assert [beam.token_ids for beam in run(branches, [])] == [[0], [0]]
    first, second = run(tree(lambda ids: [0.6, 0.3, 0.1], 3), [], diversity_penalty=1.0)
    assert (first.token_ids, second.token_ids) == ([0], [1])
    # The second group's 0 is at log(0.6) - 0.5, which is above log(0.3): the penalty stays in its score.
    first, second = run(tree(lambda ids: [0.6, 0.3, 0.1], 3), [], diversity_penalty=0.5)
    assert second.token_ids == [0] and math.isclose(second.score, math.log(0.6) - 0.5, rel_tol=1e-6)


@pytest.fixture(scope="module")
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=23,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.3,
            tie_word_embeddings=False,
        )
    ).eval()
    model.lm_head.weight.data *= 2.0  # peaked, so that beams end and the orders of candidates differ by more than rounding
    return model


SETTINGS = [{}, {"no_repeat_ngram_size": 2}, {"repetition_penalty": 1.4}, {"min_new_tokens": 4, "no_repeat_ngram_size": 3}]


def our_processors(settings, prompt, ends):
    """The chain in transformers' order."""
    made = []
    if "repetition_penalty" in settings:
        made.append(processors.RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
    if "no_repeat_ngram_size" in settings:
        made.append(processors.NoRepeatNGramLogitsProcessor(settings["no_repeat_ngram_size"]))
    if "min_new_tokens" in settings and ends:
        made.append(processors.MinNewTokensLengthLogitsProcessor(len(prompt), settings["min_new_tokens"], ends))
    return made


@pytest.mark.parametrize("seed", range(36))
def test_equals_transformers(llama, seed):
    rng = np.random.default_rng(seed)
    beams, longest = int(rng.integers(2, 7)), int(rng.integers(1, 15))
    returned, prompt = int(rng.integers(1, beams + 1)), rng.integers(0, 23, int(rng.integers(1, 9))).tolist()
    ends = rng.choice(23, int(rng.integers(0, 4)), replace=False).tolist()
    settings, early = SETTINGS[seed % 4], EARLY[seed % 3]
    longest = max(longest, settings.get("min_new_tokens", 0))
    penalty = float(rng.choice([0.0, 1.0, 1.0, -1.0, 0.6, 3.0]))
    with torch.no_grad():
        theirs = llama.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            num_beams=beams,
            do_sample=False,
            length_penalty=penalty,
            early_stopping=early,
            num_return_sequences=returned,
            max_new_tokens=longest,
            eos_token_id=ends or None,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
            **settings,
        )

    def next_logits(sequences, parents):
        with torch.no_grad():
            return llama(torch.tensor(sequences)).logits[:, -1].numpy()

    ours = beam_search(
        next_logits,
        prompt,
        vocab_size=23,
        num_beams=beams,
        max_new_tokens=longest,
        eos_token_ids=ends,
        length_penalty=penalty,
        early_stopping=early,
        num_return_sequences=returned,
        processors=our_processors(settings, prompt, ends),
    )
    lengths = (theirs.beam_indices >= 0).sum(1).tolist()
    want = [row[len(prompt) :][:length] for row, length in zip(theirs.sequences.tolist(), lengths, strict=True)]
    assert [beam.token_ids for beam in ours] == want
    assert [beam.finished for beam in ours] == [ids[-1] in ends for ids in want]
    np.testing.assert_allclose([beam.score for beam in ours], theirs.sequences_scores.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_prefix_constraint_equals_transformers(llama, num_beams):
    prompt = [3, 7, 1]

    def allowed(item, ids):
        assert item == 0
        return [(int(ids[-1]) * k + len(ids)) % 23 for k in (1, 2, 3, 5)]

    asked = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 9}
    with torch.no_grad():
        theirs = llama.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            prefix_allowed_tokens_fn=allowed,
            eos_token_id=None,
            pad_token_id=0,
            do_sample=False,
            **asked,
        )

    def next_logits(sequences, parents):
        with torch.no_grad():
            return llama(torch.tensor(sequences)).logits[:, -1].numpy()

    constraint = processors.PrefixConstrainedLogitsProcessor(allowed, num_beams)
    ours = beam_search(next_logits, prompt, vocab_size=23, processors=[constraint], **asked)
    assert [beam.token_ids for beam in ours] == theirs[:, len(prompt) :].tolist()


@pytest.mark.parametrize("ends", [[], [5], [5, 6, 7]], ids=len)
def test_filters_of_drawn_beams_keep_as_many_as_those_of_transformers(llama, tiny_file, ends):
    """Enough for a beam to go on beside its ends."""
    from transformers import GenerationConfig

    filters = {"top_k": 1, "top_p": 0.1, "min_p": 0.9, "typical_p": 0.1, "epsilon_cutoff": 0.9, "eta_cutoff": 0.9}
    config = GenerationConfig(do_sample=True, num_beams=5, num_return_sequences=5, max_new_tokens=1, **filters)
    config._eos_token_tensor = torch.tensor(ends) if ends else None
    theirs = llama._get_logits_processor(config, 1, torch.tensor([[1]]), logits_processor=[], device="cpu")
    params = ds.SamplingParams.from_generation_config(config, seed=1)
    ours = processors_of(params, prompt_length=1, vocab_size=23, eos_token_ids=ends, num_beams=5)
    assert [(type(p).__name__, p.min_tokens_to_keep) for p in ours] == [
        (type(p).__name__, p.min_tokens_to_keep) for p in theirs
    ]
    own = {"eos_token_id": ends} if ends else {"ignore_eos": True}
    beams = ds.generate(ds.load(tiny_file()), [[1]], ds.SamplingParams.from_generation_config(config, seed=1, **own))
    assert len(beams) == max(2, 1 + len(ends))


@pytest.mark.parametrize("seed", range(24))
def test_logprobs_are_what_the_score_is_made_of(seed):
    """Each from the tree itself: raw without penalty and processor, processed with both, in the order of the beam's tokens."""
    rng = np.random.default_rng(seed)
    vocab, beams, groups = int(rng.integers(3, 8)), 4, (1, 2, 4)[seed % 3]
    diversity, penalty = (0.5, 1.0) if groups > 1 else (0.0, float(rng.choice([0.0, 1.0, 2.0])))
    branches, banned = random_tree(seed, vocab), int(rng.integers(vocab))

    def halved(ids, scores):
        return np.where(np.arange(vocab) == banned, -np.inf, scores / 2)

    asked = partial(
        beam_search,
        vocab_size=vocab,
        max_new_tokens=5,
        num_beams=beams,
        num_beam_groups=groups,
        diversity_penalty=diversity,
        length_penalty=penalty,
        num_return_sequences=beams,
        eos_token_ids=[0],
        processors=[halved],
        do_sample=groups == 1 and seed % 2 == 0,
    )
    found, without = asked(tree(branches, vocab), [], top_logprobs=3), asked(tree(branches, vocab), [])
    assert as_pairs(found) == as_pairs(without) and all(beam.logprobs is None for beam in without)
    for beam in found:
        assert len(beam.logprobs) == len(beam.token_ids)
        assert math.isclose(sum(p.processed for p in beam.logprobs) / len(beam.token_ids) ** penalty, beam.score, rel_tol=1e-12)
        for step, (token, got) in enumerate(zip(beam.token_ids, beam.logprobs, strict=True)):
            own = np.log(branches(tuple(beam.token_ids[:step])))
            assert math.isclose(got.raw, own[token], rel_tol=1e-12)
            assert [i for i, _ in got.top_raw] == np.argsort(-own, kind="stable")[:3].tolist()
            assert all(math.isclose(value, own[i], rel_tol=1e-12) for i, value in got.top_raw)
            times = (got.processed * 2 - own[token]) / -diversity if groups > 1 else 0
            assert groups > 1 or math.isclose(got.processed, own[token] / 2, rel_tol=1e-12)
            assert math.isclose(times, round(times), abs_tol=1e-9) and 0 <= round(times) < beams  # beams that took it before
            values = [value for _, value in got.top_processed]
            assert banned not in dict(got.top_processed) and values == sorted(values, reverse=True)
            assert dict(got.top_processed).get(token, got.processed) == got.processed
    assert asked(tree(branches, vocab), [], top_logprobs=0)[0].logprobs[0].top_raw == ()


def test_processors_and_stop_are_given_what_they_need():
    seen = []

    def no_zero(ids, scores):
        seen.append((ids.tolist(), scores.dtype, np.exp(scores).sum(axis=1)))
        return np.where(np.arange(3) == 0, -np.inf, scores)

    beams = beam_search(
        lambda sequences, parents: np.zeros((len(sequences), 3), np.float32),
        [2, 2],
        vocab_size=3,
        num_beams=2,
        max_new_tokens=3,
        num_return_sequences=2,
        processors=[no_zero],
        stop=lambda ids: ids[-2:] == [1, 1],
    )
    assert seen[0][0] == [[2, 2]] and seen[1][0] == [[2, 2, 1], [2, 2, 2]]
    assert all(dtype == np.float32 and np.allclose(sums, 1) for _, dtype, sums in seen)
    assert as_pairs(beams) == [((1, 1), True), ((1, 2, 1), False)]


def test_what_cannot_be_is_no_candidate():
    nan, inf = math.nan, math.inf
    rows = {(): [0.0, nan, -inf, 0.0], (0,): [-inf] * 4, (3,): [inf, 1.0, inf, nan]}

    def processor(ids, scores):
        assert not np.isnan(scores).any()
        return scores

    def next_logits(sequences, parents):
        return np.array([rows[tuple(ids)] for ids in sequences])

    run = partial(beam_search, next_logits, [], vocab_size=4, processors=[processor])
    beams = run(num_beams=4, max_new_tokens=2, num_return_sequences=4)
    assert [beam.token_ids for beam in beams] == [[3, 0], [3, 2]]
    assert all(math.isclose(beam.score, math.log(0.25) / 2) for beam in beams)
    with pytest.raises(ValueError, match="beam_search: next_logits must be such that some beam can go on; got no token"):
        run(num_beams=1, max_new_tokens=2)
    assert run(num_beams=1, max_new_tokens=2, eos_token_ids=[0])[0].token_ids == [0]


def test_an_interrupt_collects_the_live_beams_at_their_length():
    def search(last, max_new_tokens):
        def next_logits(sequences, parents):
            if len(sequences[0]) > last:
                raise SearchInterrupt
            return np.stack([np.random.default_rng(sum(ids)).normal(size=9) for ids in sequences])

        return beam_search(next_logits, [4], vocab_size=9, max_new_tokens=max_new_tokens, num_beams=3, num_return_sequences=3)

    assert search(0, 5) == []
    for length in (1, 3):
        assert search(length, 5) == search(9, length)


def test_a_score_that_is_nan_is_none_of_the_likely_tokens():
    def processor(ids, scores):
        return np.where(np.arange(9) < 4, np.nan, scores)

    logits = np.arange(9.0)[None]
    beams = beam_search(
        lambda sequences, parents: logits,
        [4],
        vocab_size=9,
        max_new_tokens=1,
        num_beams=3,
        num_return_sequences=3,
        processors=[processor],
        top_logprobs=8,
    )
    assert [beam.token_ids for beam in beams] == [[8], [7], [6]]
    assert [token for token, _ in beams[0].logprobs[0].top_processed] == [8, 7, 6, 5, 4]


def test_of_the_candidates_that_are_drawn_the_likeliest_go_on():
    """Twice as many as there are beams are drawn: the least likely of three is never the better one of two."""
    for seed in range(40):
        branches = tree(lambda ids: [0.4, 0.35, 0.25], 3)
        [beam] = beam_search(branches, [], vocab_size=3, num_beams=1, max_new_tokens=2, do_sample=True, seed=seed)
        assert beam.token_ids[0] < 2


def test_draws_follow_the_distribution_without_replacement():
    p = np.array([0.5, 0.25, 0.15, 0.1])
    run = partial(
        beam_search,
        lambda sequences, parents: np.log(np.tile(p, (len(sequences), 1))),
        [],
        vocab_size=4,
        do_sample=True,
        num_beams=2,
        num_return_sequences=2,
    )
    draws = 3000
    counts = Counter(frozenset(b.token_ids[0] for b in run(max_new_tokens=1, seed=seed)) for seed in range(draws))
    for a, b in itertools.combinations(range(4), 2):
        chance = p[a] * p[b] / (1 - p[a]) + p[b] * p[a] / (1 - p[b])
        assert abs(counts[frozenset((a, b))] - draws * chance) < 5 * math.sqrt(draws * chance * (1 - chance))
    assert run(max_new_tokens=5, seed=7) == run(max_new_tokens=5, seed=7)
    assert len({tuple(run(max_new_tokens=5, seed=seed)[0].token_ids) for seed in range(20)}) > 5
    # Two beams with the same logits draw apart: were the noise of a token shared, both would take the same one.
    last = [{tuple(b.token_ids) for b in run(max_new_tokens=2, seed=seed)} for seed in range(40)]
    assert any(len({ids[-1] for ids in pair}) == 2 for pair in last)


def test_logits_over_the_cache_equal_those_of_the_whole_sequence(tiny_file):
    model = ds.load(tiny_file())
    prompt = list(range(40, 61))  # more than a block, and not a multiple of one
    checked = []

    def both(sequences, parents):
        logits = cached(sequences, parents)
        for ids, row in zip(sequences, logits, strict=True):
            assert np.array_equal(row, model.logits(ids)[-1])
        checked.append([parents[i] for i in range(len(parents))])
        return logits

    for groups in (1, 2):
        cached = BeamLogits(model, 4, len(prompt) + 20)
        beam_search(
            both,
            prompt,
            vocab_size=300,
            num_beams=4,
            num_beam_groups=groups,
            max_new_tokens=20,
            diversity_penalty=groups - 1.0,
            do_sample=groups == 1,
        )
    assert any(parents != sorted(set(parents)) for parents in checked)  # beams have branched


def test_the_default_model(model):
    prompt = model.tokenizer.encode("The capital of France is")
    ends = model.tokenizer.end_token_ids
    run = partial(beam_search, prompt=prompt, vocab_size=model.config.vocab_size, max_new_tokens=8, eos_token_ids=ends)
    beams = run(BeamLogits(model, 3, len(prompt) + 8), num_beams=3, num_return_sequences=3)
    assert "Paris" in model.tokenizer.decode(beams[0].token_ids)
    for beam in beams:
        logits = model.logits(prompt + beam.token_ids)[len(prompt) - 1 : -1].astype(np.float64)
        steps = np.take_along_axis(logits, np.array(beam.token_ids)[:, None], 1)[:, 0] - np.log(np.exp(logits).sum(1))
        assert math.isclose(beam.score, steps.mean(), rel_tol=1e-4)
    greedy = ds.generate(model, [prompt], ds.SamplingParams(do_sample=False, max_new_tokens=8))[0]
    assert run(BeamLogits(model, 1, len(prompt) + 8), num_beams=1)[0].token_ids == greedy.token_ids


@pytest.mark.parametrize(
    ("arg", "value", "rule"),
    [
        ("prompt", [3], "integers in [0, 3)"),
        ("prompt", [0.5], "integers in [0, 3)"),
        ("prompt", [True], "integers"),
        ("prompt", 0, "integers in [0, 3)"),
        ("eos_token_ids", [-1], "integers in [0, 3)"),
        ("eos_token_ids", 2, "integers in [0, 3)"),
        ("processors", lambda ids, scores: scores, "callables"),
        ("processors", [1], "callables"),
        ("stop", "x", "a function"),
        ("vocab_size", 0, "an integer >= 1"),
        ("num_beams", 0, "an integer >= 1"),
        ("num_beams", 2.0, "an integer >= 1"),
        ("num_beams", 2**31, "such that num_beams"),
        ("max_new_tokens", 0, "an integer >= 1"),
        ("num_beam_groups", 3, "a divisor of num_beams = 4"),
        ("num_beam_groups", 0, "a divisor"),
        ("diversity_penalty", -1.0, "a finite number >= 0"),
        ("diversity_penalty", 1.0, "0 with one group"),
        ("length_penalty", math.inf, "a finite number"),
        ("early_stopping", "always", "True, False or 'never'"),
        ("early_stopping", 1, "True, False or 'never'"),
        ("num_return_sequences", 5, "an integer in [1, num_beams = 4]"),
        ("num_return_sequences", 0, "an integer in [1"),
        ("do_sample", 1, "a bool"),
        ("seed", -1, "an integer in [0, 2^64)"),
        ("seed", 2**64, "an integer in [0, 2^64)"),
        ("top_logprobs", -1, "None or an integer >= 0"),
        ("eos_token_ids", None, "integers in [0, 3)"),
        ("prompt", None, "integers in [0, 3)"),
        ("processors", [None], "callables"),
    ],
)
def test_refusals(arg, value, rule):
    given = {"prompt": [0], "vocab_size": 3, "num_beams": 4, "max_new_tokens": 2} | {arg: value}
    with pytest.raises(ValueError, match=r"^beam_search: ") as refused:
        beam_search(lambda sequences, parents: pytest.fail("work was done"), **given)
    assert f"{arg} must be {rule}" in str(refused.value) and "; got " in str(refused.value)


def test_refusals_of_what_comes_back(tiny_file):
    run = partial(beam_search, prompt=[0], vocab_size=3, num_beams=2, max_new_tokens=1)
    with pytest.raises(ValueError, match="do_sample must be False with several groups"):
        run(lambda *_: None, do_sample=True, num_beam_groups=2)
    with pytest.raises(ValueError, match="next_logits' result must be of shape 1x3; got float64 2x3"):
        run(lambda *_: np.zeros((2, 3)))
    with pytest.raises(ValueError, match="next_logits' result must be float32 or float64; got int64"):
        run(lambda *_: np.zeros((1, 3), np.int64))
    with pytest.raises(ValueError, match="processors' result must be scores of shape 1x3; got float64 1x2"):
        run(lambda *_: np.zeros((1, 3)), processors=[lambda ids, scores: scores[:, :2]])
    with pytest.raises(ValueError, match="processors' result must be scores of shape 1x3; got bool 1x3"):
        run(lambda *_: np.zeros((1, 3)), processors=[lambda ids, scores: scores > 0])
    model = ds.load(tiny_file())
    with pytest.raises(ValueError, match="BeamLogits: num_beams must be an integer >= 1; got 0"):
        BeamLogits(model, 0, 8)
    with pytest.raises(ValueError, match="BeamLogits: capacity must be an integer in \\[1, 64\\]; got 65"):
        BeamLogits(model, 1, 65)


def test_beams_with_xtc_of_every_token_go_on(tiny_file):
    truncated = {"top_k": 5, "xtc_probability": 1.0, "xtc_threshold": 0.0}
    params = ds.SamplingParams(num_beams=2, max_new_tokens=3, seed=1, ignore_eos=True, **truncated)
    assert ds.generate(ds.load(tiny_file()), [[1, 2]], params)[0].finish_reason == "length"


def test_processors_with_state_serve_no_several_beams():
    class Stateful(processors.LogitsProcessor):
        stateful = True

        def __call__(self, input_ids, scores):
            return scores

    search = partial(beam_search, lambda ids, _: np.zeros((len(ids), 3)), [], vocab_size=3, max_new_tokens=1)
    with pytest.raises(ValueError, match="^beam_search: processors must be without state beside several beams; got Stateful"):
        search(num_beams=2, processors=[Stateful()])
    assert search(num_beams=1, processors=[Stateful()])[0].token_ids == [0]
