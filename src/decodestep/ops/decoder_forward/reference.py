"""decoder_forward by its definition (csrc/decoder/decoder_forward.h): layer by layer, attention token by token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from decodestep._base.arrays import BFLOAT16
from decodestep.ops.decoder_forward import group_cache, index_reference
from decodestep.ops.decoder_forward.arguments import PAGE, Call
from decodestep.ops.decoder_forward.latent_cache import from_bytes, to_bytes
from decodestep.ops.decoder_forward.layers import GroupedAttention, LatentAttention, Mixture, SideBySide
from decodestep.ops.decoder_forward.recurrent_layers import Recurrence
from decodestep.ops.decoder_forward.recurrent_reference import Recurrences, sigmoid
from decodestep.ops.decoder_forward.rope_pairs import turn_pairs
from decodestep.ops.decoder_forward.weights import DecoderWeights
from decodestep.ops.expert_router.reference import route
from decodestep.ops.linear.reference import linear, with_bias
from decodestep.ops.mixture_of_experts.blocks import gelu_gated
from decodestep.ops.mixture_of_experts.reference import feed_forward, mixture
from decodestep.ops.rms_norm.reference import rms_norm
from decodestep.weights.feed_forward import FeedForward
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight

BLOCK_KEYS = 64  # whose weights are rounded together where latents are bytes


def forward(call: Call) -> np.ndarray:
    w, dtype = call.weights, call.sin.dtype
    x = _rows(w.embedding, call.token_ids).values().astype(dtype)
    x, scale = x * dtype.type(w.embedding_scale), dtype.type(w.residual_scale)

    def normalise(rows: np.ndarray, norm: np.ndarray | None) -> np.ndarray:
        centred = rows - rows.mean(axis=-1, keepdims=True) if w.centred_norms and norm is not None else rows
        return _normalise(centred, norm, w.norm_eps)

    recurrences, selected = Recurrences(call), None
    for number, (layer, cache) in enumerate(zip(w.layers, w.cache_layers, strict=True)):
        h, before = normalise(x, layer.attention_norm), x
        if isinstance(layer.mixer, Recurrence):
            x = x + normalise(recurrences.run(layer.mixer, h), layer.attention_post_norm) * scale
        elif layer.mixer is not None:
            if isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer is not None:
                selected = index_reference.select(call, layer.mixer, h, number)
            added = _attention(call, layer.mixer, h, call.keys[:, cache], call.values[:, cache], selected)
            x = x + normalise(added, layer.attention_post_norm) * scale
        if layer.feed_forward is not None:
            h = normalise(before if layer.parallel else x, layer.ffn_norm)
            if isinstance(layer.feed_forward, SideBySide):
                made = _side_by_side(x, h, layer.feed_forward, normalise)
            else:
                made = _feed_forward(h, layer.feed_forward)
            x = x + normalise(made, layer.ffn_post_norm) * scale
        if layer.input is not None and call.layer_inputs is not None:
            gated = gelu_gated(linear(x, layer.input.gate), call.layer_inputs[:, number])
            x = x + normalise(linear(gated, layer.input.output), layer.input.norm) * scale
        x = x * dtype.type(layer.scale)
    hidden = normalise(x, w.norm)
    if call.hidden is not None:
        call.hidden[:] = hidden
    return _soft_capped(linear(hidden[call.wanted], w.logits) * dtype.type(w.logits_scale), w.logits_cap)


def _soft_capped(x: np.ndarray, cap: float) -> np.ndarray:
    return x if cap == 0 else x.dtype.type(cap) * np.tanh(x / x.dtype.type(cap))


def _rows(embedding: PackedWeight | LinearPanels, ids: np.ndarray) -> PackedWeight:
    if isinstance(embedding, LinearPanels):
        return embedding.rows(ids)
    return PackedWeight(embedding.rows[ids], embedding.format, embedding.inputs)


def _attention(
    call: Call,
    layer: GroupedAttention | LatentAttention,
    h: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    selected: list[np.ndarray] | None,
) -> np.ndarray:
    """The attention's output; writes the tokens' entries to the layer's cache. selected: as `_latent_attention`."""
    if isinstance(layer, LatentAttention):
        return _latent_attention(call, layer, h, keys, values, selected)
    kv_heads, head_dim, width = call.weights.sizes(layer)
    keys, values = group_cache.of_layer(keys, values, kv_heads, head_dim)
    queries = _project(call, layer, h, keys, values)
    attended = _attend(call, queries, keys, values, layer)
    if layer.gate is not None:
        gates = linear(h, layer.gate).reshape(len(h), call.weights.heads, head_dim)[..., :width]
        attended = attended * sigmoid(gates.reshape(attended.shape))
    return with_bias(linear(attended, layer.output), layer.output_bias)


def _normalise(x: np.ndarray, norm: np.ndarray | None, eps: float) -> np.ndarray:
    """rms_norm over the last axis; x itself without a norm."""
    return x if norm is None else rms_norm(x, norm.astype(x.dtype), eps)


