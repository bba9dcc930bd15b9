"""decoder_forward on random weights against torch: a decode step, a batch of them, a prompt.

    python benchmarks/bench_decoder_forward.py [--contexts 100 1000] [--prompt 128] [--batch 8] [--layers 8] [--rounds 15]
        [--threads 1]

The sizes are those of SmolLM2-135M but for the number of layers and a small vocabulary. Verified against the reference. torch
multiplies float32 weights and has keys and values ready, without pages; our floor is one read of weights and cache.
`bench_generate.py` times the real model.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import decodestep as ds
from decodestep.ops import DecoderWeights, GroupedAttention, LayerWeights
from decodestep.weights import FeedForward, Format, LinearPanels, PackedWeight
from measuring.harness import Call, Report, options, run_main, torch

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, VOCAB = 576, 9, 3, 64, 1536, 4096
rng = np.random.default_rng(0)


def matrices(layers: int) -> list[dict[str, np.ndarray]]:
    """The products of each layer, and last the logits, float32 (inputs, outputs)."""
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "query": (HIDDEN, queries), "values_keys": (HIDDEN, 2 * keys), "output": (queries, HIDDEN),
        "gate": (HIDDEN, FEED_FORWARD), "up": (HIDDEN, FEED_FORWARD), "down": (FEED_FORWARD, HIDDEN),
    }  # fmt: skip

    def matrix(shape: tuple[int, int]) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)

    return [
        *({name: matrix(shape) for name, shape in shapes.items()} for _ in range(layers)),
        {"logits": matrix((HIDDEN, VOCAB))},
    ]


EMBEDDING = rng.standard_normal((HIDDEN, VOCAB), np.float32)
ONES = np.ones(HIDDEN, np.float32)


def weights(made: list[dict[str, np.ndarray]], form: Format) -> DecoderWeights:
    def panels(matrix: np.ndarray) -> LinearPanels:
        return LinearPanels.pack(PackedWeight.from_array(matrix), form)

    layers = (
        LayerWeights(
            attention_norm=ONES,
            mixer=GroupedAttention(*(panels(layer[name]) for name in ("query", "values_keys", "output"))),
            ffn_norm=ONES,
            feed_forward=FeedForward(*(panels(layer[name]) for name in ("gate", "up", "down"))),
        )
        for layer in made[:-1]
    )
    return DecoderWeights(
        embedding=PackedWeight.from_array(EMBEDDING), layers=tuple(layers), norm=ONES, logits=panels(made[-1]["logits"]),
        heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, norm_eps=1e-5, scale=HEAD_DIM**-0.5,
    )  # fmt: skip


def rope(context: int) -> tuple[np.ndarray, np.ndarray]:
    angle = np.arange(context)[:, None] * 10000.0 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    return np.sin(angle).astype(np.float32), np.cos(angle).astype(np.float32)


class Case:
    """The last `tokens` tokens of `rows` sequences of `context` tokens, the others in the cache."""

    def __init__(self, context: int, tokens: int, rows: int, layers: int) -> None:
        self.context, self.tokens, self.rows = context, tokens, rows
        pages = -(-context // 16) * rows
        bfloat16 = ml_dtypes.bfloat16
        self.keys = rng.standard_normal((layers, KV_HEADS, pages, HEAD_DIM // 2, 16, 2), np.float32).astype(bfloat16)
        self.values = rng.standard_normal((layers, KV_HEADS, pages, 8, HEAD_DIM, 2), np.float32).astype(bfloat16)
        self.table = rng.permutation(pages).reshape(rows, -1)
        self.ids = rng.integers(0, VOCAB, rows * tokens)
        self.sequence = np.repeat(np.arange(rows), tokens)
        self.positions = np.tile(np.arange(context - tokens, context), rows)
        self.last = np.arange(1, rows + 1) * tokens - 1  # of each row, whose logits are wanted
        self.rope = rope(context)

    def ours(self, w: DecoderWeights, backend: str = "cpu") -> Call:
        cache = (*self.rope, self.keys, self.values, self.table)
        return lambda: ds.decoder_forward(w, self.ids, self.sequence, self.positions, *cache, wanted=self.last, backend=backend)

    def theirs(self, made: list[dict[str, np.ndarray]]) -> Call:
        tables = self.keys[:, :, self.table], self.values[:, :, self.table]  # (layer, head, row, page, ...)
        keys, values = (
            torch.from_numpy(a.transpose(axes).reshape(len(a), self.rows, KV_HEADS, -1, HEAD_DIM).astype(np.float32))
            for a, axes in zip(tables, ((0, 2, 1, 3, 5, 4, 6), (0, 2, 1, 3, 4, 6, 5)), strict=True)
        )
        m: list[dict[str, Any]] = [{n: torch.from_numpy(np.ascontiguousarray(a.T)) for n, a in layer.items()} for layer in made]
        sin, cos = (torch.from_numpy(t[self.context - self.tokens :]) for t in self.rope)
        mask = torch.ones(self.tokens, self.context, dtype=torch.bool).tril(self.context - self.tokens)
        embedding = torch.from_numpy(np.ascontiguousarray(EMBEDDING.T))
        product = torch.nn.functional.linear
        own = slice(self.context - self.tokens, self.context)

        def norm(x: Any) -> Any:
            return torch.nn.functional.rms_norm(x, (HIDDEN,), eps=1e-5)

        def heads(x: Any, turned: bool) -> Any:
            x = x.view(self.rows, self.tokens, -1, HEAD_DIM).transpose(1, 2)
            if not turned:
                return x
            even, odd = x[..., ::2], x[..., 1::2]
            return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)

        def call() -> Any:
            x = embedding[torch.from_numpy(self.ids)].view(self.rows, self.tokens, -1)
            for w, k, v in zip(m[:-1], keys, values, strict=True):
                h = norm(x)
                both = product(h, w["values_keys"]).chunk(2, -1)
                v[:, :, own], k[:, :, own] = heads(both[0], False), heads(both[1], True)
                attended = torch.nn.functional.scaled_dot_product_attention(
                    heads(product(h, w["query"]), True), k[:, :, : self.context], v[:, :, : self.context], mask, enable_gqa=True
                )
                x = x + product(attended.transpose(1, 2).flatten(2), w["output"])
                h = norm(x)
                x = x + product(torch.nn.functional.silu(product(h, w["gate"])) * product(h, w["up"]), w["down"])
            return product(norm(x[:, -1]), m[-1]["logits"]).numpy()

        return call


def verify(name: str, logits: np.ndarray, expected: np.ndarray, median: float, most: float) -> None:
    """Most logits agree closely; where a value lay between two integers or two bfloat16, to the size of that step."""
    apart, scale = np.abs(logits - expected), np.abs(expected).max()
    assert np.median(apart) < median * scale and apart.max() < most * scale, name


def main() -> None:
    chosen = options(__doc__, contexts=(100, 1000), prompt=128, batch=8, layers=8)
    report = Report("decoder_forward", chosen.threads)
    made = matrices(chosen.layers)
    models = {form: weights(made, form) for form in (Format.Q8_0, Format.BF16, Format.F32)}
    cases = [(f"context {n}", Case(n, 1, 1, chosen.layers)) for n in chosen.contexts]
    cases += [(f"batch {chosen.batch}, context {chosen.contexts[0]}", Case(chosen.contexts[0], 1, chosen.batch, chosen.layers))]
    cases += [(f"prompt {chosen.prompt}", Case(chosen.prompt, chosen.prompt, 1, chosen.layers))]
    for label, case in cases:
        calls: dict[str, Call] = {}
        for form, w in models.items():
            calls[f"ours, {form.name}"] = case.ours(w)
            verify(form.name, calls[f"ours, {form.name}"](), case.ours(w, "reference")(), 2e-3, 0.05)
        if torch is not None:
            calls["torch float32"] = case.theirs(made)
            verify("torch", calls["torch float32"](), calls["ours, F32"](), 0.01, 0.05)
        floor = models[Format.Q8_0].nbytes + case.keys.nbytes + case.values.nbytes
        report.case(label, calls, chosen.rounds, floor)
    report.save()


if __name__ == "__main__":
    run_main(main)
