"""recurrent_gated_delta_rule's golden against `gated_delta_rule`, token by token.

The golden's state is transposed and has a place for every token: a row begins with that of the last token that was accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch

import decodestep as ds
from goldens.delta_cases import REPOSITORY, SIZES, Sizes, differences, inputs_of
from goldens.source import Case, Golden, Source, quiet

_FOLDER = "attention/recurrent_gated_delta_rule/tests/pytest"
SOURCE = Source(*REPOSITORY, (_FOLDER,))


def cases(golden: Golden) -> Iterator[Case]:
    module = golden.module(f"{_FOLDER}/recurrent_gated_delta_rule_golden.py")
    for sizes, of_heads, of_rows, accepted in product(SIZES, (False, True), (False, True), (False, True)):
        decays = " and ".join(name for name, given in (("heads", of_heads), ("rows", of_rows)) if given) or "nothing"
        name = f"{sizes}, decays of {decays}{', after drafts' if accepted else ''}"
        yield Case(name, lambda each=(sizes, of_heads, of_rows, accepted): _compare(module, *each))


def _compare(module: Any, sizes: Sizes, of_heads: bool, of_rows: bool, accepted: bool) -> str:
    rng, lengths = np.random.default_rng(0), sizes[-1]
    q, k, v, beta, g = inputs_of(sizes, rng)
    tokens, heads, rows = len(q), v.shape[1], q.shape[2]
    gk = rng.uniform(-1, 0, (tokens, heads, rows)).astype(np.float32)
    states = rng.uniform(-10, 10, (tokens + 3, heads, v.shape[2], rows)).astype(np.float32)
    places = rng.permutation(len(states))[:tokens]
    last = np.array([rng.integers(1, length + 1) for length in lengths]) if accepted else np.ones(len(lengths), int)
    with quiet():
        theirs, kept = module.cpu_recurrent_gated_delta_rule(
            *(torch.tensor(each) for each in (q, k, v, states, beta)),
            rows**-0.5,
            torch.tensor(lengths),
            torch.tensor(places),
            num_accepted_tokens=torch.tensor(last) if accepted else None,
            g=torch.tensor(g) if of_heads else None,
            gk=torch.tensor(gk) if of_rows else None,
        )
    decay = g if of_heads else np.zeros_like(g)
    decay = decay[..., None] + gk if of_rows else decay
    state, ours = states.swapaxes(2, 3).copy(), np.empty_like(v)
    for first, length, start in zip(np.cumsum([0, *lengths[:-1]]), lengths, last, strict=True):
        read = places[first + start - 1]
        for t in range(first, first + length):
            one = slice(t, t + 1)
            call = {"scale": rows**-0.5, "slots": [read], "into": [places[t]]}
            ours[one] = ds.gated_delta_rule(q[one], k[one], v[one], state, decay[one], beta[one], **call)
            read = places[t]
    return differences(1e-6, results=(ours, theirs), states=(state.swapaxes(2, 3), kept))
