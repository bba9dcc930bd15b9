"""Verification of a sampler, ours or a peer's, against the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decodestep.ops.decode_step import reference
from decodestep.ops.decode_step import steps as s
from measuring.sampling import Case, Logits, Sampler

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
