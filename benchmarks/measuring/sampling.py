"""Shared by the sampling benchmarks: cases, and logits in and out of the caches.

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

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np

import decodestep as ds
from decodestep.ops.decode_step import steps as s
from decodestep.sampling.param_steps import processors_of
from decodestep.sampling.plan import plan
from decodestep.sampling.token_history import TokenHistory
from measuring.memory import cache_bytes

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