def _normalise_heads(w: DecoderWeights, heads: np.ndarray, norm: np.ndarray | None, as_rows: bool, width: int) -> np.ndarray:
    """Every head of (T, heads, D) normalised, or all heads of a token as one row, without the zeros that pad heads from `width`
    on."""
    values, made = heads[..., :width], np.zeros_like(heads)
    rows = values.reshape(len(heads), -1) if as_rows else np.ascontiguousarray(values)
    made[..., :width] = _normalise(rows, norm, w.norm_eps).reshape(values.shape)
    return made


def _side_by_side(
    x: np.ndarray, h: np.ndarray, w: SideBySide, normalise: Callable[[np.ndarray, np.ndarray | None], np.ndarray]
) -> np.ndarray:
    """h: what the dense block reads, x normalised."""
    mixed = _mixture(normalise(x, w.experts_norm), normalise(x, w.router_norm), w.experts)
    return normalise(feed_forward(h, w.dense), w.dense_post_norm) + normalise(mixed, w.experts_post_norm)


def _feed_forward(h: np.ndarray, block: FeedForward | Mixture) -> np.ndarray:
    return feed_forward(h, block) if isinstance(block, FeedForward) else _mixture(h, h, block)


def _mixture(h: np.ndarray, routed_by: np.ndarray, block: Mixture) -> np.ndarray:
    """routed_by: what the router reads."""
    experts, weights = route(with_bias(linear(routed_by, block.router), block.router_bias), block.rule, block.bias)
    if block.factors is not None:
        weights = weights * block.factors.astype(weights.dtype)[experts]
    if block.latent_down is None or block.latent_up is None:
        routed = mixture(h, experts, weights, block.routed, None)
    else:
        routed = linear(mixture(linear(h, block.latent_down), experts, weights, block.routed, None), block.latent_up)
    if block.shared is None:
        return routed
    shared = feed_forward(h, block.shared)
    return routed + (shared if block.shared_gate is None else sigmoid(linear(h, block.shared_gate)) * shared)


