"""What the Sampler draws follows the distribution that transformers' own warpers leave: over seeds, and over positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf
from scipy.stats import chi2_contingency, chisquare

from decodestep import Sampler, SamplingParams
from support.processor_cases import in_numpy

VOCAB, DRAWS, SEEDS = 24, 6000, 3000  # each seed needs a row of its own
LOGITS = np.random.default_rng(8).standard_normal(VOCAB).astype(np.float32) * 1.5

# Parameters, and transformers' chain for them.
REQUESTS = {
    "plain": ({}, []),
    "temperature": ({"temperature": 0.7}, [hf.TemperatureLogitsWarper(0.7)]),
    "hot": ({"temperature": 1.6}, [hf.TemperatureLogitsWarper(1.6)]),
    "top-k": ({"top_k": 6}, [hf.TopKLogitsWarper(6)]),
    "top-p": ({"top_p": 0.8}, [hf.TopPLogitsWarper(0.8)]),
    "min-p": ({"min_p": 0.1}, [hf.MinPLogitsWarper(0.1)]),
    "typical": ({"typical_p": 0.7}, [hf.TypicalLogitsWarper(0.7)]),
    "epsilon": ({"epsilon_cutoff": 0.03}, [hf.EpsilonLogitsWarper(0.03)]),
    "eta": ({"eta_cutoff": 0.05}, [hf.EtaLogitsWarper(0.05)]),
    "several": (
        {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
        [hf.TemperatureLogitsWarper(1.3), hf.TopKLogitsWarper(12), hf.TopPLogitsWarper(0.9), hf.MinPLogitsWarper(0.02)],
    ),
    "log-probabilities": ({"temperature": 0.9, "logprobs": 3}, [hf.TemperatureLogitsWarper(0.9)]),
}


def probabilities(chain):
    scores = torch.from_numpy(LOGITS[None])
    for processor in chain:
        scores = processor(None, scores)
    return in_numpy(scores.double().softmax(-1))[0]


def follows(tokens, expected):
    counts = np.bincount(tokens, minlength=VOCAB)
    assert counts[expected == 0].sum() == 0
    alive = expected > 0
    assert chisquare(counts[alive], len(tokens) * expected[alive]).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_draws_over_seeds(name):
    request, chain = REQUESTS[name]
    sampler = Sampler([SamplingParams(seed=seed, **request) for seed in range(SEEDS)], vocab_size=VOCAB)
    logits = np.tile(LOGITS, (SEEDS, 1))
    first, second = (sampler.step(logits).tokens for _ in range(2))
    follows(first, probabilities(chain))
    follows(second, probabilities(chain))
    assert chi2_contingency(table_of(first, second)).pvalue > 1e-3  # a seed's tokens do not depend on each other


@pytest.mark.parametrize("name", REQUESTS)
def test_draws_over_positions(name):
    request, chain = REQUESTS[name]
    sampler = Sampler(SamplingParams(seed=3, max_new_tokens=DRAWS, **request), vocab_size=VOCAB)
    tokens = np.array([sampler.step(LOGITS[None]).tokens[0] for _ in range(DRAWS)])
    follows(tokens, probabilities(chain))
    assert chi2_contingency(table_of(tokens[:-1], tokens[1:])).pvalue > 1e-3


@pytest.mark.slow
def test_rows_with_penalties_follow_their_own_histories():
    """Two halves of a batch with different prompts: each half as transformers' class leaves its prompt."""
    prompts = [[1, 2, 3], [4, 5, 4]]
    params = [SamplingParams(seed=seed, repetition_penalty=1.8) for seed in range(DRAWS)]
    sampler = Sampler(params, vocab_size=VOCAB, prompt_ids=[prompts[seed % 2] for seed in range(DRAWS)])
    tokens = sampler.step(np.tile(LOGITS, (DRAWS, 1))).tokens
    for half, prompt in enumerate(prompts):
        penalty = hf.RepetitionPenaltyLogitsProcessor(1.8)
        scores = penalty(torch.tensor([prompt]), torch.from_numpy(LOGITS[None].copy()))
        follows(tokens[half::2], in_numpy(scores.double().softmax(-1))[0])


def table_of(first, second):
    """How often each pair of the four most frequent tokens occurs; the others count as one."""
    frequent = np.argsort(-np.bincount(first, minlength=VOCAB))[:4]
    place = np.full(VOCAB, 4)
    place[frequent] = np.arange(4)
    table = np.zeros((5, 5), int)
    np.add.at(table, (place[first], place[second]), 1)
    return table[table.any(1)][:, table.any(0)]
