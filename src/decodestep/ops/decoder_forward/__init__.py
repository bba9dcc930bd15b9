"""decoder_forward: one step of a decoder, from token ids to logits."""

from __future__ import annotations

from decodestep._base import arrays
from decodestep._base.arrays import Array, ArrayT, Integers, IntegerTable
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep.ops.decoder_forward import cpu, reference
from decodestep.ops.decoder_forward.arguments import OP, bind
from decodestep.ops.decoder_forward.layers import GroupedAttention as GroupedAttention
from decodestep.ops.decoder_forward.layers import Indexer as Indexer
from decodestep.ops.decoder_forward.layers import LatentAttention as LatentAttention
from decodestep.ops.decoder_forward.layers import LayerInput as LayerInput
from decodestep.ops.decoder_forward.layers import LayerWeights as LayerWeights
from decodestep.ops.decoder_forward.layers import Mixture as Mixture
from decodestep.ops.decoder_forward.layers import SideBySide as SideBySide
from decodestep.ops.decoder_forward.recurrent_layers import DeltaRule as DeltaRule
from decodestep.ops.decoder_forward.recurrent_layers import Mamba as Mamba
from decodestep.ops.decoder_forward.recurrent_layers import ShortConvolution as ShortConvolution
from decodestep.ops.decoder_forward.weights import DecoderWeights as DecoderWeights
from decodestep.ops.decoder_forward.weights import LatentSizes as LatentSizes