def _latent_attention(
    call: Call,
    layer: LatentAttention,
    h: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    selected: list[np.ndarray] | None,
) -> np.ndarray:
    """selected: of every token the positions that it attends to; None: all up to its own."""
    w, s, dtype = call.weights, call.weights.latent, call.sin.dtype
    assert s is not None
    tokens = len(h)
    x = h
    if layer.query_down is not None and layer.query_norm is not None:
        compressed = with_bias(linear(h, layer.query_down), layer.query_down_bias)
        x = rms_norm(compressed, layer.query_norm.astype(dtype), s.eps)
    nope, rope = np.split(linear(x, layer.query).reshape(tokens, w.heads, -1), [s.nope], axis=2)
    latent, key = np.split(with_bias(linear(h, layer.latent), layer.latent_bias), [s.latent], axis=1)
    slab, page = np.divmod(call.page_table[call.sequence, call.positions // PAGE], keys.shape[1])
    row = call.positions % PAGE
    kept = rms_norm(latent, layer.latent_norm.astype(dtype), s.eps)
    values[slab, page, row] = to_bytes(kept.astype(np.float32)) if values.dtype == np.int8 else kept.astype(values.dtype)
    keys[slab, page, row] = _apply_rope(call, key[:, None])[:, 0].astype(keys.dtype)
    nope, rope = _by_head(nope, layer.key_up), _apply_rope(call, rope)
    attended = np.empty((tokens, w.heads, s.latent), dtype)
    for t, position in enumerate(call.positions):
        slab, page = np.divmod(call.page_table[call.sequence[t], : position // PAGE + 1], keys.shape[1])
        read = slice(position + 1) if selected is None else selected[t]
        k, v = (a[slab, page].reshape(-1, a.shape[-1])[read] for a in (keys, values))
        attend = _attend_bytes if v.dtype == np.int8 else _attend_latents
        attended[t] = attend(nope[t], v, rope[t] @ k.astype(dtype).T, dtype.type(w.scale))
    return with_bias(linear(_by_head(attended, layer.value_up).reshape(tokens, -1), layer.output), layer.output_bias)


def _attend_latents(query: np.ndarray, latents: np.ndarray, of_rope: np.ndarray, scale: np.floating) -> np.ndarray:
    """Of one token's heads; of_rope: the scores of the rope keys."""
    latents = latents.astype(query.dtype)
    weight = _weights((query @ latents.T + of_rope) * scale)
    result: np.ndarray = weight @ latents / weight.sum(axis=-1, keepdims=True)
    return result


def _attend_bytes(query: np.ndarray, rows: np.ndarray, of_rope: np.ndarray, scale: np.floating) -> np.ndarray:
    """The same of rows in bytes: queries, and for each block of keys the weights times the rows' scales, are int16."""
    latents, scales = from_bytes(rows, query.dtype)
    scales = scales[:, 0]
    whole, unit = _as_integers(query, min(32767, 0x7FFFFFFF // (128 * latents.shape[1])))
    weight = _weights((whole @ latents.T * (unit * scales) + of_rope) * scale)
    sums = np.zeros_like(query)
    for first in range(0, len(rows), BLOCK_KEYS):
        block = slice(first, first + BLOCK_KEYS)
        whole, unit = _as_integers(weight[:, block] * scales[block], 32767)
        sums += whole @ latents[block] * unit
    return sums / weight.sum(axis=-1, keepdims=True)


def _weights(scores: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights


def _as_integers(rows: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
    """Each row as integers within the bound, and what they are multiplied by; NaN spreads in its row."""
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.rint(np.nan_to_num(rows * (rows.dtype.type(bound) / largest), posinf=bound, neginf=-bound))
    return whole, largest / rows.dtype.type(bound)


def _by_head(x: np.ndarray, weight: LinearPanels) -> np.ndarray:
    """x (T, N, K) times a weight (K, N * M) of which each head has its own outputs: (T, N, M).

    A head's product is cut out afterwards: a `LinearPanels` is multiplied whole panels at a time, and M may end inside one.
    """
    heads = x.shape[1]
    outputs = weight.outputs // heads
    every = [linear(np.ascontiguousarray(x[:, n]), weight)[:, n * outputs : (n + 1) * outputs] for n in range(heads)]
    return np.stack(every, axis=1)


def _project(call: Call, layer: GroupedAttention, h: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The queries (T, N, D), in bfloat16 if the cache is; writes keys and values to the layer's cache."""
    w, tokens = call.weights, len(h)
    kv_heads, head_dim, width = w.sizes(layer)
    queries = with_bias(linear(h, layer.query), layer.query_bias).reshape(tokens, w.heads, head_dim)
    query_rope = layer.rope if layer.query_rope is None else layer.query_rope
    queries = _normalise_and_rotate(call, queries, layer.query_norm, layer, query_rope)
    queries = queries.astype(BFLOAT16) if keys.dtype == BFLOAT16 else queries
    if layer.keys_of is not None:
        return queries
    both = np.concatenate([linear(h, part) for part in (layer.values_keys, layer.keys) if part is not None], axis=1)
    both = with_bias(both, layer.values_keys_bias).reshape(tokens, 2, kv_heads, head_dim)
    slab, page = np.divmod(call.page_table[call.sequence, call.positions // PAGE], keys.shape[2])
    rotated = _normalise_and_rotate(call, both[:, 1], layer.key_norm, layer, layer.rope)
    own = both[:, 0]
    if layer.value_norm:
        own = _normalise_heads(w, own, np.ones(width, np.float32), False, width)
    group_cache.store(keys, values, (slab, page, call.positions % PAGE), rotated, own)
    return queries


def _normalise_and_rotate(
    call: Call, heads: np.ndarray, norm: np.ndarray | None, layer: GroupedAttention, rope: int
) -> np.ndarray:
    w, as_rows = call.weights, layer.norms_of_rows
    width = w.sizes(layer)[2]
    if layer.norms_after_rope:
        return _normalise_heads(w, _apply_rope(call, heads, rope), norm, as_rows, width)
    return _apply_rope(call, _normalise_heads(w, heads, norm, as_rows, width), rope)


def _apply_rope(call: Call, heads: np.ndarray, rope: int = 0) -> np.ndarray:
    """(T, heads, D) after their rope: each pair of columns turned by the angle of its token's position."""
    sin, cos = (table[rope, call.positions, None, : heads.shape[-1] // 2] for table in (call.sin, call.cos))
    return np.stack(turn_pairs(heads, sin, cos), axis=-1).reshape(heads.shape)


def _attend(call: Call, queries: np.ndarray, keys: np.ndarray, values: np.ndarray, layer: GroupedAttention) -> np.ndarray:
    """The attention of every token over positions 0 to its own, or the last `window` of them, (T, N * Dv)."""
    w, dtype, window = call.weights, call.sin.dtype, layer.window
    kv_heads, head_dim, width = w.sizes(layer)
    sinks = None if layer.sinks is None else layer.sinks.astype(dtype).reshape(kv_heads, -1, 1)
    out = np.empty((len(queries), kv_heads, w.heads // kv_heads, head_dim), dtype)
    for t, position in enumerate(call.positions):
        slab, page = np.divmod(call.page_table[call.sequence[t], : position // PAGE + 1], keys.shape[2])
        first = max(0, position + 1 - window) if window else 0
        k, v = (a[:, first : position + 1].astype(dtype) for a in group_cache.load(keys, values, slab, page))
        q = queries[t].reshape(kv_heads, -1, head_dim).astype(dtype)
        score = _soft_capped(q @ k.swapaxes(1, 2) * dtype.type(w.scale), layer.score_cap)
        highest = score.max(axis=-1, keepdims=True)
        weight = np.exp(score - highest)
        rounded = weight.astype(BFLOAT16).astype(dtype) if keys.dtype == BFLOAT16 else weight
        total = weight.sum(axis=-1, keepdims=True) + (0 if sinks is None else np.exp(sinks - highest))
        out[t] = rounded @ v / total
    return out[..., :width].reshape(len(queries), -1)
