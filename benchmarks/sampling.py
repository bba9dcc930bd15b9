"""Shared by the sampling benchmarks: cases, logits in and out of the caches, and the verification of a sampler.

A sampler, ours or a peer's, is made for a case and has

    ties: str                                        what it does with scores equal to the k-th: "kept", as transformers
                                                     and ours, or "cut", as those that take k and no more
    sample(logits) -> tokens (B,)                    what is timed
and, some of them,
    kept(logits, row) -> (ids, probabilities)        what it draws from in that row, for the check
    lacks: tuple of types of steps                   what it cannot do and leaves out
    prepare()                                        called before each sample, not timed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np

import decodestep as ds
from decodestep.ops.decode_step import reference
from decodestep.ops.decode_step import steps as s
from decodestep.sampling.build_processors import processors_of
from decodestep.sampling.plan import plan
from decodestep.sampling.token_history import TokenHistory
from memory import cache_bytes

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
HISTORY = 1000
T = 0.8
PARAMS = {
    "greedy": ds.SamplingParams(do_sample=False),
    "temperature": ds.SamplingParams(temperature=T, seed=1),
    "top-k": ds.SamplingParams(temperature=T, seed=1, top_k=50),
    "top-p": ds.SamplingParams(temperature=T, seed=1, top_p=0.9),
    "min-p": ds.SamplingParams(temperature=T, seed=1, min_p=0.05),
    "full": ds.SamplingParams(temperature=T, seed=1, top_k=50, top_p=0.9, min_p=0.05),
    "penalties": ds.SamplingParams(
        temperature=T, seed=1, top_k=50, top_p=0.9, min_p=0.05, repetition_penalty=1.1, no_repeat_ngram_size=3
    ),
}


PARTS = ("greedy", "top-p", "penalties")  # of the mixed batch


class UnableError(Exception):
    """A sampler cannot do a case; the message says why."""


class Logits(NamedTuple):
    """The same (B, V) logits as NumPy's array and, where torch is there, as its tensor."""

    array: np.ndarray
    tensor: Any


@dataclass(frozen=True)
class Case:
    """Rows of one batch: the parameters of each, and the tokens that came before."""

    name: str
    params: tuple[ds.SamplingParams, ...]
    histories: np.ndarray  # int64 (B, HISTORY)
    vocab: int

    @property
    def batch(self) -> int:
        return len(self.params)

    @property
    def alike(self) -> bool:
        """Whether all rows have the same parameters."""
        return len(set(map(id, self.params))) == 1

    def steps(self) -> list[list[s.Step]]:
        """The typed steps of every row, as `ds.Sampler` makes them of parameters and history."""
        return [
            plan(processors_of(params, prompt_length=len(ids), vocab_size=self.vocab), self.vocab).tail.steps(TokenHistory(ids))
            for params, ids in zip(self.params, self.histories, strict=True)
        ]

    def all_of(self, name: str) -> Case:
        """The same histories, each row with the parameters of that name."""
        return replace(self, name=name, params=(PARAMS[name],) * self.batch)


class Sampler(Protocol):
    ties: str

    def sample(self, logits: Logits) -> np.ndarray: ...


def case(name: str, batch: int, vocab: int) -> Case:
    """One of `PARAMS` for all rows, or "mixed": a third greedy, a third top-p, a third full with penalties."""
    kinds = PARTS if name == "mixed" else (name,)
    params = tuple(PARAMS[kinds[row % len(kinds)]] for row in range(batch))
    rng = np.random.default_rng(1)
    return Case(name, params, _histories(rng, batch, vocab), vocab)


def _histories(rng: np.random.Generator, batch: int, vocab: int) -> np.ndarray:
    """Tokens as frequent as words are, about half of them said before; the last two have been seen, so n-grams are banned."""
    words = np.minimum(rng.zipf(1.2, (batch, HISTORY)) - 1, vocab - 1)
    ids = rng.permutation(vocab)[words].astype(np.int64)
    ids[:, -2:] = ids[:, 500:502]
    return ids


