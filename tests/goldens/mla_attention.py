"""kv_quant_sparse_flash_attention's golden, all entries selected: mla_attention over rows that are quantised by tiles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

import decodestep as ds
from goldens.source import Case, Golden, Source, quiet

_FOLDER = "attention/kv_quant_sparse_flash_attention/tests"
SOURCE = Source("mirror-cann/ops-transformer", "3a280bcc34d8716c477c5506f3e507c1d0ea3214", (_FOLDER,))
_LATENT, _ROPE, _TILE, _BLOCK = 512, 64, 128, 16


def cases(golden: Golden) -> Iterator[Case]:
    module = golden.module(f"{_FOLDER}/assets/impl/golden.py")
    codes = torch.int8, torch.float8_e4m3fn
    for code, query, heads, mode in product(codes, (torch.bfloat16, torch.float16), (1, 16, 128), (0, 3)):
        name = f"{code}, {query} queries, {heads} heads, sparse mode {mode}".replace("torch.", "")
        yield Case(name, lambda each=(code, query, heads, mode): _compare(module, *each))


def _compare(module: Any, code: torch.dtype, dtype: torch.dtype, heads: int, mode: int) -> str:
    """Within two units in the last place of the largest value: sums are in another order, and rounded once."""
    generator = torch.Generator().manual_seed(heads)
    batch, tokens, lengths = 2, 3, [70, 33]
    blocks = [-(-length // _BLOCK) for length in lengths]
    table = torch.full((batch, max(blocks)), -1, dtype=torch.int32)
    table[0, : blocks[0]], table[1, : blocks[1]] = torch.randperm(sum(blocks), generator=generator).int().split(blocks)
    rows = rows_by_tiles(sum(blocks), code, generator)
    query = torch.randn(batch, tokens, heads, _LATENT + _ROPE, generator=generator).to(dtype)
    chosen = torch.arange(max(lengths), dtype=torch.int32).expand(batch, tokens, 1, -1).contiguous()
    with quiet():
        want = module.cpu_kv_quant_sparse_flash_attention(
            query, rows, rows, chosen, 0.05, 2, 2, block_table=table, actual_seq_lengths_query=[tokens] * batch,
            actual_seq_lengths_kv=lengths, sparse_mode=mode, layout_kv="PA_BSND", attention_mode=2,
        )  # fmt: skip
    seen = [length - (tokens - 1 - t if mode == 3 else 0) for length in lengths for t in range(tokens)]
    flat = query.reshape(batch * tokens, heads, -1).float()
    ours = ds.mla_attention(
        flat[..., :_LATENT].contiguous(), flat[..., _LATENT:].contiguous(), rows, None, table, seen, scale=0.05,
        sequence=torch.arange(batch).repeat_interleave(tokens),
    )  # fmt: skip
    largest = float((ours.reshape(want.shape) - want.float()).abs().max() / want.float().abs().max())
    return f"by {largest:.2e} of the largest" if largest > 2 * torch.finfo(dtype).eps else ""


def rows_by_tiles(blocks: int, code: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Random rows of 656 bytes."""
    shape = blocks, _BLOCK, 1
    values = torch.randn(*shape, _LATENT, generator=generator) * 40
    latent = values.clamp(-127, 127).round().to(torch.int8) if code == torch.int8 else values.to(code)
    key = torch.randn(*shape, _ROPE, generator=generator).bfloat16()
    scale = torch.rand(*shape, _LATENT // _TILE, generator=generator) * 0.02 + 0.01
    return torch.cat([part.contiguous().view(torch.int8) for part in (latent, key, scale)], dim=-1).view(code)
