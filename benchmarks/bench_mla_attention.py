"""mla_attention on the paged latent cache, against torch's attention with keys and values gathered beforehand.

    python benchmarks/bench_mla_attention.py [--rounds 15] [--threads 1] [--contexts 100 1000 4000 16000] [--device cuda]

DeepSeek's sizes (16 and 128 heads on one latent of 512) and the default model's (9 heads in 3 groups of 64): one token after
a context, and a prompt. A round reads caches of more than the last level of cache, layer after layer, as a model does.
"""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np

import decodestep as ds
from gpu.device import KINDS
from measuring.harness import Call, Report, options, run_main, torch

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BLOCK, SCALE, STORED = 16, 0.05, np.float32(30)
COLD = 96 << 20  # bytes of cache that a round reads
rng = np.random.default_rng(0)


class Shape(NamedTuple):
    heads: int
    latent: int
    rope: int
    groups: int


SHAPES = {"SmolLM2": Shape(9, 192, 192, 3), "DeepSeek, 16 heads": Shape(16, 512, 64, 1), "DeepSeek": Shape(128, 512, 64, 1)}


class Case:
    """Queries of some tokens at the end of a context, and the caches of as many layers as a round reads."""

    def __init__(self, shape: Shape, context: int, tokens: int) -> None:
        self.shape, self.context, self.tokens = shape, context, tokens
        self.query = rng.standard_normal((tokens, shape.heads, shape.latent), np.float32) if shape.groups == 1 else None
        self.rope = rng.standard_normal((tokens, shape.heads, shape.rope), np.float32)
        if shape.groups > 1:
            pair = np.arange(shape.rope) % (shape.rope // 2) // (shape.rope // 2 // shape.groups)
            self.rope *= pair == np.arange(shape.heads)[:, None] // (shape.heads // shape.groups)
        blocks = -(-context // BLOCK)
        self.kv, self.kr = (rng.standard_normal((blocks, BLOCK, 1, n), np.float32) for n in (shape.latent, shape.rope))
        self.table = rng.permutation(blocks)[None]

    def ours(self, dtype: np.dtype, layers: int, backend: str = "auto") -> Call:
        scale = np.full(1, STORED) if dtype == np.int8 else None
        kv, kr = (self._stored(cache, dtype, layers) for cache in (self.kv, self.kr))
        lengths, sequence = np.arange(self.context - self.tokens, self.context) + 1, np.zeros(self.tokens, int)

        def call() -> np.ndarray:
            for layer in range(layers):
                out = ds.mla_attention(
                    self.query, self.rope, kv[layer], kr[layer], self.table, lengths, scale=SCALE, sequence=sequence,
                    groups=self.shape.groups, quant_scale_ckv=scale, quant_scale_ckr=scale, backend=backend,
                )  # fmt: skip
            return out

        return call

    def theirs(self, dtype: np.dtype, layers: int) -> Call:
        """As torch likes it best: the heads that share keys are rows of one query; with groups, keys and values are those of
        the model before its conversion."""
        heads, latent, rope, groups = self.shape
        kv, kr = (cache[self.table[0]].reshape(-1, cache.shape[3])[: self.context] for cache in (self.kv, self.kr))
        if groups == 1:
            keys, values = np.concatenate([kv, kr], -1)[None], kv[None]
            queries = np.concatenate([self.query, self.rope], -1)
        else:
            keys = kr.reshape(-1, 2, groups, rope // 2 // groups).transpose(2, 0, 1, 3).reshape(groups, len(kr), -1)
            values = kv.reshape(-1, groups, latent // groups).swapaxes(0, 1)
            halves = self.rope.reshape(self.tokens, heads, 2, groups, -1)
            queries = np.stack([halves[:, n, :, n // (heads // groups)].reshape(self.tokens, -1) for n in range(heads)], 1)
        rows = queries.reshape(self.tokens, groups, heads // groups, -1).swapaxes(0, 1).reshape(groups, -1, queries.shape[-1])
        kind = getattr(torch, dtype.name)
        q = torch.from_numpy(np.ascontiguousarray(rows))[None].to(kind)
        k, v = (torch.from_numpy(np.ascontiguousarray(a)).to(kind)[None].repeat(layers, 1, 1, 1) for a in (keys, values))
        seen = torch.ones(self.tokens, self.context, dtype=torch.bool).tril(self.context - self.tokens)
        mask = None if self.tokens == 1 else seen.repeat_interleave(heads // groups, 0)

        def call() -> np.ndarray:
            for layer in range(layers):
                out = torch.nn.functional.scaled_dot_product_attention(
                    q, k[layer : layer + 1], v[layer : layer + 1], mask, scale=SCALE
                )
            return out[0].unflatten(1, (self.tokens, -1)).swapaxes(0, 1).flatten(1, 2).float().numpy()

        return call

    @staticmethod
    def _stored(cache: np.ndarray, dtype: np.dtype, layers: int) -> np.ndarray:
        one = np.clip(np.rint(cache * STORED), -127, 127) if dtype == np.int8 else cache
        return np.broadcast_to(one.astype(dtype), (layers, *cache.shape)).copy()


def main() -> None:
    chosen = options(__doc__, {"device": KINDS}, contexts=(100, 1000, 4000, 16000), prompt=1000, device="cpu")
    if chosen.device != "cpu":
        from gpu import attention as device_attention

        return device_attention.run(chosen)
    report = Report("mla_attention", chosen.threads)
    cases = [(name, context, 1) for name in SHAPES for context in chosen.contexts]
    cases += [("SmolLM2", chosen.prompt, chosen.prompt), ("DeepSeek, 16 heads", chosen.prompt // 4, chosen.prompt // 4)]
    for name, context, tokens in cases:
        case = Case(SHAPES[name], context, tokens)
        size = case.kv.nbytes + case.kr.nbytes
        layers = 1 if tokens > 1 or SHAPES[name].heads == 128 else max(1, COLD // size)
        exact = case.ours(np.dtype(np.float32), 1, "reference")()
        calls: dict[str, Call] = {}
        for dtype in (BFLOAT16, np.dtype(np.float32), np.dtype(np.int8)):
            calls[f"ours, {dtype.name}"] = case.ours(dtype, layers)
            want = exact if dtype == np.float32 else case.ours(dtype, 1, "reference")()
            np.testing.assert_allclose(calls[f"ours, {dtype.name}"](), want, rtol=1e-4, atol=1e-5)
            if torch is not None and dtype != np.int8:
                calls[f"torch, {dtype.name}"] = case.theirs(dtype, layers)
                np.testing.assert_allclose(calls[f"torch, {dtype.name}"](), exact, rtol=0.05, atol=0.05)
        label = f"{name}, context {context}" + (f", {tokens} tokens" if tokens > 1 else f", {layers} layer{'s' * (layers > 1)}")
        report.case(label, calls, chosen.rounds, layers * size / 2)
    report.save()


if __name__ == "__main__":
    run_main(main)
