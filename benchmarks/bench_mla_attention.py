"""mla_attention over the paged latent cache, against torch's attention on the same heads, keys and values gathered beforehand.

    python benchmarks/bench_mla_attention.py [--rounds 15] [--threads 1]

DeepSeek's sizes (16 heads on one latent of 512) and the default model's (9 heads in 3 groups of 64), one token after a context.
"""

from __future__ import annotations

import numpy as np

import decodestep as ds
from harness import Call, Report, options, torch

SHAPES = {"DeepSeek": (16, 512, 64, 1), "SmolLM2": (9, 192, 192, 3)}
CONTEXTS = (128, 1024, 4096)
BLOCK, SCALE = 16, 0.05
rng = np.random.default_rng(0)


def torch_attention(query, query_rope, kv, kr):
    """Softmax over the latents as keys and values, one head dimension of latent and rope together."""
    q = torch.from_numpy(np.concatenate([query, query_rope], -1)).transpose(0, 1)
    k = torch.from_numpy(np.concatenate([kv, kr], -1)).expand(q.shape[0], -1, -1)
    v = torch.from_numpy(kv).expand(q.shape[0], -1, -1)
    return lambda: torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], scale=SCALE)[0].transpose(0, 1)


def main() -> None:
    chosen = options(__doc__)
    report = Report("mla_attention", chosen.threads)
    for name, (heads, latent, rope, groups) in SHAPES.items():
        for context in CONTEXTS:
            blocks = context // BLOCK
            kv = rng.standard_normal((blocks, BLOCK, 1, latent), np.float32)
            kr = rng.standard_normal((blocks, BLOCK, 1, rope), np.float32)
            query = rng.standard_normal((1, heads, latent), np.float32) if groups == 1 else None
            query_rope = rng.standard_normal((1, heads, rope), np.float32)
            if groups > 1:
                query_rope *= (np.arange(rope) % (rope // 2) // (rope // 2 // groups)) == np.arange(heads)[:, None] // (
                    heads // groups
                )
            table = rng.permutation(blocks)[None]

            def ours(backend="auto", q=query, qr=query_rope, kv=kv, kr=kr, table=table, n=context, groups=groups):
                return ds.mla_attention(q, qr, kv, kr, table, [n], scale=SCALE, groups=groups, backend=backend)

            np.testing.assert_allclose(ours(), ours("reference"), rtol=1e-4, atol=1e-5)
            calls: dict[str, Call] = {"ours": ours, "reference": lambda ours=ours: ours("reference")}
            if torch is not None:
                zeros = np.zeros((1, heads, latent), np.float32) if query is None else query
                order = table[0]
                theirs = torch_attention(zeros, query_rope, kv[order].reshape(1, -1, latent), kr[order].reshape(1, -1, rope))
                if groups == 1:
                    np.testing.assert_allclose(theirs().numpy(), ours(), rtol=1e-3, atol=1e-4)
                calls["torch, absorbed"] = theirs
            report.case(f"{name} context={context}", calls, chosen.rounds, kv.nbytes + kr.nbytes)
    report.save()


if __name__ == "__main__":
    main()
