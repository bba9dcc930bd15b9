"""Jump-forward decoding: tokens that a row's constraint alone decides are drawn without logits, and run together."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from decodestep.ops.decode_step.rows import END_REASONS, step_rows
from decodestep.sampling.row import Row

MAX_JUMP = 16  # tokens at once: so that a row with many does not hold up the others of its pass


def jump(row: Row, most: int = MAX_JUMP) -> str:
    """Draws at most `most` tokens for the row, as long as its constraint allows exactly one; returns the text that they add.

    A token that is the only candidate is drawn whatever its logit, unless another processor forbids it, which any logits show:
    the row's tokens, end and draws are those of `Sampler.step` if the logits are finite. Rows without a constraint, with the
    caller's own processors or with log-probabilities are not changed.
    """
    constraint, text = row.constraint, ""
    if constraint is None or row.plan.unfused or row.params.logprobs is not None:
        return text
    try:
        for _ in range(most):
            if row.reason or not constraint.forces(row.history.tokens):
                break
            [token], end_codes, _ = step_rows(_zeros(row.plan.vocab_size), [row.native])
            text += row.accept(int(token), END_REASONS[end_codes[0] if end_codes else 0])
    except Exception as error:  # the constraint's, or that of the row's own text
        text += row.fail(error)
    return text


@lru_cache(maxsize=4)
def _zeros(vocab: int) -> np.ndarray:
    return np.zeros((1, vocab), np.float32)
