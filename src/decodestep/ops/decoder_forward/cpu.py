"""The call into the native core, which keeps a native decoder for each `DecoderWeights`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from decodestep import _native
from decodestep._base.arrays import contiguous
from decodestep._base.profiling import add_part, is_timed
from decodestep._base.threads import threads
from decodestep.ops.decoder_forward.arguments import Call
from decodestep.ops.decoder_forward.layers import (
    GroupedAttention,
    Indexer,
    LatentAttention,
    LayerWeights,
    Mixture,
    SideBySide,
)
from decodestep.ops.decoder_forward.recurrent_layers import Recurrence
from decodestep.ops.decoder_forward.weights import DecoderWeights, LatentSizes
from decodestep.ops.expert_router.cpu import native_rule
from decodestep.ops.linear.cpu import panel_argument
from decodestep.ops.mixture_of_experts.cpu import native_panels
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight

_decoders: WeakKeyDictionary[DecoderWeights, Any] = WeakKeyDictionary()


def block_obstacle(hidden: int, feed_forwards: Iterable[int]) -> str | None:
    """Why the native kernel cannot run a decoder of this width with feed-forward blocks of those, or None."""
    obstacles = (_odd({"feed-forward size": width}) for width in feed_forwards)
    return _odd({"hidden size": hidden}) or next((why for why in obstacles if why is not None), None)


def grouped_obstacle(head_dim: int) -> str | None:
    """Why the native kernel cannot run grouped-query attention of this head size, or None."""
    return f"head size {head_dim} is not a multiple of 16" if head_dim % 16 else None


def latent_obstacle(sizes: LatentSizes, *, compressed: int | None = None) -> str | None:
    """Why the native kernel cannot run latent attention of these widths, or None. compressed: of the query, if it is."""
    if sizes.rope % 16:
        return f"rope size {sizes.rope} is not a multiple of 16"
    if sizes.index_width % 16:
        return f"size of index heads {sizes.index_width} is not a multiple of 16"
    widths = {"size without rope": sizes.nope, "latent size": sizes.latent, "value size": sizes.value}
    return _odd(widths if compressed is None else {**widths, "compressed query size": compressed})


def _odd(sizes: dict[str, int]) -> str | None:
    return next((f"{name} {size} is not a multiple of 32" for name, size in sizes.items() if size % 32), None)


def obstacle(call: Call) -> str | None:
    """Why the native kernel cannot serve a call, or None."""
    if call.sin.dtype != np.float32:
        return "has no float64"
    size = weights_obstacle(call.weights)
    return size and f"cannot: {size}"


def weights_obstacle(w: DecoderWeights) -> str | None:
    """Why the native kernel cannot run a decoder, or None."""
    if w in _decoders:
        return None
    if (why := block_obstacle(w.hidden, (block.width for block in w.feed_forwards))) is not None:
        return why
    odd = next((m.routed.hidden for m in w.mixtures if m.routed.hidden % 32), 0)
    if odd:
        return f"latent of experts {odd} is not a multiple of 32"
    if w.input_width % 32:
        return f"width of a layer's input {w.input_width} is not a multiple of 32"
    if w.latent is None:
        dims = [w.sizes(layer.mixer)[1] for layer in w.layers if isinstance(layer.mixer, GroupedAttention)]
        return next((why for why in map(grouped_obstacle, dims) if why is not None), None)
    downs = [layer.mixer.query_down for layer in w.layers if isinstance(layer.mixer, LatentAttention)]
    obstacles = (latent_obstacle(w.latent, compressed=None if down is None else down.outputs) for down in downs)
    return next((why for why in obstacles if why is not None), None)


def forward(call: Call) -> np.ndarray:
    logits = np.empty((len(call.wanted), call.weights.vocab_size), np.float32)
    costs = np.zeros((len(_native.STEP_PARTS), 2)) if is_timed() else None
    _native.decoder_forward(
        decoder=_decoder(call.weights),
        ids=call.token_ids,
        sequence=call.sequence,
        positions=call.positions,
        sin=contiguous(call.sin),
        cos=contiguous(call.cos),
        keys=_cache(call.keys),
        values=_cache(call.values),
        half=call.keys.dtype == np.float16,
        page_table=call.page_table,
        wanted=call.wanted,
        logits=logits,
        threads=threads(),
        costs=costs,
        hidden=call.hidden,
        layer_inputs=None if call.layer_inputs is None else contiguous(call.layer_inputs),
        states=call.states,
        slots=call.slots,
        into=call.into,
        index=None if call.index_keys is None else _cache(call.index_keys),
        kept=call.kept,
        kept_rows=call.kept_rows,
    )
    if costs is not None:
        for part, (seconds, stages) in zip(_native.STEP_PARTS, costs.tolist(), strict=True):
            if stages:
                add_part(part, int(stages), seconds)
    return logits


def replay_states(
    weights: DecoderWeights, kept: Sequence[np.ndarray], states: np.ndarray, slots: np.ndarray, into: np.ndarray
) -> None:
    """Brings states forward by tokens of which a call has kept the inputs, without reading a weight matrix.

    kept: of each sequence the rows of its tokens. slots, into: of each the state that is read and the one that is written.
    """
    _native.replay_states(_decoder(weights), tuple(kept), states, slots, into, threads())


def _cache(array: np.ndarray) -> np.ndarray:
    """As the core takes it: values of 16 bits as uint16."""
    return array.view(np.uint16) if array.dtype.itemsize == 2 else array


def _decoder(weights: DecoderWeights) -> Any:
    decoder = _decoders.get(weights)
    if decoder is None:
        decoder = _decoders[weights] = _native.Decoder(
            heads=weights.heads,
            kv_heads=weights.kv_heads,
            head_dim=weights.head_dim,
            head_values=weights.value_dim,
            latent=weights.latent and asdict(weights.latent),
            norm_eps=weights.norm_eps,
            scale=weights.scale,
            embedding_scale=weights.embedding_scale,
            residual_scale=weights.residual_scale,
            logits_scale=weights.logits_scale,
            logits_cap=weights.logits_cap,
            centred_norms=weights.centred_norms,
            layers=[_layer(layer, weights) for layer in weights.layers],
            norm=contiguous(weights.norm),
            logits=panel_argument(weights.logits),
            embedding=_embedding(weights.embedding),
        )
    return decoder


def _embedding(w: PackedWeight | LinearPanels) -> tuple[Any, ...]:
    return panel_argument(w) if isinstance(w, LinearPanels) else (w.rows, int(w.format))


def _layer(w: LayerWeights, weights: DecoderWeights) -> dict[str, Any]:
    """As csrc/bindings/decoder_forward.cpp reads it."""
    block = w.feed_forward
    return {
        "attention_norm": _native_form(w.attention_norm),
        "ffn_norm": _native_form(w.ffn_norm),
        "attention_post_norm": _native_form(w.attention_post_norm),
        "ffn_post_norm": _native_form(w.ffn_post_norm),
        "parallel": w.parallel,
        "scale": w.scale,
        "input": w.input and {field.name: _native_form(getattr(w.input, field.name)) for field in fields(w.input)},
        **_mixer(w.mixer, weights),
        "feed_forward": native_panels(w.dense),
        "mixture": w.mixture and _mixture(w.mixture),
        "beside": {name: contiguous(norm) for name, norm in block.norms().items()} if isinstance(block, SideBySide) else None,
    }


def _mixer(mixer: GroupedAttention | LatentAttention | Recurrence | None, weights: DecoderWeights) -> dict[str, Any]:
    if mixer is None:
        return {"mixer": "none"}
    if isinstance(mixer, Recurrence):
        return {"mixer": mixer.kind, "weights": _recurrence(mixer)}
    return {"mixer": "attention", "weights": _attention(mixer, weights)}


def _recurrence(w: Recurrence) -> dict[str, Any]:
    sizes, vectors = w.sizes(), ("decay", "step_bias", "skip", "norm", "input_bias", "convolution_bias")
    return {
        **{name: getattr(sizes, name) for name in ("heads", "columns", "key_heads", "rows")},
        "tiled": getattr(w, "tiled", False),
        "inputs": [panel_argument(panels) for panels in w.inputs().values()],
        "output": panel_argument(w.output),
        "output_bias": _native_form(w.output_bias),
        "convolution": contiguous(w.convolution),
        **{name: _native_form(getattr(w, name, None)) for name in vectors},
    }


def _attention(a: GroupedAttention | LatentAttention, weights: DecoderWeights) -> dict[str, Any]:
    made = _fields(a)
    if isinstance(a, LatentAttention):
        made["indexer"] = a.indexer and _fields(a.indexer)
    if isinstance(a, GroupedAttention):
        made |= zip(("kv_heads", "head_dim", "head_values"), weights.sizes(a), strict=True)
        made["query_rope"] = a.rope if a.query_rope is None else a.query_rope
    return made


def _fields(part: GroupedAttention | LatentAttention | Indexer) -> dict[str, Any]:
    return {field.name: _native_form(getattr(part, field.name)) for field in fields(part)}


def _native_form(value: np.ndarray | LinearPanels | float | None) -> Any:
    if isinstance(value, LinearPanels):
        return panel_argument(value)
    return contiguous(value) if isinstance(value, np.ndarray) else value


def _mixture(m: Mixture) -> dict[str, Any]:
    return {
        "router": panel_argument(m.router),
        "rule": native_rule(m.rule),
        "bias": _native_form(m.bias),
        "router_bias": _native_form(m.router_bias),
        "factors": _native_form(m.factors),
        "routed": native_panels(m.routed),
        "shared": native_panels(m.shared),
        **{name: _native_form(getattr(m, name)) for name in ("shared_gate", "latent_down", "latent_up")},
    }
