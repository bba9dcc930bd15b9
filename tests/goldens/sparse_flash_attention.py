"""sparse_flash_attention's golden, the other name of sparse_mla_attention."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

import decodestep as ds
from goldens.lightning_indexer import LAYOUTS
from goldens.source import Case, Golden, Source, quiet
from goldens.sparse_cases import Sequences

_FOLDER = "attention/sparse_flash_attention/tests"
SOURCE = Source("mirror-cann/ops-transformer", "3a280bcc34d8716c477c5506f3e507c1d0ea3214", (_FOLDER,))
_LATENT, _ROPE = 512, 64


def cases(golden: Golden) -> Iterator[Case]:
    module = golden.module(f"{_FOLDER}/assets/impl/golden.py")
    dtypes = torch.bfloat16, torch.float16
    for layouts, dtype, heads, mode, block in product(LAYOUTS, dtypes, (1, 16, 128), (0, 3), (1, 4)):
        name = f"{'/'.join(layouts)}, {dtype}, {heads} heads, sparse mode {mode}, blocks of {block}".replace("torch.", "")
        yield Case(name, lambda each=(layouts, dtype, heads, mode, block): _compare(module, *each))


def _compare(module: Any, layouts: tuple[str, str], dtype: torch.dtype, heads: int, mode: int, block: int) -> str:
    """Within two units in the last place of the largest value: sums are in another order, and rounded once. The softmax's
    maxima and sums are float32."""
    generator = torch.Generator().manual_seed(heads)
    sequences = Sequences(layouts)
    query, rope, latents, rope_keys = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in (
            sequences.of_queries(heads, _LATENT),
            sequences.of_queries(heads, _ROPE),
            sequences.of_keys(1, _LATENT),
            sequences.of_keys(1, _ROPE),
        )
    )
    chosen = choose(sequences, mode, block, generator)
    options = sequences.options("kv", mode, generator)
    options |= {"query_rope": rope, "key_rope": rope_keys, "sparse_block_size": block}
    options["return_softmax_lse"] = True
    with quiet():
        want, *parts = module.cpu_sparse_flash_attention(query, latents, latents, chosen, 0.05, **options)
    ours, *our_parts = ds.sparse_mla_attention(query, latents, None, chosen, 0.05, **options)
    tokens = sequences.is_token()
    off = [_off(ours[tokens], want[tokens])]
    off += [_off(a.squeeze(-3)[tokens], b.squeeze(-3)[tokens]) for a, b in zip(our_parts, parts, strict=True)]
    bounds = 2 * torch.finfo(dtype).eps, 1e-5, 1e-5
    return ", ".join(f"by {each:.2e} of the largest" for each, bound in zip(off, bounds, strict=True) if each > bound)


def _off(ours: torch.Tensor, want: torch.Tensor) -> float:
    return float((ours.float() - want.float()).abs().max() / want.float().abs().max())


def choose(sequences: Sequences, mode: int, block: int, generator: torch.Generator) -> torch.Tensor:
    """Up to twelve blocks of those that a token sees, in any order, then -1: of others the golden and ours differ."""
    chosen = torch.full(sequences.of_queries(1, 16), -1, dtype=torch.int32)
    rows = chosen[sequences.is_token()]
    seen = [
        keys - (tokens - 1 - i if mode == 3 else 0)
        for tokens, keys in zip(sequences.tokens, sequences.keys, strict=True)
        for i in range(tokens)
    ]
    for row, positions in zip(rows, seen, strict=True):
        blocks = torch.randperm(-(-positions // block), generator=generator)[:12].int()
        row[0, : len(blocks)] = blocks
    chosen[sequences.is_token()] = rows
    return chosen
