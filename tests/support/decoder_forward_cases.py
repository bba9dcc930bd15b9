"""Decoders of random weights, and steps of them, for the tests of decoder_forward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from decodestep._base.arrays import BFLOAT16
from decodestep.ops.decoder_forward import (
    DecoderWeights,
    GroupedAttention,
    Indexer,
    LatentAttention,
    LatentSizes,
    LayerWeights,
    Mixture,
)
from decodestep.ops.decoder_forward.group_cache import page_shapes
from decodestep.ops.decoder_forward.latent_cache import SCALE_BYTES, page_shape
from decodestep.ops.expert_router import RouterRule
from decodestep.weights import FeedForward, Format, LinearPanels, PackedWeight


@dataclass(frozen=True)
class Sizes:
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    feed_forward: int = 96
    vocab: int = 50
    layers: int = 2


def matrix(inputs: int, outputs: int, format_: Format, rng: np.random.Generator) -> LinearPanels:
    values = rng.normal(size=(inputs, outputs)) / np.sqrt(inputs)
    return LinearPanels.pack(PackedWeight.from_array(values.astype(np.float32)), format_)


def norm(width: int, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(0.5, 1.5, width).astype(np.float32)


def bias(width: int, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, 0.3, width).astype(np.float32)


def block(hidden: int, width: int, format_: Format, rng: np.random.Generator, count: int = 1) -> FeedForward:
    sizes = ((hidden, count * width), (hidden, count * width), (width, count * hidden))
    return FeedForward(*(matrix(*size, format_, rng) for size in sizes), count)


def weights(sizes: Sizes, format_: Format, rng: np.random.Generator) -> DecoderWeights:
    hidden, queries, keys = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    return DecoderWeights(
        embedding=PackedWeight.from_array(rng.normal(size=(hidden, sizes.vocab)).astype(np.float32)),
        layers=tuple(
            LayerWeights(
                attention_norm=norm(hidden, rng),
                mixer=GroupedAttention(
                    query=matrix(hidden, queries, format_, rng),
                    values_keys=matrix(hidden, 2 * keys, format_, rng),
                    output=matrix(queries, hidden, format_, rng),
                ),
                ffn_norm=norm(hidden, rng),
                feed_forward=block(hidden, sizes.feed_forward, format_, rng),
            )
            for _ in range(sizes.layers)
        ),
        norm=norm(hidden, rng),
        logits=matrix(hidden, sizes.vocab, format_, rng),
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        norm_eps=1e-5,
        scale=sizes.head_dim**-0.5,
    )


def latent_weights(
    format_: Format,
    rng: np.random.Generator,
    *,
    heads: int = 3,
    sizes: LatentSizes = LatentSizes(32, 16, 64, 32),  # noqa: B008, frozen
    compressed: int | None = None,
    experts: int = 7,
    rule: RouterRule = RouterRule(3, scale=0.5),  # noqa: B008, frozen
    shared: bool = True,
    gates: bool = True,
    biases: bool = False,
    indexers: tuple[bool, bool] = (True, False),
    **constants: float,
) -> DecoderWeights:
    """Two layers of latent attention: the first with a dense block, the second with a mixture of experts. indexers: which have
    one, if `sizes` says that positions are selected."""
    hidden, vocab, head_dim = 64, 50, sizes.nope + sizes.rope

    def indexer() -> Indexer:
        assert compressed is not None
        return Indexer(
            query=matrix(compressed, sizes.index_heads * sizes.index_width, format_, rng),
            key=matrix(hidden, sizes.index_width, format_, rng),
            key_norm=norm(sizes.index_width, rng),
            key_norm_bias=bias(sizes.index_width, rng),
            by_head=matrix(hidden, sizes.index_heads, Format.F32, rng),
        )

    def attention(has_indexer: bool) -> LatentAttention:
        read = hidden if compressed is None else compressed
        widths = {"latent": sizes.latent + sizes.rope, "output": hidden} | ({"query_down": read} if compressed else {})
        return LatentAttention(
            query_down=None if compressed is None else matrix(hidden, read, format_, rng),
            query_norm=None if compressed is None else norm(read, rng),
            query=matrix(read, heads * head_dim, format_, rng),
            latent=matrix(hidden, sizes.latent + sizes.rope, format_, rng),
            latent_norm=norm(sizes.latent, rng),
            key_up=matrix(sizes.nope, heads * sizes.latent, format_, rng),
            value_up=matrix(sizes.latent, heads * sizes.value, format_, rng),
            output=matrix(heads * sizes.value, hidden, format_, rng),
            **({f"{product}_bias": bias(width, rng) for product, width in widths.items()} if biases else {}),
            indexer=indexer() if sizes.selected and has_indexer else None,
        )

    def feed_forward(width: int, count: int = 1) -> FeedForward:
        made = block(hidden, width, format_, rng, count)
        made = made if gates else replace(made, gate=None)
        parts = ("gate", "up", "down") if gates else ("up", "down")
        return replace(made, **{f"{part}_bias": bias(getattr(made, part).outputs, rng) for part in parts}) if biases else made

    mixture = Mixture(
        router=matrix(hidden, experts, Format.F32, rng),
        rule=rule,
        bias=rng.normal(size=experts).astype(np.float32) * 0.1 if rule.scores == "sigmoid" else None,
        routed=feed_forward(32, experts),
        shared=feed_forward(64) if shared else None,
    )
    return DecoderWeights(
        embedding=PackedWeight.from_array(rng.normal(size=(hidden, vocab)).astype(np.float32)),
        layers=tuple(
            LayerWeights(norm(hidden, rng), attention(has), norm(hidden, rng), part)
            for part, has in zip((feed_forward(96), mixture), indexers, strict=True)
        ),
        norm=norm(hidden, rng),
        logits=matrix(hidden, vocab, format_, rng),
        heads=heads,
        kv_heads=1,
        head_dim=head_dim,
        norm_eps=1e-5,
        scale=head_dim**-0.5,
        latent=sizes,
        **constants,
    )


def step(
    w: DecoderWeights,
    lengths: list[int],
    rng: np.random.Generator,
    dtype: type = np.float32,
    slabs: int = 1,
    byte_latents: bool = False,
    cache: np.dtype = BFLOAT16,
    byte_index: bool = False,
) -> dict[str, Any]:
    """The arguments of a step that runs prompts of these lengths: pages in random order, the cache full of NaN."""
    table_width, positions = -(-max(lengths) // 16), np.arange(max(lengths))
    needed = len(lengths) * table_width
    pages = -(-needed // slabs)
    half = w.rope_dim // 2
    if w.latent is None:
        shapes = [(w.cache_depth, w.kv_heads, pages, *page) for page in page_shapes(cache, w.head_dim)]
    else:
        shapes = [(w.cache_depth, pages, 16, width) for width in (w.latent.rope, w.latent.latent)]
    shapes = [shape if slabs == 1 else (slabs, *shape) for shape in shapes]
    keys, values = (np.full(shape, -1 if cache == np.int8 else np.nan, cache) for shape in shapes)  # scales of -1s are NaN
    if byte_latents:
        values = np.full((*values.shape[:-1], w.latent.latent + SCALE_BYTES), -1, np.int8)
    index = {}
    if w.latent is not None and w.latent.selected:
        kept = np.dtype(np.int8) if byte_index else keys.dtype
        shape = (w.index_depth, pages, *page_shape(kept, w.latent.index_width))
        index = {"index_keys": np.full(shape if slabs == 1 else (slabs, *shape), -1 if byte_index else np.nan, kept)}
    angle = positions[:, None] * 0.7 ** np.arange(half)
    tokens = sum(lengths)
    return {
        "weights": w,
        "token_ids": rng.integers(0, w.vocab_size, tokens),
        "sequence": np.repeat(np.arange(len(lengths)), lengths),
        "positions": np.concatenate([np.arange(length) for length in lengths]),
        "sin": np.sin(angle).astype(dtype),
        "cos": np.cos(angle).astype(dtype),
        "keys": keys,
        "values": values,
        "page_table": rng.permutation(slabs * pages)[:needed].reshape(len(lengths), table_width),
        "wanted": np.arange(tokens),
        **index,
    }


def copied(call: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The same step on a cache and states of its own."""
    written = {name: call[name].copy() for name in ("keys", "values", "states", "index_keys") if call.get(name) is not None}
    return {**call, **written, **changes}
