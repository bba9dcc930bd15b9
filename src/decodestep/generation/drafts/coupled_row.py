"""Coupled rows: what a drafter draws with, in the place of the row that it drafts for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decodestep.generation.drafts.drafter import count_equal
from decodestep.ops.decode_step.rows import new_row, step_rows
from decodestep.sampling.row import Row
from decodestep.sampling.token_history import TokenHistory


class CoupledRow:
    """Draws from a drafter's logits with the params, the seed and so the noise of a row, but without touching it.

        token = first argmax of processed(logits) + gumbel(seed, position, token)        as in the row, at the same position

    With p and q the two distributions, of the row's logits and of the drafter's, and TV = sum |p - q| / 2, both draw the same
    token with a probability of at least (1 - TV) / (1 + TV) (Daliri, Musco and Suresh, arXiv:2408.07978): always where the
    logits are equal, at every temperature. Independent draws would agree with sum p q, hardly ever where much is likely.

    It has those processors of the row that run fused, without its constraint and its thinking budget: those of a caller's own
    see the row's tokens alone. It has no text, no log-probabilities and no limit, and goes on after its draws have been
    refused.
    """

    def __init__(self, row: Row) -> None:
        self._history = TokenHistory(row.history.tokens[: row.history.prompt_length])
        self._followed = len(self._history)  # tokens that are the row's; those after them are draws
        self._ends = row.ends.union(row.params.stop_token_ids)
        kept = [each for each in (row.constraint, row.budget) if each is not None]  # which have read the row's tokens
        self._native = new_row(
            row.plan.vocab_size,
            self._history,
            [
                stage.part
                for stage in row.plan.stages
                if stage.part is not None and not (kept and any(stage.processor is each for each in kept))
            ],
            greedy=row.params.greedy,
            seed=row.seed or 0,
            top_logprobs=None,
            ends=(),
            stops=(),
            limit=None,
        )

    def follow(self, tokens: Sequence[int]) -> None:
        """Makes its tokens those of the row, in time proportional to those that are new since it last did.

        tokens: all of the row's, the prompt included, which begin with those that it followed before.
        """
        ours = self._history.tokens
        same = count_equal(ours, tokens, self._followed)
        if same < len(ours):
            self._history.truncate(same)
        for token in tokens[same:]:
            self._history.append(token)
        self._followed = len(tokens)
        self._native.ended = False

    def draw(self, logits: np.ndarray) -> int:
        """The token drawn from logits (V,), which it appends, until it follows the row again; -1 if there is none left."""
        return draw_each([self], logits[None])[0]

    def is_end(self, token: int) -> bool:
        """Whether a token that was drawn is the last: one that ends the row, or -1."""
        return token < 0 or token in self._ends


def draw_each(rows: Sequence[CoupledRow], logits: np.ndarray) -> list[int]:
    """The draws of several rows, from logits (len(rows), V)."""
    tokens: list[int] = step_rows(logits, [row._native for row in rows])[0].tolist()
    return tokens
