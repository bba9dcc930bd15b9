"""quant_lightning_indexer's golden, of int8: lightning_indexer with scales."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

import decodestep as ds
from goldens.lightning_indexer import LAYOUTS, differing
from goldens.source import Case, Golden, Source, quiet
from goldens.sparse_cases import Sequences

_FOLDER = "attention/quant_lightning_indexer/tests"
SOURCE = Source("mirror-cann/ops-transformer", "3a280bcc34d8716c477c5506f3e507c1d0ea3214", (_FOLDER,))
_WIDTH = 128


def cases(golden: Golden) -> Iterator[Case]:
    module = golden.module(f"{_FOLDER}/assets/impl/golden.py")
    for layouts, heads, mode, count in product(LAYOUTS, (8, 64), (0, 3), (16, 2048)):
        name = f"{'/'.join(layouts)}, {heads} heads, sparse mode {mode}, {count} of each"
        yield Case(name, lambda each=(layouts, heads, mode, count): _compare(module, *each))


def _compare(module: Any, layouts: tuple[str, str], heads: int, mode: int, count: int) -> str:
    generator = torch.Generator().manual_seed(heads + count)
    sequences = Sequences(layouts)
    query = torch.randint(-128, 128, sequences.of_queries(heads, _WIDTH), generator=generator, dtype=torch.int8)
    key = torch.randint(-128, 128, sequences.of_keys(1, _WIDTH), generator=generator, dtype=torch.int8)
    weights = torch.randn(sequences.of_queries(heads), generator=generator).half()
    query_scale, key_scale = (
        torch.rand(shape, generator=generator).half() for shape in (sequences.of_queries(heads), sequences.of_keys(1))
    )
    options = sequences.options("key", mode, generator) | {"sparse_count": count}
    with quiet():
        # Its adapter takes the width from a scale's last axis, so a paged one comes with an axis more.
        paged = key_scale[..., None] if layouts[1] == "PA_BSND" else key_scale
        want = module.cpu_quant_lightning_indexer(query, key, weights, query_scale, paged, **options)
    scales = {"query_dequant_scale": query_scale, "key_dequant_scale": key_scale}
    ours = ds.lightning_indexer(query, key, weights, **options, **scales, rounding="device", backend="reference")
    every = options | {"sparse_count": max(sequences.keys), "return_value": True}
    exact = ds.lightning_indexer(query, key, weights, **every, **scales)
    return differing(want, torch.as_tensor(ours.sparse_indices), exact, sequences, 2**-10)
