"""Converts checkpoints to a decoder's weights.

Decoders rotate pairs of adjacent columns, as GGUF's llama and deepseek2 have them. If the columns of a pair are half a head
apart, as in transformers' llama and minicpm3, the rows of the weights are reordered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from decodestep.models import latent_form
from decodestep.models.checkpoint import Checkpoint, Rows, Stored
from decodestep.models.config import LatentConfig
from decodestep.models.errors import ModelError
from decodestep.models.layer_weights import ExpertWeights, GroupedWeights, LatentWeights, Layer, Weight, Weights
from decodestep.weights.feed_forward import FeedForward
from decodestep.weights.file_rows import FileRows, FileRowsError
from decodestep.weights.packed import DENSE_FORMATS, Format, PackedWeight, row_bytes

Pack = Callable[[Rows, bool], Weight]  # (weight, widened) -> the weight in the decoder's format
Progress = Callable[[int, int], object]  # (layers that are done, all layers)
Attention = Callable[[Checkpoint, int, Pack], GroupedWeights | LatentWeights]  # of a layer


def as_it_is(weight: Rows, widened: bool) -> Weight:
    return _whole(weight)


def convert(
    checkpoint: Checkpoint,
    pack: Pack = as_it_is,
    *,
    as_latent: bool = False,
    head_dim: int | None = None,
    progress: Progress | None = None,
) -> Weights:
    """The decoder's weights.

    pack: pack(weight, widened) converts one weight to the decoder's format, and reads it. `widened`: the file's format has no
        kernel, so the weight arrives as float32. The default leaves weights as they are. The embedding is never packed.
    as_latent: whether grouped-query attention is converted to `models.latent_form`.
    head_dim: the size to which heads of grouped-query attention are padded with zeros, in queries, keys, values and their
        biases; the config keeps the original size. None: no padding.
    progress: called before each layer, and when all is done.
    Raises ModelError for a tensor that is missing, unknown, or of a wrong shape or an unsupported format: before any is read;
    and for one that cannot be read, or has a scale that is not finite.
    """
    checkpoint.check()
    try:
        return _convert(checkpoint, pack, as_latent, head_dim, progress or (lambda done, layers: None))
    except FileRowsError as error:
        raise ModelError(f"{checkpoint.path}: {error}") from error


def _convert(checkpoint: Checkpoint, pack: Pack, as_latent: bool, head_dim: int | None, progress: Progress) -> Weights:
    config, ropes = checkpoint.config, checkpoint.ropes()
    attention: Attention = _latent
    if config.latent_attention is None:
        attention = partial(_grouped_weights, head_dim=head_dim or config.head_dim)
    if as_latent and config.latent_attention is None:
        ropes = (latent_form.latent_rope(ropes[0], config),)
        config, attention = latent_form.latent_config(config), _grouped_as_latent
    stored, widened = checkpoint.weight("embedding")
    embedding = _whole(stored)
    layers = []
    for i in range(config.layers):
        progress(i, config.layers)
        layers.append(_layer(checkpoint, i, pack, attention))
    weights = Weights(
        config=config,
        embedding=embedding,
        layers=tuple(layers),
        norm=checkpoint.vector("norm"),
        output=_weight_of(pack, (embedding, widened) if config.tied else checkpoint.weight("output")),
        ropes=ropes,
    )
    progress(config.layers, config.layers)
    return weights


def _layer(checkpoint: Checkpoint, i: int, pack: Pack, attention: Attention) -> Layer:
    return Layer(
        attention_norm=checkpoint.vector("attention_norm", i),
        attention=attention(checkpoint, i, pack),
        ffn_norm=checkpoint.vector("ffn_norm", i),
        feed_forward=_experts(checkpoint, i, pack) if checkpoint.config.has_experts(i) else _dense(checkpoint, i, pack),
        attention_post_norm=checkpoint.optional_vector("attention_post_norm", i),
        ffn_post_norm=checkpoint.optional_vector("ffn_post_norm", i),
    )


def _grouped_weights(checkpoint: Checkpoint, i: int, pack: Pack, head_dim: int) -> GroupedWeights:
    options = checkpoint.config.grouped
    query_norm, key_norm = (
        _paired_vector(checkpoint, f"{part}_head_norm", i, 1) if options.head_norms else None for part in ("query", "key")
    )
    values, keys = (_head_weights(checkpoint, part, i, head_dim) for part in ("value", "key"))
    apart = values[0].format != keys[0].format
    return GroupedWeights(
        query=_weight_of(pack, _head_weights(checkpoint, "query", i, head_dim)),
        values_keys=_weight_of(pack, values) if apart else _weight_of(pack, values, keys),
        keys=_weight_of(pack, keys) if apart else None,
        output=_weight_of(pack, checkpoint.weight("attention_output", i)),
        query_bias=_bias(checkpoint, "query", i, head_dim) if "query" in options.biases else None,
        values_keys_bias=np.concatenate([_bias(checkpoint, part, i, head_dim) for part in ("value", "key")])
        if {"key", "value"} & set(options.biases)
        else None,
        output_bias=checkpoint.optional_vector("attention_output_bias", i),
        query_norm=query_norm,
        key_norm=key_norm,
    )


def _head_weights(checkpoint: Checkpoint, part: str, i: int, head_dim: int) -> Stored:
    """The weight of queries, keys or values: the rotated pairs side by side, the heads padded."""
    config, heads, stored = checkpoint.config, _head_count(checkpoint, part), checkpoint.weight(part, i)
    if part != "value":
        stored = _neighbours(stored, heads, 0, config.head_dim, config.rope_half_split)
    if head_dim == config.head_dim:
        return stored
    weight = _whole(stored[0])
    return replace(weight, rows=_padded_heads(weight.rows, heads, head_dim)), stored[1]


def _head_count(checkpoint: Checkpoint, part: str) -> int:
    return checkpoint.config.heads if part == "query" else checkpoint.config.kv_heads


def _paired_vector(checkpoint: Checkpoint, part: str, i: int, heads: int) -> np.ndarray:
    """A vector of queries or keys, with rotated pairs side by side."""
    config, values = checkpoint.config, checkpoint.vector(part, i)
    return values[neighbour_order(heads, 0, config.head_dim)] if config.rope_half_split else values


def _bias(checkpoint: Checkpoint, part: str, i: int, head_dim: int) -> np.ndarray:
    """Zeros where the part has none."""
    heads = _head_count(checkpoint, part)
    if not checkpoint.has(f"{part}_bias", i):
        return np.zeros(heads * head_dim, np.float32)
    name = f"{part}_bias"
    values = checkpoint.vector(name, i) if part == "value" else _paired_vector(checkpoint, name, i, heads)
    return _padded_heads(values[:, None], heads, head_dim)[:, 0]


def _padded_heads(rows: np.ndarray, heads: int, head_dim: int) -> np.ndarray:
    """The rows of every head, and zeros up to head_dim of them: in all formats bytes of zero are zeros."""
    own = len(rows) // heads
    if own == head_dim:
        return rows
    padded = np.zeros((heads, head_dim, rows.shape[1]), rows.dtype)
    padded[:, :own] = rows.reshape(heads, own, -1)
    return padded.reshape(heads * head_dim, -1)


def _grouped_as_latent(checkpoint: Checkpoint, i: int, pack: Pack) -> LatentWeights:
    config = checkpoint.config
    query, widened = _head_weights(checkpoint, "query", i, config.head_dim)
    return LatentWeights(
        query_down=None,
        query_norm=None,
        query=_weight_of(pack, (latent_form.spread_queries(_whole(query), config), widened)),
        latent=_weight_of(pack, *(_head_weights(checkpoint, part, i, config.head_dim) for part in ("value", "key"))),
        latent_norm=latent_form.no_norm(config),
        key_up=_weight_of(pack, (latent_form.no_keys_up(config), False)),
        value_up=_weight_of(pack, (latent_form.chosen_values(config), False)),
        output=_weight_of(pack, checkpoint.weight("attention_output", i)),
    )


def _latent(checkpoint: Checkpoint, i: int, pack: Pack) -> LatentWeights:
    config, sizes = checkpoint.config, checkpoint.config.latent_attention
    assert sizes is not None
    direct = sizes.query_rank is None
    down = None if direct else _weight_of(pack, checkpoint.weight("query_down", i))
    half_split = config.rope_half_split
    query = _neighbours(
        checkpoint.weight("query" if direct else "query_up", i), config.heads, sizes.nope_dim, sizes.rope_dim, half_split
    )
    latent = _neighbours(checkpoint.weight("latent_rope", i), 1, sizes.latent_dim, sizes.rope_dim, half_split)
    latent_bias = checkpoint.optional_vector("latent_rope_bias", i)
    if latent_bias is not None and half_split:
        latent_bias = latent_bias[neighbour_order(1, sizes.latent_dim, sizes.rope_dim)]
    key_up, value_up = _up_projections(checkpoint, i, sizes)
    return LatentWeights(
        query_down=down,
        query_norm=None if direct else checkpoint.vector("query_norm", i),
        query=_weight_of(pack, query),
        latent=_weight_of(pack, latent),
        latent_norm=checkpoint.vector("latent_norm", i),
        key_up=_weight_of(pack, key_up),
        value_up=_weight_of(pack, value_up),
        output=_weight_of(pack, checkpoint.weight("attention_output", i)),
        query_down_bias=checkpoint.optional_vector("query_down_bias", i),
        latent_bias=latent_bias,
        output_bias=checkpoint.optional_vector("attention_output_bias", i),
    )


def _up_projections(checkpoint: Checkpoint, i: int, sizes: LatentConfig) -> tuple[Stored, Stored]:
    """For each head, the weight that projects its query to the latents' space, and that of its values.

    If the checkpoint has them in one weight, by the rows of keys and values, those of keys are transposed: blocks as float32.
    """
    if checkpoint.has("keys_up", i):
        return checkpoint.stack("keys_up", i), checkpoint.stack("values_up", i)
    both, widened = checkpoint.weight("keys_values_up", i)
    both = _whole(both)
    heads = checkpoint.config.heads
    nope, latent = sizes.nope_dim, sizes.latent_dim
    rows = both.rows.reshape(heads, nope + sizes.value_dim, -1)
    keys, values = (replace(both, rows=part.reshape(-1, rows.shape[2])) for part in (rows[:, :nope], rows[:, nope:]))
    if both.format in DENSE_FORMATS:
        widened_keys, numbers, format_ = widened, keys.rows, both.format
    else:
        widened_keys, numbers, format_ = True, np.ascontiguousarray(keys.values()).view(np.uint8), Format.F32
    size = row_bytes(format_, 1)
    transposed = numbers.reshape(heads, nope, latent, size).swapaxes(1, 2).reshape(heads * latent, nope * size)
    return (PackedWeight(np.ascontiguousarray(transposed), format_, nope), widened_keys), (values, widened)


def _dense(checkpoint: Checkpoint, i: int, pack: Pack, prefix: str = "") -> FeedForward:
    if checkpoint.has(f"{prefix}gate_up", i):
        stored = _halves(checkpoint.weight(f"{prefix}gate_up", i), 1)
    else:
        parts = [f"{prefix}{part}" for part in ("gate", "up")]
        stored = [checkpoint.weight(part, i) for part in parts if checkpoint.has(part, i)]
    *gate, up = (_weight_of(pack, one) for one in stored)
    gate_bias, up_bias, down_bias = (checkpoint.optional_vector(f"{prefix}{part}_bias", i) for part in ("gate", "up", "down"))
    return FeedForward(
        gate=gate[0] if gate else None,
        up=up,
        down=_weight_of(pack, checkpoint.weight(f"{prefix}down", i)),
        gelu=checkpoint.config.activation == "gelu_gated",
        gate_bias=gate_bias,
        up_bias=up_bias,
        down_bias=down_bias,
    )


def _experts(checkpoint: Checkpoint, i: int, pack: Pack) -> ExpertWeights:
    experts, router = checkpoint.config.experts, _whole(checkpoint.weight("router", i)[0])
    assert experts is not None
    if checkpoint.has("experts_gate_up", i):
        halves = _halves(checkpoint.stack("experts_gate_up", i), experts.count)
        gate, up = (_weight_of(pack, half) for half in halves)
    else:
        gate, up = (_weight_of(pack, checkpoint.stack(f"experts_{part}", i)) for part in ("gate", "up"))
    return ExpertWeights(
        router=router if router.format in DENSE_FORMATS else PackedWeight.from_array(router.dense()),
        bias=checkpoint.optional_vector("correction", i),
        routed=FeedForward(gate, up, _weight_of(pack, checkpoint.stack("experts_down", i)), experts.count),
        shared=_dense(checkpoint, i, pack, "shared_") if experts.shared else None,
    )


def _halves(stored: Stored, blocks: int) -> list[Stored]:
    """The first halves of `blocks` blocks of rows, one after the other, and the second halves."""
    weight, widened = _whole(stored[0]), stored[1]
    rows = weight.rows.reshape(blocks, 2, -1, weight.rows.shape[1])
    first, second = (np.ascontiguousarray(rows[:, k]).reshape(-1, rows.shape[3]) for k in (0, 1))
    return [(replace(weight, rows=half), widened) for half in (first, second)]


def neighbour_order(heads: int, start: int, width: int) -> np.ndarray:
    """The rows of heads of start + width, the last `width` of each with the halves of a pair side by side."""
    head = np.concatenate([np.arange(start), start + np.arange(width).reshape(2, -1).T.reshape(-1)])
    return (np.arange(heads)[:, None] * len(head) + head).reshape(-1)


def _neighbours(stored: Stored, heads: int, start: int, width: int, half_split: bool) -> Stored:
    """A weight whose rows are in `neighbour_order`. half_split: whether they are not yet."""
    if not half_split:
        return stored
    weight = _whole(stored[0])
    return replace(weight, rows=weight.rows[neighbour_order(heads, start, width)]), stored[1]


def _weight_of(pack: Pack, *parts: Stored) -> Weight:
    """The weight whose outputs are those of the parts, one after the other, as `pack` converts it.

    Parts of different formats are widened to float32; those of dense formats are exactly that, and not to be quantised.
    """
    weights = [weight for weight, _ in parts]
    widened = any(widened for _, widened in parts)
    if len(weights) == 1:
        return pack(weights[0], widened)
    formats = {weight.format for weight in weights}
    if len(formats) > 1:
        widened |= not formats <= DENSE_FORMATS
        return pack(PackedWeight.widened(*map(_whole, weights)), widened)
    in_file = [weight for weight in weights if isinstance(weight, FileRows)]
    if len(in_file) == len(weights):
        return pack(FileRows.stack(*in_file), widened)
    return pack(PackedWeight.stack(*map(_whole, weights)), widened)


def _whole(weight: Rows) -> PackedWeight:
    return weight.whole() if isinstance(weight, FileRows) else weight
