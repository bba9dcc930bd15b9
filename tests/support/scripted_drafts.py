"""Drafters that propose what a test says, whatever it costs."""

from __future__ import annotations

import random

from decodestep.generation.drafts import Drafter, Outlook


class Scripted(Drafter):
    """Proposes what a function of the row's tokens says, always as many as it may."""

    is_certain = True  # so that times do not decide

    def __init__(self, tokens):
        self._tokens = tokens

    def outlook(self, row, most):
        return Outlook(len(self.propose(row, most)), 1.0)

    def propose(self, row, limit):
        return self._tokens(row.history.tokens)[:limit]


def partly_right(completions, right):
    """Makes drafters that propose the tokens of these completions, each right with the probability `right`."""
    texts = [[*one.prompt_token_ids, *one.token_ids] for one in completions]

    def propose(tokens):
        chance = random.Random(len(tokens))
        rest = next((whole[len(tokens) :] for whole in texts if whole[: len(tokens)] == tokens), [])
        return [token if chance.random() < right else 3 + token % 100 for token in rest]

    return lambda row: Scripted(propose)
