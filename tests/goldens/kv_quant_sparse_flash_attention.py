"""kv_quant_sparse_flash_attention's golden: sparse_mla_attention over rows that are quantised by tiles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

import decodestep as ds
from goldens.mla_attention import SOURCE as SOURCE
from goldens.mla_attention import rows_by_tiles
from goldens.source import Case, Golden, quiet
from goldens.sparse_cases import BLOCK, Sequences
from goldens.sparse_flash_attention import choose

_LATENT, _ROPE = 512, 64


def cases(golden: Golden) -> Iterator[Case]:
    module = golden.module("attention/kv_quant_sparse_flash_attention/tests/assets/impl/golden.py")
    codes = torch.int8, torch.float8_e4m3fn
    for code, dtype, heads, mode, block in product(codes, (torch.bfloat16, torch.float16), (1, 16, 128), (0, 3), (1, 4)):
        name = f"{code}, {dtype} queries, {heads} heads, sparse mode {mode}, blocks of {block}".replace("torch.", "")
        yield Case(name, lambda each=(code, dtype, heads, mode, block): _compare(module, *each))


def _compare(module: Any, code: torch.dtype, dtype: torch.dtype, heads: int, mode: int, block: int) -> str:
    """Within two units in the last place of the largest value: with the devices' roundings, sums in another order."""
    generator = torch.Generator().manual_seed(heads)
    sequences = Sequences(("BSND", "PA_BSND"))
    query = torch.randn(sequences.of_queries(heads, _LATENT + _ROPE), generator=generator).to(dtype)
    rows = rows_by_tiles(sequences.of_keys(1, 1)[0], code, generator)
    assert rows.shape[1] == BLOCK
    chosen = choose(sequences, mode, block, generator)
    options = sequences.options("kv", mode, generator) | {"sparse_block_size": block}
    with quiet():
        want = module.cpu_kv_quant_sparse_flash_attention(query, rows, rows, chosen, 0.05, 2, 2, attention_mode=2, **options)
    nope, rope = (part.contiguous() for part in query.split((_LATENT, _ROPE), dim=-1))
    ours = ds.sparse_mla_attention(nope, rows, None, chosen, 0.05, query_rope=rope, rounding="device", **options)
    tokens = sequences.is_token()
    off = (ours[tokens].float() - want[tokens].float()).abs().max() / want[tokens].float().abs().max()
    return f"by {float(off):.2e} of the largest" if off > 2 * torch.finfo(dtype).eps else ""
