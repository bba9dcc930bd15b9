"""sparse_mla_attention after lightning_indexer, at DeepSeek V3.2's sizes, against the dense mla_attention on the same cache.

python benchmarks/bench_sparse_mla_attention.py [--rounds 15] [--threads 1] [--contexts 4000 32000]
"""

from __future__ import annotations

import numpy as np

import bench_lightning_indexer as indexer
import decodestep as ds
from measuring.harness import Call, Report, options, run_main

HEADS, LATENT, ROPE, SCALE = 128, 512, 64, 192**-0.5


class Case:
    """Queries of some tokens at the end of a context, its latents and its index keys in the same pages."""

    def __init__(self, context: int, tokens: int) -> None:
        rng = np.random.default_rng(1)
        self.index = indexer.Case(context, tokens)
        self.table = self.index.lengths["block_table"]
        widths = LATENT, ROPE
        self.query, self.query_rope = (rng.standard_normal((tokens, HEADS, w), np.float32) for w in widths)
        shape = self.index.key.shape[:3]
        self.latents, self.rope_keys = (rng.standard_normal((*shape, w), np.float32).astype(indexer.BFLOAT16) for w in widths)

    def sparse(self, indices: np.ndarray | None, select: Call, backend: str = "auto") -> Call:
        """With these positions, or with those that `select` finds."""
        lengths = self.index.lengths
        paging = {"actual_seq_lengths_query": lengths["actual_seq_lengths_query"], "block_table": self.table}
        paging |= {"actual_seq_lengths_kv": lengths["actual_seq_lengths_key"], "layout_query": "TND", "layout_kv": "PA_BSND"}

        def call() -> np.ndarray:
            chosen = select() if indices is None else indices
            return ds.sparse_mla_attention(
                self.query, self.latents, None, chosen, SCALE, query_rope=self.query_rope, key_rope=self.rope_keys,
                backend=backend, **paging,
            )  # fmt: skip

        return call

    def dense(self) -> Call:
        tokens, context = self.index.tokens, self.index.context
        lengths, sequence = np.arange(context - tokens, context) + 1, np.zeros(tokens, int)
        caches = self.latents, self.rope_keys
        return lambda: ds.mla_attention(
            self.query, self.query_rope, *caches, self.table, lengths, scale=SCALE, sequence=sequence
        )


def main() -> None:
    chosen = options(__doc__, contexts=(4000, 32000), prompt=16)
    report = Report("sparse_mla_attention", chosen.threads)
    for context in chosen.contexts:
        for tokens in (1, chosen.prompt):
            case = Case(context, tokens)
            select, in_bytes = case.index.ours(), case.index.ours(in_bytes=True)
            indices = select()
            attended = case.sparse(indices, select)
            np.testing.assert_allclose(attended(), case.sparse(indices, select, "reference")(), rtol=1e-4, atol=1e-5)
            calls = {
                "dense": case.dense(), "indexer and attention": case.sparse(None, select),
                "int8 indexer and attention": case.sparse(None, in_bytes), "attention alone": attended,
            }  # fmt: skip
            size = case.latents.nbytes + case.rope_keys.nbytes
            times = report.case(f"context {context}, {tokens} token{'s' * (tokens > 1)}", calls, chosen.rounds, size)
            dense = min(times["dense"])
            print("  of the dense time: " + ", ".join(f"{name} {min(t) / dense:.3f}" for name, t in times.items()))
    report.save()


if __name__ == "__main__":
    run_main(main)
