"""causal_conv1d's golden.

With drafts, of which a row runs all and one token more, its rows of states have more inputs, of which a row reads those before
the last token that was accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

import decodestep as ds
from goldens.delta_cases import REPOSITORY, differences
from goldens.source import Case, Golden, Source, quiet

_FOLDER = "mamba/causal_conv1d/tests"
SOURCE = Source(*REPOSITORY, (_FOLDER,))
_TAPS, _CHANNELS = 4, 37


def cases(golden: Golden) -> Iterator[Case]:
    module = golden.module(f"{_FOLDER}/assets/golden.py")
    rows = [((1,), 0), ((7, 1, 2, 30), 0), ((4, 4), 0), ((4, 4), 3), ((3, 3, 3), 2)]
    for (lengths, drafts), activation in product(rows, (None, "silu")):
        yield Case(
            f"{lengths}, {drafts} drafts, {activation}", lambda each=(lengths, drafts, activation): _compare(module, *each)
        )


def _compare(module: Any, lengths: tuple[int, ...], drafts: int, activation: str | None) -> str:
    rng, rows = np.random.default_rng(0), len(lengths)
    x, weight, bias, states = (
        rng.normal(size=shape).astype(np.float32)
        for shape in (
            (sum(lengths), _CHANNELS),
            (_TAPS, _CHANNELS),
            (_CHANNELS,),
            (rows + 2, _TAPS - 1 + drafts, _CHANNELS),
        )
    )
    places, accepted = 1 + rng.permutation(rows), rng.integers(1, drafts + 2, rows)
    with quiet():
        kept, theirs = module.CausalConv1d(
            x,
            weight,
            states,
            bias,
            np.cumsum([0, *lengths]).astype(np.int32),
            places.astype(np.int32),
            np.ones(rows, np.int32),
            accepted.astype(np.int32) if drafts else None,
            activation_mode=activation or "none",
        )
    begins = (accepted if drafts else np.ones(rows, int)) - 1
    state = np.stack([states[place, first : first + _TAPS - 1] for place, first in zip(places, begins, strict=True)])
    ours = ds.causal_conv1d(x, weight.T, state, lengths, bias=bias, activation=activation)
    return differences(1e-6, results=(ours, theirs), states=(state, kept[places][:, -(_TAPS - 1) :]))
