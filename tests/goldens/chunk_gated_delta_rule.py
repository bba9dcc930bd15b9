"""chunk_gated_delta_rule's golden against `gated_delta_rule`: the same recurrence, computed by chunks of 64 tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import decodestep as ds
from goldens.delta_cases import REPOSITORY, SIZES, Sizes, differences, inputs_of
from goldens.source import Case, Golden, Source, quiet

_FOLDER = "attention/chunk_gated_delta_rule/tests/pytest"
SOURCE = Source(*REPOSITORY, (_FOLDER,))


def cases(golden: Golden) -> Iterator[Case]:
    module = golden.module(f"{_FOLDER}/chunk_gated_delta_rule_golden.py")
    for sizes in [*SIZES, (2, 4, 32, 48, (37, 64, 1, 130))]:
        yield Case(str(sizes), lambda each=sizes: _compare(module, each))


def _compare(module: Any, sizes: Sizes) -> str:
    rng, lengths = np.random.default_rng(0), sizes[-1]
    q, k, v, beta, g = inputs_of(sizes, rng)
    state = rng.uniform(0, 1, (len(lengths), v.shape[1], q.shape[2], v.shape[2])).astype(np.float32)
    with quiet():
        theirs, kept = module.chunk_gated_delta_rule_npu(
            *(torch.tensor(each)[None] for each in (q, k, v, g, beta)),
            initial_state=torch.tensor(state),
            cu_seqlens=torch.tensor(np.cumsum([0, *lengths])),
        )
    ours = ds.gated_delta_rule(q, k, v, state, g, beta, lengths, scale=q.shape[2] ** -0.5)
    return differences(2e-6, results=(ours, theirs[0]), states=(state, kept))
