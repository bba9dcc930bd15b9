"""lightning_indexer's golden: bfloat16 and float16 keys. Its scores are rounded to bfloat16, so are ours for it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

import decodestep as ds
from goldens.source import Case, Golden, Source, quiet
from goldens.sparse_cases import Sequences

_FOLDER = "attention/lightning_indexer/tests"
SOURCE = Source("mirror-cann/ops-transformer", "3a280bcc34d8716c477c5506f3e507c1d0ea3214", (_FOLDER,))
_WIDTH = 128
LAYOUTS = [("BSND", "BSND"), ("TND", "TND"), ("BSND", "PA_BSND"), ("TND", "PA_BSND")]


def cases(golden: Golden) -> Iterator[Case]:
    module = golden.module(f"{_FOLDER}/assets/impl/golden.py")
    for layouts, dtype, heads, mode, count in product(LAYOUTS, (torch.bfloat16, torch.float16), (8, 64), (0, 3), (16, 2048)):
        name = f"{'/'.join(layouts)}, {dtype}, {heads} heads, sparse mode {mode}, {count} of each".replace("torch.", "")
        yield Case(name, lambda each=(layouts, dtype, heads, mode, count): _compare(module, *each))


def _compare(module: Any, layouts: tuple[str, str], dtype: torch.dtype, heads: int, mode: int, count: int) -> str:
    generator = torch.Generator().manual_seed(heads + count)
    sequences = Sequences(layouts)
    query, weights, key = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in (sequences.of_queries(heads, _WIDTH), sequences.of_queries(heads), sequences.of_keys(1, _WIDTH))
    )
    options = sequences.options("key", mode, generator) | {"sparse_count": count, "return_value": True}
    with quiet():
        want, _ = module.cpu_lightning_indexer(query, key, weights, **options)
    ours = ds.lightning_indexer(query, key, weights, **options, rounding="device", backend="reference")
    exact = ds.lightning_indexer(query, key, weights, **options | {"sparse_count": max(sequences.keys)})
    return differing(want, torch.as_tensor(ours.sparse_indices), exact, sequences, 2**-7)


def differing(want: torch.Tensor, ours: torch.Tensor, exact: Any, sequences: Sequences, tolerance: float) -> str:
    """What is chosen by one alone and scored otherwise than what the other chose, by more than tolerance of the largest score.
    exact: the scores of all positions."""
    tokens = sequences.is_token()
    want, ours, places = (torch.as_tensor(each)[tokens][:, 0].long() for each in (want, ours, exact.sparse_indices))
    if not torch.equal(want < 0, ours < 0):
        return f"{int(((want < 0) != (ours < 0)).sum())} of {want.numel()} places are chosen by one alone"
    values = torch.as_tensor(exact.sparse_values)[tokens][:, 0]
    past = max(sequences.keys)
    scores = torch.full((len(values), past + 1), -torch.inf)
    scores.scatter_(-1, torch.where(places < 0, past, places), values)
    at_want, at_ours = (torch.gather(scores, -1, each.clamp_min(0)) for each in (want, ours))
    off = (at_want - at_ours).abs()[(want >= 0) & (want != ours)]
    wrong = int((off > tolerance * values[values.isfinite()].abs().max()).sum())
    return f"{wrong} positions of other scores" if wrong else ""
