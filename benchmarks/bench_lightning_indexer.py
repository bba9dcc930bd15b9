"""lightning_indexer at DeepSeek V3.2's sizes, against torch: one token and a chunk after a context, keys in bfloat16 and int8.

python benchmarks/bench_lightning_indexer.py [--rounds 15] [--threads 1] [--contexts 4000 32000]
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import decodestep as ds
from measuring.harness import Call, Report, options, run_main, torch

HEADS, WIDTH, COUNT, BLOCK = 64, 128, 2048, 16
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Case:
    """Queries of some tokens at the end of a context, and its keys in pages."""

    def __init__(self, context: int, tokens: int) -> None:
        rng = np.random.default_rng(0)
        self.context, self.tokens = context, tokens
        self.query = rng.standard_normal((tokens, HEADS, WIDTH), np.float32).astype(BFLOAT16)
        self.weights = rng.standard_normal((tokens, HEADS), np.float32)
        blocks = -(-context // BLOCK)
        self.key = rng.standard_normal((blocks, BLOCK, 1, WIDTH), np.float32).astype(BFLOAT16)
        self.lengths = {"actual_seq_lengths_query": [tokens], "actual_seq_lengths_key": [context]}
        self.lengths |= {"block_table": rng.permutation(blocks)[None]}

    def ours(self, *, in_bytes: bool = False, backend: str = "auto", ordered: bool = False) -> Call:
        given: dict[str, Any] = {"query": self.query, "key": self.key}
        if in_bytes:
            given = {name: np.clip(np.rint(a.astype(np.float32) * 30), -127, 127).astype(np.int8) for name, a in given.items()}
            given["query_dequant_scale"] = np.full(self.weights.shape, 1 / 30, np.float32)
            given["key_dequant_scale"] = np.full(self.key.shape[:3], 1 / 30, np.float32)
        layouts = {"layout_query": "TND", "layout_key": "PA_BSND", "sparse_count": COUNT, "ordered": ordered}
        return lambda: ds.lightning_indexer(**given, weights=self.weights, **self.lengths, **layouts, backend=backend)[0]

    def theirs(self) -> Call:
        key = self.key[self.lengths["block_table"][0]].reshape(-1, WIDTH)[: self.context].astype(np.float32)
        q, k, w = (torch.from_numpy(np.ascontiguousarray(a)) for a in (self.query.astype(np.float32), key, self.weights))
        unseen = torch.ones(self.tokens, self.context, dtype=torch.bool).triu(self.context - self.tokens + 1)

        def call() -> np.ndarray:
            scores = (torch.relu(q @ k.T) * w[:, :, None]).sum(1).masked_fill(unseen, -torch.inf)
            indices: np.ndarray = scores.topk(min(COUNT, self.context)).indices.numpy()
            return indices

        return call


def main() -> None:
    chosen = options(__doc__, contexts=(4000, 32000), prompt=64)
    report = Report("lightning_indexer", chosen.threads)
    for context in chosen.contexts:
        for tokens in (1, chosen.prompt):
            case = Case(context, tokens)
            calls = {"ours, bfloat16": case.ours(), "ours, int8": case.ours(in_bytes=True)}
            if torch is not None:
                calls["torch, float32"] = case.theirs()
            want = [set(row.reshape(-1).tolist()) for row in case.ours(backend="reference")()]
            for name, call in calls.items():
                for row, expected in zip(call(), want, strict=True):  # near-ties may differ, more of them in bytes
                    common = len(expected & set(row.reshape(-1).tolist()))
                    assert common >= (0.9 if "int8" in name else 0.99) * len(expected), name
            report.case(f"context {context}, {tokens} token{'s' * (tokens > 1)}", calls, chosen.rounds, case.key.nbytes)
    report.save()


if __name__ == "__main__":
    run_main(main)
