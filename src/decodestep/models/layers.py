"""A decoder that calls the operators layer by layer: for models of any size, and the reference of the native step."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from decodestep.models import grouped_layer
from decodestep.models.config import Config, DenseBlock, Layer, Weight, Weights
from decodestep.models.decoder import Decoder
from decodestep.models.kv_cache import PAGE, LatentPages, Pages
from decodestep.ops.expert_router import expert_router
from decodestep.ops.linear import linear
from decodestep.ops.linear.cpu import gather_rows
from decodestep.ops.mixture_of_experts import mixture_of_experts
from decodestep.ops.mixture_of_experts.reference import gelu_gated, plus, squared_relu
from decodestep.ops.mla_attention import mla_attention
from decodestep.ops.mla_prolog import mla_prolog
from decodestep.ops.rms_norm import rms_norm
from decodestep.ops.swiglu import swiglu
from decodestep.weights.packed import PackedWeight


class LayerDecoder(Decoder):
    """Weights in the file's formats, activations and cache in float32.

    why: the reason for running layer by layer, for `description`.
    """

    def __init__(self, weights: Weights, why: str = "dtype float32") -> None:
        self.weights = replace(weights, layers=tuple(map(_with_biases, weights.layers)))
        self.config = weights.config
        self._key_up = [_key_up(layer.key_up, self.config) for layer in weights.layers]
        self.description = f"layer by layer, float32 activations ({why}){left_out(self.config)}"
        self.cache_dtype = "float32"
        self.long_after = weights.ropes[0].long_after
        self.page_bytes = LatentPages.bytes_of_a_page(self.config.layers, self.config.latent, self.config.rope)

    def new_pages(self, count: int) -> LatentPages:
        config = self.config
        return LatentPages(config.layers, config.latent, config.rope, count)

    def logits(
        self,
        tokens: np.ndarray,
        sequence: np.ndarray,
        positions: np.ndarray,
        pages: Pages,
        page_table: np.ndarray,
        wanted: np.ndarray,
        long: np.ndarray | None = None,
    ) -> np.ndarray:
        assert isinstance(pages, LatentPages)
        hidden = self.forward(tokens, sequence, positions, pages, page_table, long)[wanted]
        hidden = rms_norm(hidden, self.weights.norm, eps=self.config.norm_eps)
        return linear(_scaled(hidden, 1 / self.config.logits_scale), self.weights.output)

    def forward(
        self,
        tokens: np.ndarray,
        sequence: np.ndarray,
        positions: np.ndarray,
        pages: LatentPages,
        page_table: np.ndarray,
        long: np.ndarray | None = None,
    ) -> np.ndarray:
        """Hidden states (T, He) after the last layer; writes keys and values to the pages. Arguments as of `logits`."""
        config = self.config
        slots = page_table[sequence, positions // PAGE] * PAGE + positions % PAGE
        tables = [rope.table(positions, long) for rope in self.weights.ropes]
        latent = config.latent_attention
        repeated = [self._repeated(table) for table in tables] if latent or config.is_plain else []
        x = _scaled(gather_rows(self.weights.embedding, tokens), config.embedding_scale)
        for i, (layer, key_up, kv, kr) in enumerate(zip(self.weights.layers, self._key_up, pages.kv, pages.kr, strict=True)):
            h = rms_norm(x, layer.attention_norm, eps=config.norm_eps)
            if repeated:
                attended = self._attended(h, layer, key_up, kv, kr, page_table, sequence, positions, slots, *repeated[0])
            else:
                table = tables[config.grouped.rope(i)]
                attended = grouped_layer.attended(h, layer, config, i, kv, kr, page_table, sequence, positions, *table)
            added = plus(linear(attended, layer.w_o), layer.output_bias)
            x += _scaled(self._normed(added, layer.attention_post_norm), config.branch_scale)
            h = rms_norm(x, layer.ffn_norm, eps=config.norm_eps)
            x += _scaled(self._normed(self._feed_forward(h, layer), layer.ffn_post_norm), config.branch_scale)
        return x

    def _attended(
        self,
        h: np.ndarray,
        layer: Layer,
        key_up: np.ndarray,
        kv: np.ndarray,
        kr: np.ndarray,
        page_table: np.ndarray,
        sequence: np.ndarray,
        positions: np.ndarray,
        slots: np.ndarray,
        sin: np.ndarray,
        cos: np.ndarray,
    ) -> np.ndarray:
        """By the operators of latent attention, of which that of groups is a case."""
        latent = self.config.latent_attention
        groups = 1 if latent else self.config.groups
        query = mla_prolog(
            h if layer.latent_bias is None else np.concatenate([h, np.ones((len(h), 1), np.float32)], axis=1),
            layer.w_dq,
            layer.w_uq_qr,
            key_up,
            layer.w_dkv_kr,
            layer.gamma_cq,
            layer.gamma_ckv,
            sin,
            cos,
            slots,
            kv,
            kr,
            rmsnorm_epsilon_cq=latent.norm_eps if latent else 0.0,
            rmsnorm_epsilon_ckv=latent.norm_eps if latent else 0.0,
            rope_groups=groups,
            need_query=latent is not None,
        )
        return mla_attention(
            query.query,
            query.query_rope,
            kv,
            kr,
            page_table,
            positions + 1,
            scale=self.config.scale,
            sequence=sequence,
            groups=groups,
            w_uv=layer.value_up,
        ).reshape(len(h), -1)

    def _normed(self, added: np.ndarray, norm: np.ndarray | None) -> np.ndarray:
        return added if norm is None else rms_norm(added, norm, eps=self.config.norm_eps)

    def _feed_forward(self, h: np.ndarray, layer: Layer) -> np.ndarray:
        block, experts = layer.feed_forward, self.config.experts
        if isinstance(block, DenseBlock):
            return _dense(h, block, self.config.activation)
        assert experts is not None
        routes = expert_router(linear(h, block.router), bias=block.correction, **asdict(experts.rule))
        mixed = mixture_of_experts(h, routes.experts, routes.weights, block.routed)
        return mixed if block.shared is None else mixed + _dense(h, block.shared, self.config.activation)

    def _repeated(self, table: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """sin and cos, float32 (T, Dr): for every group the angles of a head twice, because its two halves have the same."""
        repeat = (1, 2 if self.config.latent_attention else 2 * self.config.groups)
        return np.tile(table[0], repeat), np.tile(table[1], repeat)


def left_out(config: Config) -> str:
    """What a description says about layers of a checkpoint that are not run."""
    count = config.skipped_layers
    return f"; {count} layer{'s' if count > 1 else ''} for next-token prediction left out" if count else ""


def _dense(h: np.ndarray, block: DenseBlock, activation: str) -> np.ndarray:
    up = plus(linear(h, block.up), block.up_bias)
    if block.gate is None:
        gated = squared_relu(up)
    else:
        gated = (gelu_gated if activation == "gelu_gated" else swiglu)(plus(linear(h, block.gate), block.gate_bias), up)
    return plus(linear(gated, block.down), block.down_bias)


def _with_biases(layer: Layer) -> Layer:
    """The layer, with one more input in the first products of latent attention if they have biases: 1 for every token."""
    if layer.latent_bias is None:
        return layer
    layer = replace(layer, w_dkv_kr=_with_bias(layer.w_dkv_kr, layer.latent_bias))
    if layer.w_dq is None:
        return replace(layer, w_uq_qr=_with_bias(layer.w_uq_qr, None))
    return replace(layer, w_dq=_with_bias(layer.w_dq, layer.query_down_bias))


def _with_bias(weight: Weight, bias: np.ndarray | None) -> PackedWeight:
    values = _rows(weight).dense()
    row = np.zeros(values.shape[1], np.float32) if bias is None else bias
    return PackedWeight.from_array(np.concatenate([values, row[None]]))


def _key_up(weight: Weight | None, config: Config) -> np.ndarray:
    """The weight as `mla_prolog` takes it: float32 (N, D, Hckv), in grouped-query attention of no values."""
    if weight is None:
        return np.zeros((config.heads, 0, config.latent), np.float32)
    values = _rows(weight).values()
    return np.ascontiguousarray(values.reshape(config.heads, config.latent, values.shape[1]).swapaxes(1, 2))


def _rows(weight: Weight) -> PackedWeight:
    assert isinstance(weight, PackedWeight)
    return weight


def _scaled(x: np.ndarray, factor: float) -> np.ndarray:
    return x if factor == 1 else x * np.float32(factor)