def logits_of(rng: np.random.Generator, batch: int, vocab: int, dtype: str) -> np.ndarray:
    """Normal * 2.5, with five peaks near the maximum."""
    logits = rng.standard_normal((batch, vocab), np.float32) * np.float32(2.5)
    top = logits.max(axis=1, keepdims=True)
    at = rng.integers(0, vocab, (batch, 5))
    np.put_along_axis(logits, at, top + rng.uniform(-1, 2, at.shape).astype(np.float32), axis=1)
    return logits.astype(DTYPES[dtype])


def buffers(batch: int, vocab: int, dtype: str, cold: bool, torch: Any) -> list[Logits]:
    """One batch of logits, or as many as fill the last cache four times, so that none is in it when its turn comes again."""
    rng = np.random.default_rng(0)
    size = batch * vocab * DTYPES[dtype].itemsize
    count = max(2, -(-4 * cache_bytes(3) // size)) if cold else 1
    whole = np.empty((count, batch, vocab), DTYPES[dtype])
    for block in whole:
        block[:] = logits_of(rng, batch, vocab, dtype)
    tensors = [None] * count if torch is None else [_tensor(torch, block) for block in whole]
    return [Logits(block, tensor) for block, tensor in zip(whole, tensors, strict=True)]


def _tensor(torch: Any, block: np.ndarray) -> Any:
    if block.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(block.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(block)


SLACK = 5e-4  # of p, of the threshold of min-p, and of a probability: what a float32 sum, term by term, has been seen off
CHECKED_ROWS = 3


def verify(case: Case, sampler: Sampler, logits: Logits) -> None:
    """Raises AssertionError unless the sampler keeps what the reference keeps, as probable, and draws from that.

    Tokens are compared by their scores, since equal scores may stand in any order. A cut at p may fall one way or the other
    where the mass is within SLACK of it.
    """
    getattr(sampler, "prepare", lambda: None)()
    tokens, steps = np.asarray(sampler.sample(logits)), case.steps()
    assert tokens.shape == (case.batch,), f"{tokens.shape} tokens for a batch of {case.batch}"
    for b in sorted({*range(min(case.batch, CHECKED_ROWS)), case.batch - 1}):
        row = logits.array[b].astype(np.float64)
        able = [step for step in steps[b] if not isinstance(step, getattr(sampler, "lacks", ()))]
        patches = [step for step in able if isinstance(step, s.PATCHES)]
        score = reference.processed(reference.candidates(row, patches, 0), case.vocab)
        if case.params[b].greedy:
            assert score[tokens[b]] == score.max(), f"row {b}: token {tokens[b]} is not the maximum"
            continue
        least, most = (_kept(row, able, sampler.ties, slack) for slack in (-SLACK, SLACK))
        assert score[tokens[b]] >= score[most[-1]], f"row {b}: token {tokens[b]} was not to be kept"
        if hasattr(sampler, "kept"):
            ids, share = sampler.kept(logits, b)
            _check_kept(np.asarray(ids), np.asarray(share), score, least.size, most, case.params[b].temperature)


def _check_kept(ids: np.ndarray, share: np.ndarray, score: np.ndarray, least: int, most: np.ndarray, t: float) -> None:
    order = np.lexsort((ids, -score[ids]))
    ids, share = ids[order], share[order].astype(np.float64)
    assert least <= ids.size <= most.size, f"kept {ids.size}, not {least} to {most.size}"
    np.testing.assert_allclose(score[ids], score[most[: ids.size]], rtol=1e-6, atol=1e-6, err_msg="the kept scores")
    weight = np.exp((score[ids] - score[ids[0]]) / t)
    np.testing.assert_allclose(share, weight / weight.sum(), rtol=SLACK, atol=1e-12, err_msg="the probabilities")


def _kept(row: np.ndarray, steps: Sequence[s.Step], ties: str, slack: float) -> np.ndarray:
    """The ids that the reference keeps in float64, best first, its cuts being off by `slack`."""
    if ties == "cut":  # lowest ids first, by less than any two scores differ
        row = row - np.arange(len(row)) * 1e-12
    kept = reference.candidates(row, [_moved(step, slack) for step in steps], 0)
    return kept.ids[np.lexsort((kept.ids, -kept.scores))]


def _moved(step: s.Step, slack: float) -> s.Step:
    if isinstance(step, s.TopP):
        return step._replace(p=min(max(step.p + slack, 0.0), 1.0))
    if isinstance(step, s.MinP):
        return step._replace(p=step.p * (1 - slack))
    return step
