"""Decoders of random weights, and steps of them, for the tests of decoder_forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from decodestep._base.arrays import BFLOAT16
from decodestep.ops.decoder_forward import DecoderWeights, LayerWeights
from decodestep.weights import Format, LinearPanels, PackedWeight


@dataclass(frozen=True)
class Sizes:
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    feed_forward: int = 96
    vocab: int = 50
    layers: int = 2


def weights(sizes: Sizes, format_: Format, rng: np.random.Generator) -> DecoderWeights:
    def matrix(inputs: int, outputs: int) -> LinearPanels:
        values = rng.normal(size=(inputs, outputs)) / np.sqrt(inputs)
        return LinearPanels.pack(PackedWeight.from_array(values.astype(np.float32)), format_)

    def norm() -> np.ndarray:
        return rng.uniform(0.5, 1.5, sizes.hidden).astype(np.float32)

    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    return DecoderWeights(
        embedding=PackedWeight.from_array(rng.normal(size=(sizes.hidden, sizes.vocab)).astype(np.float32)),
        layers=tuple(
            LayerWeights(
                attention_norm=norm(),
                query=matrix(sizes.hidden, queries),
                values_keys=matrix(sizes.hidden, 2 * keys),
                output=matrix(queries, sizes.hidden),
                ffn_norm=norm(),
                gate=matrix(sizes.hidden, sizes.feed_forward),
                up=matrix(sizes.hidden, sizes.feed_forward),
                down=matrix(sizes.feed_forward, sizes.hidden),
            )
            for _ in range(sizes.layers)
        ),
        norm=norm(),
        logits=matrix(sizes.hidden, sizes.vocab),
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        norm_eps=1e-5,
        scale=sizes.head_dim**-0.5,
    )


def step(
    w: DecoderWeights, lengths: list[int], rng: np.random.Generator, dtype: type = np.float32, slabs: int = 1
) -> dict[str, Any]:
    """The arguments of a step that runs prompts of these lengths: pages in random order, the cache full of NaN."""
    table_width, positions = -(-max(lengths) // 16), np.arange(max(lengths))
    needed = len(lengths) * table_width
    pages = -(-needed // slabs)
    shape = (len(w.layers), w.kv_heads, pages) if slabs == 1 else (slabs, len(w.layers), w.kv_heads, pages)
    angle = positions[:, None] * 0.7 ** np.arange(w.head_dim // 2)
    half = w.head_dim // 2
    tokens = sum(lengths)
    return {
        "weights": w,
        "token_ids": rng.integers(0, w.vocab_size, tokens),
        "sequence": np.repeat(np.arange(len(lengths)), lengths),
        "positions": np.concatenate([np.arange(length) for length in lengths]),
        "sin": np.sin(angle).astype(dtype),
        "cos": np.cos(angle).astype(dtype),
        "keys": np.full((*shape, half, 16, 2), np.nan, BFLOAT16),
        "values": np.full((*shape, 8, w.head_dim, 2), np.nan, BFLOAT16),
        "page_table": rng.permutation(slabs * pages)[:needed].reshape(len(lengths), table_width),
        "wanted": np.arange(tokens),
    }


def copied(call: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The same step on a cache of its own."""
    return {**call, "keys": call["keys"].copy(), "values": call["values"].copy(), **changes}
