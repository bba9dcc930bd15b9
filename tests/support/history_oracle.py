"""What a history answers, for comparisons: with another that has the same tokens."""

from __future__ import annotations

import numpy as np

from decodestep.sampling.token_history import SequenceEndings, TokenHistory

SEQUENCES = SequenceEndings({(1, 2): 1.0, (2,): 0.5, (0, 1, 2): -2.0, (1, 1): 3.0})


def answers(history: TokenHistory) -> list[object]:
    """Everything that can be asked of a history, of each of its indexes."""
    asked: list[object] = [history.tokens, history.ids().tolist(), len(history), history.highest, history.prompt_length]
    asked += [[array.tolist() for array in history.tally(skipped)] for skipped in (0, 1, 4)]
    asked += [history.followers(n).tolist() for n in (1, 2, 3, 5)]
    asked.append([array.tolist() for array in history.endings(SEQUENCES)])
    for shortest, longest, breakers, reach in ((1, 50, [], 0), (2, 7, [2], 0), (1, 50, [0], 9)):
        found = history.continuations(shortest, longest, np.array(breakers, np.int64), reach)
        asked.append([array.tolist() for array in found])
    return asked
