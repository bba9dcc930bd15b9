"""The weights of one layer: attention of one of two kinds or a recurrence, and a feed-forward block of one of two kinds or of
both beside each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decodestep.ops.decoder_forward.recurrent_layers import Recurrence
from decodestep.ops.expert_router.arguments import RouterRule
from decodestep.weights.feed_forward import FeedForward
from decodestep.weights.linear_panels import LinearPanels


@dataclass(frozen=True, eq=False)
class GroupedAttention:
    """Grouped-query attention. Products as `LinearPanels` of shape (inputs, outputs). N, G, D, Dv: of the decoder, or of the
    layer (`kv_heads`, `head_dim`, `head_values`), which has no more of each."""

    query: LinearPanels  # (He, N * D), the two columns of a rope pair side by side
    # (He, 2 * G * D): the values of all key-value heads, then their keys, in pairs like queries; or (He, G * D), the values
    # alone, if the keys have a weight of their own, in another format; None with keys_of
    values_keys: LinearPanels | None
    output: LinearPanels  # (N * Dv, He)
    # float32, or None without: biases of the outputs of these products; norms of every head of queries and of keys, (Dv,), or
    # with norms_of_rows of all heads of a token as one row, (N * Dv,) and (G * Dv,), before their rope or norms_after_rope
    query_bias: np.ndarray | None = None
    values_keys_bias: np.ndarray | None = None
    output_bias: np.ndarray | None = None
    query_norm: np.ndarray | None = None
    key_norm: np.ndarray | None = None
    window: int = 0  # the number of positions that a token attends to, its own included; 0: all up to its own
    rope: int = 0  # the index of its rope, if sin and cos hold several
    keys: LinearPanels | None = None  # (He, G * D)
    norms_of_rows: bool = False
    norms_after_rope: bool = False
    query_rope: int | None = None  # the index of the queries' rope, if it is another one
    score_cap: float = 0.0  # c of scores that become c * tanh(score / c); 0: none
    value_norm: bool = False  # whether every head of values is divided by its root mean square
    keys_of: int | None = None  # the layer before this one, of the same sizes, whose keys and values it reads; None: its own
    kv_heads: int | None = None  # its own sizes; None: those of the decoder
    head_dim: int | None = None
    head_values: int | None = None
    gate: LinearPanels | None = None  # (He, N * D), whose sigmoid multiplies the attention's result
    sinks: np.ndarray | None = None  # float32 (N,): of every head a score without a value, which takes a part of the softmax

    def products(self) -> tuple[LinearPanels, ...]:
        given = (weight for weight in (self.values_keys, self.keys, self.gate) if weight is not None)
        return (self.query, *given, self.output)


@dataclass(frozen=True, eq=False)
class Indexer:
    """A lightning indexer: Hi heads of Di, and Hcq the width of the compressed query. The two columns of a rope pair, of the
    first columns of a head, are adjacent."""

    query: LinearPanels  # (Hcq, Hi * Di)
    key: LinearPanels  # (He, Di), then its norm: LayerNorm, with an epsilon of 1e-6
    key_norm: np.ndarray  # float32 (Di,), as the bias
    key_norm_bias: np.ndarray
    by_head: LinearPanels  # (He, Hi)

    def products(self) -> tuple[LinearPanels, ...]:
        return self.query, self.key, self.by_head


@dataclass(frozen=True, eq=False)
class LatentAttention:
    """Multi-head latent attention, absorbed: Dn, Dr, Hckv and Dv are those of `LatentSizes`.

    Of a GGUF file: query is attn_q or attn_q_b, query_down attn_q_a, latent attn_kv_a_mqa, key_up attn_k_b and value_up
    attn_v_b, the heads one after another. The two columns of a rope pair are adjacent: if a model pairs column i with
    i + Dr / 2, the outputs of query and latent must be reordered.
    """

    query_down: LinearPanels | None  # (He, Hcq), and the norm of its outputs; None: query reads the hidden state
    query_norm: np.ndarray | None
    query: LinearPanels  # (Hcq or He, N * (Dn + Dr)): by head its part without rope, then that with
    latent: LinearPanels  # (He, Hckv + Dr): the latent, then the rope key
    latent_norm: np.ndarray  # (Hckv,)
    key_up: LinearPanels  # (Dn, N * Hckv): head n turns its Dn values to outputs n * Hckv and following
    value_up: LinearPanels  # (Hckv, N * Dv): likewise
    output: LinearPanels  # (N * Dv, He)
    # float32, or None without: biases of the outputs of these products; none of query_down where there is none
    query_down_bias: np.ndarray | None = None
    latent_bias: np.ndarray | None = None
    output_bias: np.ndarray | None = None
    # By which tokens select the positions that they attend to; None in a decoder that selects: as the last layer before it that
    # has one
    indexer: Indexer | None = None

    def products(self) -> tuple[LinearPanels, ...]:
        down = () if self.query_down is None else (self.query_down,)
        of_indexer = () if self.indexer is None else self.indexer.products()
        return (*down, self.query, self.latent, self.key_up, self.value_up, self.output, *of_indexer)


@dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture of E experts, with the rule and the bias of `expert_router`, and a block that every token goes through."""

    router: LinearPanels  # (He, E)
    rule: RouterRule
    bias: np.ndarray | None  # float32 (E,)
    routed: FeedForward  # of E blocks, `LinearPanels`
    shared: FeedForward | None  # of one block, `LinearPanels`
    router_bias: np.ndarray | None = None  # float32 (E,), added to the router's logits
    factors: np.ndarray | None = None  # float32 (E,), of the weights of the chosen experts
    shared_gate: LinearPanels | None = None  # (He, 1), whose sigmoid multiplies the shared block
    latent_down: LinearPanels | None = None  # (He, R), to the rows that the routed experts read
    latent_up: LinearPanels | None = None  # (R, He), from their sum


