"""A decoder that calls the operators layer by layer: for models of any sizes, and the reference of the native step."""

from __future__ import annotations

import numpy as np

from decodestep.models.config import Weights
from decodestep.models.decoder import Decoder
from decodestep.models.kv_cache import PAGE, LatentPages, Pages
from decodestep.ops.linear import linear
from decodestep.ops.linear.cpu import gather_rows
from decodestep.ops.mla_attention import mla_attention
from decodestep.ops.mla_prolog import mla_prolog
from decodestep.ops.rms_norm import rms_norm
from decodestep.ops.swiglu import swiglu


class LayerDecoder(Decoder):
    """Weights in the file's formats, activations and cache in float32.

    why: the reason for running layer by layer, for `description`.
    """

    def __init__(self, weights: Weights, why: str = "dtype float32") -> None:
        self.weights = weights
        self.config = weights.config
        self.description = f"layer by layer, float32 activations ({why})"
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
    ) -> np.ndarray:
        assert isinstance(pages, LatentPages)
        hidden = self.forward(tokens, sequence, positions, pages, page_table)[wanted]
        return linear(rms_norm(hidden, self.weights.norm, eps=self.config.norm_eps), self.weights.output)

    def forward(
        self, tokens: np.ndarray, sequence: np.ndarray, positions: np.ndarray, pages: LatentPages, page_table: np.ndarray
    ) -> np.ndarray:
        """Hidden states (T, He) after the last layer; writes keys and values to the pages. Arguments as of `logits`."""
        config = self.config
        sin, cos = self._rope(positions)
        slots = page_table[sequence, positions // PAGE] * PAGE + positions % PAGE
        x = gather_rows(self.weights.embedding, tokens)
        for layer, kv, kr in zip(self.weights.layers, pages.kv, pages.kr, strict=True):
            query = mla_prolog(
                rms_norm(x, layer.attention_norm, eps=config.norm_eps),
                None,
                layer.w_uq_qr,
                layer.w_uk,
                layer.w_dkv_kr,
                None,
                None,
                sin,
                cos,
                slots,
                kv,
                kr,
                rope_groups=config.groups,
                need_query=False,
            )
            attended = mla_attention(
                None,
                query.query_rope,
                kv,
                kr,
                page_table,
                positions + 1,
                scale=config.scale,
                sequence=sequence,
                groups=config.groups,
            )
            x += linear(attended.reshape(len(x), -1), layer.w_o)
            h = rms_norm(x, layer.ffn_norm, eps=config.norm_eps)
            x += linear(swiglu(linear(h, layer.w_gate), linear(h, layer.w_up)), layer.w_down)
        return x

    def _rope(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """sin and cos, float32 (T, Dr): for every group the angles of a head twice, because its two halves have the same."""
        sin, cos = rope_table(positions, self.weights.inverse_frequencies)
        repeat = (1, 2 * self.config.groups)
        return np.tile(sin, repeat), np.tile(cos, repeat)


def rope_table(positions: np.ndarray, inverse_frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sin and cos, float32 (T, head_dim / 2), of one angle per rope pair.

    Angles are float32 products; their sine and cosine are computed in float64 and rounded, to be the same bits everywhere.
    """
    angles = (positions.astype(np.float32)[:, None] * inverse_frequencies).astype(np.float64)
    return np.sin(angles).astype(np.float32), np.cos(angles).astype(np.float32)
