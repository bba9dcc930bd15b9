"""Tokens as readable text, and the most likely tokens of a trace with their probabilities at every stage."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

import numpy as np

from decodestep.models import Model
from decodestep.sampling.distribution import probabilities
from decodestep.sampling.trace import Trace
from decodestep.tokenizers.tokenizer import Tokenizer


def spell(tokenizer: Tokenizer, token: int) -> str:
    """The token's text; for a control token, its name; for part of a character, its bytes: ‹E4 BD›."""
    data = tokenizer.token_bytes(token)
    if not data:
        return tokenizer.token(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return f"‹{data.hex(' ').upper()}›"


def pieces(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """The text that each token adds: a character belongs to the token with its last byte."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = []
    for token in tokens:
        data = tokenizer.token_bytes(token)
        found.append(decoder.decode(data) if data else tokenizer.token(token))
    return found


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
