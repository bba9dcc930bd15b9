"""The most likely tokens of a trace, with their probabilities at every stage."""

from __future__ import annotations

from typing import Any

import numpy as np

from decodestep.explain.spelling import spell
from decodestep.models import Model
from decodestep.sampling.distribution import probabilities
from decodestep.sampling.trace import Trace


def stages_of(model: Model, trace: Trace, count: int) -> dict[str, Any]:
    """Probabilities before the plan and after each step, and the drawn token, as values that JSON can hold.

    tokens: the `count` most likely tokens of the first and of the last stage, the most likely first; a probability is None
    once a step has dropped the token. others: the total probability of all other tokens, at each stage. left: how many tokens
    are not dropped, at each stage.
    """
    ids = trace.top(count)
    stages = [probabilities(scores) for scores in trace.stages]
    alive = [scores > -np.inf for scores in trace.stages]
    return {
        "tokens": [
            {
                "token_id": int(i),
                "token": spell(model.tokenizer, int(i)),
                "probabilities": [float(p[i]) if left[i] else None for p, left in zip(stages, alive, strict=True)],
            }
            for i in ids
        ],
        "others": [float(np.delete(p, ids).sum()) for p in stages],
        "left": [int(np.count_nonzero(left)) for left in alive],
        "next_token": None if trace.token < 0 else {"token_id": trace.token, "token": spell(model.tokenizer, trace.token)},
    }