def decoder_forward(
    weights: DecoderWeights,
    token_ids: Integers,
    sequence: Integers,
    positions: Integers,
    sin: Array,
    cos: Array,
    keys: ArrayT,
    values: ArrayT,
    page_table: IntegerTable,
    wanted: Integers,
    *,
    hidden: Array | None = None,
    layer_inputs: Array | None = None,
    states: Array | None = None,
    slots: Integers | None = None,
    into: Integers | None = None,
    index_keys: Array | None = None,
    backend: str = "auto",
) -> ArrayT:
    """Runs T tokens of any sequences through all layers; writes their keys and values to the cache, and states, in place.

        for every token t, with x its row of the residual stream, first embedding_scale * embedding[token_ids[t]]:
            in every layer:
                x += residual_scale * post(attention(rms_norm(x, attention_norm)) @ output)    or a recurrence's results
                h = rms_norm(x, ffn_norm)
                x += residual_scale * post(the `FeedForward` of h, or mixture_of_experts(h))
                x += residual_scale * rms_norm((GELU(x @ gate) * layer_inputs[t, layer]) @ output, norm)    if it has an input
                x *= the layer's scale
            hidden[t] = rms_norm(x, norm)
        logits[i] = logits_scale * hidden[wanted[i]] @ logits weight, soft-capped by logits_cap

        grouped-query attention of h:
            q, v, k = h @ query, h @ values_keys (or v = h @ values_keys, k = h @ keys), and their biases
            every head of q and k normalised, or with norms_of_rows q and k as one row each, where there are norms; and with
            value_norm every head of v divided by its root mean square
            q, k with the rope of positions[t], as sin[rope] and cos[rope] say, q as those of query_rope where it has one
            the two steps before in the other order with norms_after_rope;  k, v rounded to the cache's type
            cache[sequence[t], positions[t]] = k, v
            attention of q to cache[sequence[t], 0 .. positions[t]], or to the last `window` of these positions: of scores that
                are soft-capped by score_cap, and with a sink divided by the sum of weights and e^(sink - maximum)
            with a gate the result is multiplied by sigmoid(h @ gate)
            with keys_of there are no v and k: it reads the cache of that layer
        soft-capped by c: c * tanh(y / c), or y where c is 0
        rms_norm(x, attention_norm) and rms_norm(x, ffn_norm) are x where the layer has no such norm
        in a parallel layer h = rms_norm(x, ffn_norm) is that of x before attention, and both outputs are added
        with centred_norms rms_norm(x, norm) is rms_norm(x - mean(x), norm), except of heads and rows of q and k
        post(y) = y, or rms_norm(y, post norm) where the layer has one; the bias of output is added before it

        latent attention of h:
            q = h @ query, or rms_norm(h @ query_down, query_norm) @ query;  q_nope, q_rope = q by head
            c, r = h @ latent;  c = rms_norm(c, latent_norm);  q_rope, r with the rope of positions[t]
            cache[sequence[t], positions[t]] = c, r    rounded to the cache's type
            for every head n: mla_attention of (q_nope @ key_up_n, q_rope) to cache[sequence[t], 0 .. positions[t]]
                @ value_up_n
            with an indexer, or after a layer with one, attention is to K positions of these, where there are more:
                k = h @ key;  k = (k - mean(k)) / sqrt(variance(k) + 1e-6) * key_norm + key_norm_bias
                i = rms_norm(h @ query_down, query_norm) @ indexer.query by head
                the first Dr columns of k and of every head of i with the rope of positions[t]
                index_keys[sequence[t], positions[t]] = k    rounded to the index cache's type, and i too if that is int8
                lightning_indexer of i, the index cache and h @ by_head / sqrt(Hi * Di), sparse_count K

        a recurrence of h: as `DeltaRule`, `Mamba` and `ShortConvolution` say, with the states of the token's sequence

        a dense block and a mixture side by side: as `SideBySide` says

        a mixture of experts of h:
            mixture_of_experts(h, *expert_router(h @ router + router_bias, rule, bias), routed, shared)
            with factors the weights of the chosen experts are multiplied by theirs
            with shared_gate the shared block is multiplied by sigmoid(h @ shared_gate)
            with a latent the routed experts read h @ latent_down, and their sum is multiplied by latent_up

    Causality: a token attends only to positions 0 to its own of its own sequence. The contents of other positions of a page,
    NaN included, have no effect on it, and a call writes only at its tokens' positions. So pages may be recycled without
    clearing, full pages may be shared by sequences, and later calls may write positions again in any order. States are those
    after a sequence's tokens so far: its next token follows them, and none can be run again.
    Rounding: activations are quantised if the weight's format requires it (`linear`). Keys and values are of the
    cache's type; where that is bfloat16, so are queries and weights e^(score - maximum) of grouped-query attention. With
    latents in bytes queries for them are int16, and so are the weights of positions 64i to 64i + 63 times their scales: each
    head's by its largest magnitude, which becomes 32767 (of latents wider than 512 less, so that sums fit in 32 bits).
    Everything else is float32.
    Determinism: a token's bits depend on its sequence's tokens up to itself alone: not on the call's other tokens, on how a
    prompt is split into calls, or on the thread count. They are the same on every instruction set with a fused multiply-add.

    Args:
        weights: a `DecoderWeights`: L layers of He, N query heads, G key-value heads, heads of D, a vocabulary of V.
        token_ids: (T,) integers in [0, V).
        sequence: (T,) integers in [0, B): the row of page_table of each token.
        positions: (T,) integers in [0, P) and [0, 16 * M): the place of each token in its sequence, which no other token of the
            call has. Every position of a sequence before a token's own must be in the cache, or be a token's of the same call.
        sin: (P, D / 2), with latent attention (P, Dr / 2): the rope of pair i of a head at each position; or (R, P, D / 2), one
            for each `rope` of the layers. float32; or float64, in which "reference" then computes.
        cos: of sin's shape and dtype.
        keys: for the L layers with keys of their own, (slabs, L, G, S, D / 2, 16, 2), or for one slab (L, G, S, D / 2, 16, 2);
            bfloat16, C order, written in place. A page holds 16 positions of one key-value head:
            keys[page // S, l, g, page % S, i, p % 16] are columns 2i and 2i + 1 of position p.
        values: (slabs, L, G, S, 8, D, 2) or (L, G, S, 8, D, 2), bfloat16, C order, apart from keys in memory, written in place:
            values[page // S, l, g, page % S, p % 16 // 2, i, p % 2] is column i.
            Or both float16, (slabs, L, G, S, D / 16, 16, 16): keys[..., i // 16, i % 16, p % 16] and values[..., i // 16, p %
            16, i % 16] are column i. Or both int8, (slabs, L, G, S, D / 16, 18, 16): the same below two rows with sixteen
            scales as bfloat16, one for each position: of its sixteen columns the largest magnitude / 127, rounded; what is less
            than 1e-30 is 0. Integers are column / scale, rounded to even, and times the scale when they are read.
            With latent attention keys are rope keys (slabs, L, S, 16, Dr) and values latents (slabs, L, S, 16, Hckv), or both
            without the axis of slabs, and both bfloat16 or float16: values[page // S, l, page % S, p % 16] is the latent of
            position p. Beside keys in bfloat16 values may be int8 rows of Hckv + 4 instead: round(latent / scale), ties to
            even, with scale = its largest magnitude / 127 as float32 in the last four bytes, which is what they are multiplied
            by when they are read.
        page_table: (B, M) integers: the pages of each sequence in order; page_table[b, p // 16] holds position p. Entries past
            a sequence's last token are not read. No two tokens of the call have one place of one page. What one sequence writes
            to a place that another reads is read as written, so that a prefix may be run once, in the call that continues it.
        wanted: (R,) integers in [0, T): the tokens whose logits are returned, in any order.
        hidden: (T, He), of the dtype of sin, C order, apart from the others in memory; written if it is given.
        layer_inputs: (T, layers, P), of the dtype of sin; given where layers have inputs.
        states: (slots, `weights.state_size`) float32, C order, apart from the others in memory, written in place; given where
            layers have states. A row has them for the layers in order, each from a multiple of 16 values on: the matrices as
            the operators have them, (H, dk, dv) or (H, N, P), then the inputs of the convolution, (K - 1, C). Zeros at the
            beginning of a sequence.
        slots: (B,) integers in [0, slots): the row of states that each sequence begins with. Given with states; the tokens of a
            sequence then lie side by side, at consecutive positions.
        into: (B,) integers: the rows that the sequences leave, all different for those that have tokens; None for `slots`. A
            sequence may not write what another reads.
        index_keys: those of the X layers with an indexer, (slabs, X, S, 16, Di) or (X, S, 16, Di), in pages as values, of
            the dtype of keys, or int8 rows of Di + 4 as those of latents, beside which a head of a query is rounded in the
            same way; C order, apart from the others in memory, written in place; given where layers select.
        backend: "auto", "cpu" or "reference". "cpu" serves float32 and sizes that fill its vectors: D, Dr, Di multiples of 16;
            He, P, Dn, Hckv, Dv of latents, the width of a compressed query and of every feed-forward block multiples of 32.

    Returns:
        Logits (R, V), float32, or float64 with float64 sin; of the kind of `keys`.

    Raises:
        ValueError: for a dtype, shape, id, position or page outside the rules, before the cache is written.

    Source:
        Touvron et al., Llama 2, 2023; grouped-query attention by Ainslie et al., GQA, 2023; latent attention and experts:
        DeepSeek-V2 and V3, 2024.
    """
    call = bind(
        weights,
        token_ids,
        sequence,
        positions,
        sin,
        cos,
        keys,
        values,
        page_table,
        wanted,
        hidden,
        layer_inputs,
        states,
        slots,
        into,
        index_keys,
    )
    backend = choose(OP, backend, {"cpu": cpu.obstacle(call), "reference": None})
    logits: ArrayT = arrays.like(keys, run(OP, backend, (cpu if backend == "cpu" else reference).forward, call))
    return logits