@dataclass(frozen=True, eq=False)
class SideBySide:
    """A dense block and a mixture that both read the residual stream x, and whose outputs are added:

        rms_norm(dense(rms_norm(x, ffn_norm)), dense_post_norm)
            + rms_norm(experts(rms_norm(x, experts_norm)), experts_post_norm)

    The router reads rms_norm(x, router_norm). Norms: (He,) float32. The mixture has neither a shared block nor a latent.
    """

    dense: FeedForward  # of one block, `LinearPanels`
    dense_post_norm: np.ndarray
    experts: Mixture
    router_norm: np.ndarray
    experts_norm: np.ndarray
    experts_post_norm: np.ndarray

    def norms(self) -> dict[str, np.ndarray]:
        return {name: norm for name, norm in vars(self).items() if name.endswith("norm")}


@dataclass(frozen=True, eq=False)
class LayerInput:
    """What a layer adds of an input of its own, (P,), after its blocks: rms_norm((GELU(x @ gate) * input) @ output, norm)."""

    gate: LinearPanels  # (He, P)
    output: LinearPanels  # (P, He)
    norm: np.ndarray  # float32 (He,)


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The weights of one layer. Norms: (He,) float32. feed_forward: a mixture, or one block of `LinearPanels`, or both side by
    side. One of mixer and feed_forward may be None, and has no norms then.

    Attributes:
        attention_norm: of what the mixer reads; None: it is the residual stream itself.
        ffn_norm: what the feed-forward block reads, likewise.
        attention_post_norm: of the output of the mixer; None if there is none.
        ffn_post_norm: of the output of the feed-forward block, likewise; a mixture that is alone has none.
        parallel: whether the feed-forward block reads the residual stream as it was before the mixer; without post norms.
        input: what is added of an input of the layer; None: it has none.
        scale: a factor of the residual stream after the layer, of one with a norm after the feed-forward block or an input.
    """

    attention_norm: np.ndarray | None
    mixer: GroupedAttention | LatentAttention | Recurrence | None
    ffn_norm: np.ndarray | None
    feed_forward: FeedForward | Mixture | SideBySide | None
    attention_post_norm: np.ndarray | None = None
    ffn_post_norm: np.ndarray | None = None
    parallel: bool = False
    input: LayerInput | None = None
    scale: float = 1.0

    @property
    def dense(self) -> FeedForward | None:
        """The dense block, where there is one."""
        block = self.feed_forward.dense if isinstance(self.feed_forward, SideBySide) else self.feed_forward
        return block if isinstance(block, FeedForward) else None

    @property
    def mixture(self) -> Mixture | None:
        """The mixture, where there is one."""
        block = self.feed_forward.experts if isinstance(self.feed_forward, SideBySide) else self.feed_forward
        return block if isinstance(block, Mixture) else None
