"""MlaPrologV2's golden, without quantisation: its published case, that with normal data, and smaller ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import decodestep as ds
from goldens.source import Case, Golden, Source, quiet

_FOLDER = "attention/mla_prolog_v2/tests/pytest"
SOURCE = Source("mirror-cann/ops-transformer", "3a280bcc34d8716c477c5506f3e507c1d0ea3214", (_FOLDER,))
_PUBLISHED = {
    "batch_size": 8, "He": 7168, "Hcq": 1536, "Hckv": 512, "q_head_num": 32, "kv_head_num": 1, "head_dim": 128,
    "rope_head_dim": 64, "q_seq": 1, "kv_seq": 1024, "block_size": 128, "input_layout": "BSH", "cache_mode": "PA_BSND",
    "cq_epsilon": 0.0005, "ckv_epsilon": 0.0005, "dtype": torch.bfloat16,
}  # fmt: skip
_SMALL = {"He": 1024, "Hcq": 512, "q_head_num": 8, "kv_seq": 256}
# Of bfloat16 values by which two orders of summation may differ, when a sum lies at the middle of two.
_ROUNDED_OTHERWISE = 0.06


def cases(golden: Golden) -> Iterator[Case]:
    module = golden.module(f"{_FOLDER}/prologv2_no_quant_pa_bsnd.py")
    for name, change, normal in (
        ("published", {}, False),
        ("published, normal data", {}, True),
        ("small", _SMALL, False),
        ("small, normal data", _SMALL, True),
    ):
        yield Case(name, lambda change=change, normal=normal: _compare(module, _PUBLISHED | change, normal))


def _compare(module: Any, size: dict[str, Any], normal: bool) -> str:
    """The caches exactly, the queries but for what is rounded otherwise."""
    generator = torch.Generator().manual_seed(3)

    def values(*shape: int, depth: int = 1) -> torch.Tensor:
        made = torch.randn(shape, generator=generator) / depth**0.5 if normal else torch.rand(shape, generator=generator)
        return made.bfloat16()

    batch, heads, latent = (size[name] for name in ("batch_size", "q_head_num", "Hckv"))
    hidden, width, nope, rope = (size[name] for name in ("He", "Hcq", "head_dim", "rope_head_dim"))
    blocks = batch * size["kv_seq"] // size["block_size"]
    given = [
        values(batch, 1, hidden), values(hidden, width, depth=hidden), values(width, heads * (nope + rope), depth=width),
        values(heads, nope, latent, depth=nope), values(hidden, latent + rope, depth=hidden), values(width), values(latent),
        values(batch, 1, rope), values(batch, 1, rope),
        torch.randperm(batch * size["kv_seq"], generator=generator)[:batch, None],
        values(blocks, size["block_size"], 1, latent), values(blocks, size["block_size"], 1, rope),
    ]  # fmt: skip
    with quiet():
        want = module.GeneralizedPrologV2(tuple(size.values())).forward(given)
    query, query_rope, kv_cache, kr_cache, _ = ds.mla_prolog_v2(
        *given, rmsnorm_epsilon_cq=size["cq_epsilon"], rmsnorm_epsilon_ckv=size["ckv_epsilon"], cache_mode=size["cache_mode"]
    )
    text = ""
    for name, ours, theirs in zip(
        ("query", "query_rope", "kv_cache", "kr_cache"), (query, query_rope, kv_cache, kr_cache), want, strict=True
    ):
        differs = (ours.float() - theirs.float()).abs()
        share, largest = float((differs > 0).double().mean()), float(differs.max() / theirs.float().abs().max())
        if share > (_ROUNDED_OTHERWISE if name.startswith("query") else 1e-6) or largest > 2.0**-7:
            text += f"{name}: {100 * share:.4f} % differ, by at most {100 * largest:.2f} % of the largest; "
    return text
