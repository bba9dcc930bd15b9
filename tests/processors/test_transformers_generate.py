"""transformers' generate() with our classes in place of its own, and with our classes given by its user."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation import WatermarkingConfig
from transformers.generation import utils as hf_utils

import decodestep as package
from decodestep import processors as ds

pytestmark = pytest.mark.slow

VOCAB, EOS = 40, [3, 5]


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=0,
        initializer_range=1.0,
    )
    return LlamaForCausalLM(config).eval()


def random_configs(rng: np.random.Generator) -> Iterator[GenerationConfig]:
    """One to six settings at a time, until each has been used."""
    ids = rng.integers(6, VOCAB, 4).tolist()
    settings: dict[str, Any] = {
        "temperature": float(rng.uniform(0.3, 2)),
        "top_k": int(rng.integers(1, 30)),
        "top_p": float(rng.uniform(0.2, 0.99)),
        "min_p": float(rng.uniform(0, 0.3)),
        "typical_p": float(rng.uniform(0.2, 0.95)),
        "top_h": float(rng.uniform(0.2, 1)),
        "epsilon_cutoff": 0.02,
        "eta_cutoff": 0.03,
        "repetition_penalty": float(rng.uniform(0.7, 1.8)),
        "no_repeat_ngram_size": int(rng.integers(1, 4)),
        "encoder_repetition_penalty": 1.3,
        "encoder_no_repeat_ngram_size": 2,
        "sequence_bias": {(ids[0],): 2.0, (ids[1], ids[2]): -3.0},
        "bad_words_ids": [[ids[1]], [ids[2], ids[3]], [EOS[0]]],
        "min_length": 12,
        "min_new_tokens": 5,
        "forced_eos_token_id": EOS,
        "remove_invalid_values": True,
        "exponential_decay_length_penalty": (3, 1.1),
        "suppress_tokens": ids[:2],
        "begin_suppress_tokens": ids,
        "renormalize_logits": True,
        "guidance_scale": 1.6,
        "num_beams": 3,
        "max_time": 100.0,
        "watermarking_config": WatermarkingConfig(bias=1.5, seeding_scheme="lefthash"),
    }
    names = rng.permutation(sorted(settings)).tolist()
    while names:
        chosen = [names.pop() for _ in range(min(int(rng.integers(1, 7)), len(names)))]
        yield GenerationConfig(
            max_new_tokens=10,
            do_sample=bool(rng.random() < 0.6),
            bos_token_id=1,
            eos_token_id=EOS,
            pad_token_id=0,
            **{name: settings[name] for name in chosen},
        )


def prompts(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    ids = torch.from_numpy(rng.integers(6, VOCAB, (3, 6)))
    mask = torch.ones_like(ids)
    ids[0, :2], mask[0, :2] = 0, 0  # left padding
    return {"input_ids": ids, "attention_mask": mask}


def generate(model: Any, given: dict[str, torch.Tensor], config: GenerationConfig, **more: Any) -> list[list[int]]:
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.generate(**given, generation_config=config, **more).tolist()


def test_generate_is_the_same_with_our_classes_inside(llama, monkeypatch):
    rng = np.random.default_rng(56)
    runs = [(prompts(rng), config) for _ in range(8) for config in random_configs(rng)]
    theirs = [generate(llama, *run) for run in runs]
    homes = package.processors, package.stopping
    swapped = [(home, name) for home in homes for name in home.__all__ if hasattr(hf_utils, name)]
    assert len(swapped) >= 30
    for home, name in swapped:
        monkeypatch.setattr(hf_utils, name, getattr(home, name))
    for run, expected in zip(runs, theirs, strict=True):
        assert generate(llama, *run) == expected, run[1]


def test_generate_takes_our_classes_from_its_user(llama):
    rng = np.random.default_rng(52)
    for seed in range(5):
        given = prompts(rng)
        length, padding = given["input_ids"].shape[1], torch.tensor([2, 0, 0])
        config = GenerationConfig(
            do_sample=True,
            max_new_tokens=10,
            temperature=0.8,
            top_k=20,
            top_p=0.9,
            min_p=0.02,
            repetition_penalty=1.3,
            no_repeat_ngram_size=2,
            min_new_tokens=3,
            bos_token_id=1,
            eos_token_id=EOS,
            pad_token_id=0,
        )
        plain = GenerationConfig(do_sample=True, max_length=100, top_k=0, bos_token_id=1, pad_token_id=0)
        ours = [
            ds.RepetitionPenaltyLogitsProcessor(1.3, padding),
            ds.NoRepeatNGramLogitsProcessor(2),
            ds.MinNewTokensLengthLogitsProcessor(length, 3, EOS),
            ds.TemperatureLogitsWarper(0.8),
            ds.TopKLogitsWarper(20),
            ds.TopPLogitsWarper(0.9),
            ds.MinPLogitsWarper(0.02),
        ]
        stops = [package.stopping.MaxLengthCriteria(length + 10), package.stopping.EosTokenCriteria(EOS)]
        expected = generate(llama, given, config)
        mine = generate(
            llama,
            given,
            plain,
            logits_processor=ds.LogitsProcessorList(ours),
            stopping_criteria=package.stopping.StoppingCriteriaList(stops),
        )
        for row, other in zip(mine, expected, strict=True):
            ends = [i for i, token in enumerate(other) if token in EOS and i >= length]
            end = ends[0] + 1 if ends else len(other)
            # Without an eos of its own generate() goes on with a row that is done; what it has up to there is the same.
            assert row[:end] == other[:end], seed


def test_beams_take_our_classes(llama):
    given = prompts(np.random.default_rng(53))
    config = GenerationConfig(num_beams=3, max_new_tokens=8, bos_token_id=1, eos_token_id=EOS, pad_token_id=0)
    with_theirs = GenerationConfig(**{**config.to_dict(), "no_repeat_ngram_size": 2, "bad_words_ids": [[7], [8, 9]]})
    ours = [ds.NoRepeatNGramLogitsProcessor(2), ds.NoBadWordsLogitsProcessor([[7], [8, 9]], EOS)]
    assert generate(llama, given, config, logits_processor=ours) == generate(llama, given, with_theirs)
