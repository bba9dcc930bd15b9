"""decoder_forward: one step of a decoder with grouped-query attention, from token ids to logits."""

from __future__ import annotations

from decodestep._base import arrays
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.dispatch import choose, run
from decodestep.ops.decoder_forward import cpu, reference
from decodestep.ops.decoder_forward.arguments import OP, bind
from decodestep.ops.decoder_forward.weights import DecoderWeights as DecoderWeights
from decodestep.ops.decoder_forward.weights import LayerWeights as LayerWeights


def decoder_forward(
    weights: DecoderWeights,
    token_ids: Array | list[int],
    sequence: Array | list[int],
    positions: Array | list[int],
    sin: Array,
    cos: Array,
    keys: ArrayT,
    values: ArrayT,
    page_table: Array | list[list[int]],
    wanted: Array | list[int],
    *,
    backend: str = "auto",
) -> ArrayT:
    """Runs T tokens of any sequences through all layers; their keys and values join the cache, in place.

        for every token t, with x its row of the residual stream, first embedding[token_ids[t]]:
            in every layer:
                h = rms_norm(x, attention_norm)
                q, k, v = h @ query, h @ values_keys    q, k rotated by positions[t]; q, k, v rounded to bfloat16
                cache[sequence[t], positions[t]] = k, v
                x += attention(q, cache[sequence[t], 0 .. positions[t]]) @ output
                h = rms_norm(x, ffn_norm)
                x += swiglu(h @ gate, h @ up) @ down
        logits[i] = rms_norm(x[wanted[i]], norm) @ logits weight

    weights: a `DecoderWeights`: L layers of He, N query heads, G key-value heads, heads of D, a vocabulary of V.
    token_ids: (T,) integers in [0, V).
    sequence: (T,) integers in [0, B): the row of page_table of each token.
    positions: (T,) integers in [0, P) and [0, 16 * M): the place of each token in its sequence. Every position of a sequence
        before a token's own must be in the cache, or stand earlier in the same call.
    sin, cos: (P, D / 2), the rotation of pair i of a head at each position. float32; or float64, in which "reference" then
        computes.
    keys: (slabs, L, G, S, D / 2, 16, 2), or for one slab (L, G, S, D / 2, 16, 2); bfloat16, C order, written in place. A
        page holds 16 positions of one key-value head:
        keys[page // S, l, g, page % S, i, p % 16] are columns 2i and 2i + 1 of position p.
    values: (slabs, L, G, S, 8, D, 2) or (L, G, S, 8, D, 2), bfloat16, C order, written in place:
        values[page // S, l, g, page % S, p % 16 // 2, i, p % 2] is column i.
    page_table: (B, M) integers: the pages of each sequence in order; page_table[b, p // 16] holds position p. Entries past a
        sequence's last token are not read.
    wanted: (R,) integers in [0, T): the tokens whose logits are returned, in any order.
    backend: "auto", "cpu" or "reference". "cpu" serves float32 and sizes that fill its vectors: D a multiple of 16; He, N * D
        and the feed-forward size multiples of 32.

    Returns logits (R, V), float32, or float64 with float64 sin; of the kind of `keys`.
    Raises ValueError for a dtype, shape, id, position or page outside the rules, before the cache is written.

    Causality: a token sees positions 0 to its own of its own sequence, nothing else. What lies at other positions of a page,
    NaN included, has no effect on it, and a call writes at its tokens' positions alone. So pages may be recycled as they are,
    pages that are full may be shared by sequences, and a position may be written again, in any order.
    Rounding: activations are quantised where a product with the weight's format does so (`linear`); queries, keys, values and
    the attention's weights e^(score - maximum) are bfloat16, everything else float32.
    Determinism: a token's bits depend on its sequence's tokens up to itself alone: not on the call's other tokens, on how a
    prompt is cut into calls, or on the thread count. They are the same on every instruction set with a fused multiply-add.
    Source: Touvron et al., Llama 2, 2023; grouped-query attention by Ainslie et al., GQA, 2023.
    """
    call = bind(weights, token_ids, sequence, positions, sin, cos, keys, values, page_table, wanted)
    backend = choose(OP, backend, {"cpu": cpu.obstacle(call), "reference": None})
    logits: ArrayT = arrays.like(keys, run(OP, backend, (cpu if backend == "cpu" else reference).forward, call))
    return logits
