"""Converts checkpoints to a decoder's weights.

The rope of decoders turns pairs of adjacent columns. If the columns of a pair are half a head apart
(`Config.rope_half_split`), the rows of the weights are reordered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from decodestep.decoding import latent_form
from decodestep.decoding.config import Config, LatentConfig, Mixer
from decodestep.decoding.layer_weights import (
    GroupedWeights,
    IndexerWeights,
    InputsOfLayers,
    LatentWeights,
    Layer,
    LayerInputWeights,
    MixerWeights,
    NextTokenWeights,
    Weight,
    Weights,
)
from decodestep.decoding.rope import Rope
from decodestep.errors import ModelError
from decodestep.models import convert_feed_forward, convert_mixers
from decodestep.models.checkpoint import Checkpoint, Stored
from decodestep.models.convert_feed_forward import in_dense_format
from decodestep.models.layer_parts import LayerParts, Pack, pack_together
from decodestep.models.row_order import chosen_rows, gated_rows, neighbour_order, padded_heads, qkv_rows
from decodestep.weights.file_weight import FileWeightError
from decodestep.weights.lazy_weight import RowWeight, whole
from decodestep.weights.packed import DENSE_FORMATS, Format, PackedWeight, row_bytes

Progress = Callable[[int, int], object]  # (layers that are done, all layers)


def as_it_is(weight: RowWeight, widened: bool) -> Weight:
    return whole(weight)


def convert(
    checkpoint: Checkpoint,
    pack: Pack = as_it_is,
    *,
    as_latent: bool = False,
    padded: Callable[[int], int] | None = None,
    progress: Progress | None = None,
) -> Weights:
    """The decoder's weights.

    pack: pack(weight, widened) converts one weight to the decoder's format, and reads it. `widened`: the file's format has no
        kernel, so the weight arrives as float32. In its own format a weight keeps its values. The default leaves weights as
        they are. The embedding is packed only where it is the logits weight too and keeps its format; both are then one weight.
    as_latent: whether grouped-query attention is converted to `models.latent_form`.
    padded: the size to which heads of grouped-query attention of a size are padded with zeros, in queries, keys, values and
        their biases; the config keeps the original size. None: no padding.
    progress: called before each layer, and when all is done.
    Raises ModelError for a tensor that is missing, unknown, or of a wrong shape or an unsupported format: before any is read;
    and for one that cannot be read, or has a scale that is not finite.
    """
    checkpoint.check()
    try:
        return _convert(checkpoint, pack, as_latent, padded, progress or (lambda done, layers: None))
    except FileWeightError as error:
        raise ModelError(f"{checkpoint.path}: {error}") from error


def _convert(
    checkpoint: Checkpoint, pack: Pack, as_latent: bool, padded: Callable[[int], int] | None, progress: Progress
) -> Weights:
    attention: MixerReader = _latent
    if checkpoint.config.latent_attention is None:
        attention = _grouped_as_latent if as_latent else partial(_grouped_weights, padded=padded or (lambda width: width))
    config, ropes = config_and_ropes(checkpoint, as_latent)
    layers, count = [], config.layers + config.next_token_layers
    for i in range(count):
        progress(i, count)
        # Those for next-token prediction run operator by operator, on heads without padding.
        own = (
            attention if i < config.layers or config.latent_attention else partial(_grouped_weights, padded=lambda width: width)
        )
        layers.append(_layer(LayerParts(checkpoint, i, pack), own))
    embedding, output = _embedding_and_output(checkpoint, pack)
    weights = Weights(
        config=config,
        embedding=embedding,
        layers=tuple(layers[: config.layers]),
        norm=checkpoint.vector("norm"),
        output=output,
        ropes=ropes,
        inputs=_inputs_of_layers(checkpoint, pack) if config.layer_inputs else None,
        next_tokens=tuple(
            _next_token(checkpoint, LayerParts(checkpoint, i, pack), layers[i]) for i in range(config.layers, count)
        ),
    )
    progress(count, count)
    return weights


def config_and_ropes(checkpoint: Checkpoint, as_latent: bool) -> tuple[Config, tuple[Rope, ...]]:
    """What weights have that is read from the header of the checkpoint."""
    config, ropes = checkpoint.config, checkpoint.ropes()
    if not as_latent or config.latent_attention is not None:
        return config, ropes
    return latent_form.latent_config(config), (latent_form.latent_rope(ropes[0], config),)


def _next_token(checkpoint: Checkpoint, parts: LayerParts, layer: Layer) -> NextTokenWeights:
    return NextTokenWeights(
        embedding_norm=parts.vector("next_embedding_norm"),
        hidden_norm=parts.vector("next_hidden_norm"),
        join=parts.packed("next_join"),
        layer=layer,
        norm=parts.vector("next_norm") if parts.has("next_norm") else checkpoint.vector("norm"),
    )


def _embedding_and_output(checkpoint: Checkpoint, pack: Pack) -> tuple[Weight, Weight]:
    """The embedding and the logits weight."""
    embedding = checkpoint.weight("embedding")
    if not checkpoint.config.tied:
        return whole(embedding.weight), pack_together(pack, checkpoint.weight("output"))
    output = pack_together(pack, embedding)
    return output if output.format == embedding.weight.format else whole(embedding.weight), output


MixerReader = Callable[[LayerParts], MixerWeights]


def _layer(layer: LayerParts, attention: MixerReader) -> Layer:
    readers: dict[Mixer, MixerReader] = {
        "attention": attention,
        "delta": convert_mixers.delta,
        "mamba": convert_mixers.mamba,
        "convolution": convert_mixers.convolution,
    }
    mixer = readers.get(layer.config.mixer_of(layer.number))
    return Layer(
        attention_norm=layer.optional_vector("attention_norm"),
        mixer=None if mixer is None else mixer(layer),
        ffn_norm=layer.optional_vector("ffn_norm"),
        feed_forward=convert_feed_forward.feed_forward(layer),
        attention_post_norm=layer.optional_vector("attention_post_norm"),
        ffn_post_norm=layer.optional_vector("ffn_post_norm"),
        input=_layer_input(layer) if layer.config.layer_inputs else None,
        scale=float(layer.vector("layer_scale")[0]) if layer.has("layer_scale") else 1.0,
    )


def _layer_input(layer: LayerParts) -> LayerInputWeights:
    gate, output = layer.packed("input_gate"), layer.packed("input_output")
    return LayerInputWeights(gate, output, layer.vector("input_norm"))


def _inputs_of_layers(checkpoint: Checkpoint, pack: Pack) -> InputsOfLayers:
    projection = checkpoint.weight("inputs_projection")
    return InputsOfLayers(
        embedding=whole(checkpoint.weight("inputs_embedding").weight),
        projection=pack_together(pack, projection),
        norm=checkpoint.vector("inputs_norm"),
    )


def _grouped_weights(layer: LayerParts, padded: Callable[[int], int]) -> GroupedWeights:
    options, head_dim, apart = layer.config.grouped, padded(layer.head_dim), False
    query = _head_weights(layer, "query", head_dim)
    values_keys = keys = None
    if layer.has_keys:
        own_keys = _head_weights(layer, "key", head_dim)
        values = _head_weights(layer, "value", head_dim)
        apart = values.weight.format != own_keys.weight.format
        values_keys = layer.pack(values) if apart else layer.pack(values, own_keys)
        keys = layer.pack(own_keys) if apart else None
    return GroupedWeights(
        query=layer.pack(query),
        values_keys=values_keys,
        keys=keys,
        output=layer.packed("attention_output"),
        query_bias=_bias(layer, "query", head_dim) if "query" in options.biases else None,
        values_keys_bias=np.concatenate([_bias(layer, part, head_dim) for part in ("value", "key")])
        if {"key", "value"} & set(options.biases) and layer.has_keys
        else None,
        output_bias=layer.optional_vector("attention_output_bias"),
        query_norm=_norm(layer, "query"),
        key_norm=_norm(layer, "key") if layer.has_keys else None,
        norms_of_rows=options.query_key_norm == "row",
        sinks=layer.optional_vector("sinks"),
        gate=layer.pack(_gate(layer, head_dim)) if options.gated else None,
    )


def _norm(layer: LayerParts, part: str) -> np.ndarray | None:
    """Of queries or keys: of every head, or of all heads as one row."""
    kind, name = layer.config.grouped.query_key_norm, {"query": "queries_norm", "key": "keys_norm"}[part]
    if kind is None:
        return None
    return _paired_vector(layer, layer.vector(name), layer.head_count(part) if kind == "row" else 1)


def _head_weights(layer: LayerParts, part: str, head_dim: int) -> Stored:
    """The weight of queries, keys or values: the rope pairs side by side, the heads padded."""
    config, heads, own = layer.config, layer.head_count(part), layer.head_dim
    name = "key" if part == "value" and not config.grouped.has_value_weight(layer.number) else part
    if layer.has("qkv"):
        stored = chosen_rows(layer.weight("qkv"), qkv_rows(config, part, layer.number))
    elif part == "query" and config.grouped.gated:
        stored = chosen_rows(layer.weight(name), gated_rows(heads, own)[0])
    else:
        stored = layer.weight(name)
    if part != "value":
        stored = _neighbours(stored, heads, 0, layer.rotated, config.rope_half_split, after=own - layer.rotated)
    return _padded(stored, heads, own, head_dim)


def _gate(layer: LayerParts, head_dim: int) -> Stored:
    """The weight of the gates of attention's results, which the one of queries has too."""
    heads, own = layer.config.heads, layer.head_dim
    return _padded(chosen_rows(layer.weight("query"), gated_rows(heads, own)[1]), heads, own, head_dim)


def _padded(stored: Stored, heads: int, own: int, head_dim: int) -> Stored:
    if head_dim == own:
        return stored
    weight = whole(stored.weight)
    return stored._replace(weight=replace(weight, rows=padded_heads(weight.rows, heads, head_dim)))


def _paired_vector(layer: LayerParts, values: np.ndarray, heads: int) -> np.ndarray:
    """A vector of queries or keys, with rope pairs side by side."""
    config = layer.config
    if not config.rope_half_split:
        return values
    return values[neighbour_order(heads, 0, layer.rotated, layer.head_dim - layer.rotated)]


def _bias(layer: LayerParts, part: str, head_dim: int) -> np.ndarray:
    """Zeros where the part has none."""
    heads, name = layer.head_count(part), f"{part}_bias"
    if layer.has("qkv_bias"):
        values = layer.vector("qkv_bias")[qkv_rows(layer.config, part, layer.number)]
    elif layer.has(name):
        values = layer.vector(name)
    else:
        return np.zeros(heads * head_dim, np.float32)
    values = values if part == "value" else _paired_vector(layer, values, heads)
    return padded_heads(values[:, None], heads, head_dim)[:, 0]


def _grouped_as_latent(layer: LayerParts) -> LatentWeights:
    config = layer.config
    query = _head_weights(layer, "query", config.head_dim)
    return LatentWeights(
        query_down=None,
        query_norm=None,
        query=layer.pack(query._replace(weight=latent_form.spread_queries(whole(query.weight), config))),
        latent=layer.pack(*(_head_weights(layer, part, config.head_dim) for part in ("value", "key"))),
        latent_norm=latent_form.no_norm(config.kv_heads * config.head_dim),
        key_up=layer.pack(Stored(latent_form.no_keys_up(config))),
        value_up=layer.pack(Stored(latent_form.chosen_values(config))),
        output=layer.packed("attention_output"),
    )


def _latent(layer: LayerParts) -> LatentWeights:
    config, sizes = layer.config, layer.config.latent_attention
    assert sizes is not None
    direct = sizes.query_rank is None
    down = None if direct else layer.packed("query_down")
    half_split = config.rope_half_split
    query = layer.weight("query" if direct else "query_up")
    query = _neighbours(query, config.heads, sizes.nope_dim, sizes.rope_dim, half_split)
    latent = _neighbours(layer.weight("latent_rope"), 1, sizes.latent_dim, sizes.rope_dim, half_split)
    latent_bias = layer.optional_vector("latent_rope_bias")
    if latent_bias is not None and half_split:
        latent_bias = latent_bias[neighbour_order(1, sizes.latent_dim, sizes.rope_dim)]
    key_up, value_up = _up_projections(layer, sizes)
    return LatentWeights(
        query_down=down,
        query_norm=None if direct else layer.vector("query_norm"),
        query=layer.pack(query),
        latent=layer.pack(latent),
        latent_norm=layer.vector("latent_norm"),
        key_up=layer.pack(key_up),
        value_up=layer.pack(value_up),
        output=layer.packed("attention_output"),
        query_down_bias=layer.optional_vector("query_down_bias"),
        latent_bias=latent_bias,
        output_bias=layer.optional_vector("attention_output_bias"),
        indexer=_indexer(layer, sizes) if layer.has("index_query") else None,
    )


def _indexer(layer: LayerParts, sizes: LatentConfig) -> IndexerWeights:
    """Rope pairs side by side, in the key's norm too."""
    x = sizes.indexer
    assert x is not None
    after = x.head_dim - sizes.rope_dim
    norm, bias = (layer.vector(part) for part in ("index_norm", "index_norm_bias"))
    if x.half_split:
        norm, bias = (values[neighbour_order(1, 0, sizes.rope_dim, after)] for values in (norm, bias))
    query, key = (
        layer.pack(_neighbours(layer.weight(part), heads, 0, sizes.rope_dim, x.half_split, after))
        for part, heads in (("index_query", x.heads), ("index_key", 1))
    )
    return IndexerWeights(query, key, norm, bias, in_dense_format(layer.weight("index_by_head")))


def _up_projections(layer: LayerParts, sizes: LatentConfig) -> tuple[Stored, Stored]:
    """For each head, the weight that projects its query to the latents' space, and that of its values.

    If the checkpoint has them in one weight, by the rows of keys and values, those of keys are transposed: blocks as float32.
    """
    if layer.has("keys_up"):
        return layer.stack("keys_up"), layer.stack("values_up")
    stored = layer.weight("keys_values_up")
    both, widened = whole(stored.weight), stored.widened
    heads = layer.config.heads
    nope, latent = sizes.nope_dim, sizes.latent_dim
    rows = both.rows.reshape(heads, nope + sizes.value_dim, -1)
    keys, values = (replace(both, rows=part.reshape(-1, rows.shape[2])) for part in (rows[:, :nope], rows[:, nope:]))
    if both.format in DENSE_FORMATS:
        widened_keys, numbers, format_ = widened, keys.rows, both.format
    else:
        widened_keys, numbers, format_ = True, np.ascontiguousarray(keys.values()).view(np.uint8), Format.F32
    size = row_bytes(format_, 1)
    transposed = numbers.reshape(heads, nope, latent, size).swapaxes(1, 2).reshape(heads * latent, nope * size)
    packed_keys = PackedWeight(np.ascontiguousarray(transposed), format_, nope)
    return Stored(packed_keys, widened_keys), Stored(values, widened)


def _neighbours(stored: Stored, heads: int, start: int, width: int, half_split: bool, after: int = 0) -> Stored:
    """A weight whose rows are in `neighbour_order`. half_split: whether they are not yet."""
    if not half_split:
        return stored
    weight = whole(stored.weight)
    return stored._replace(weight=replace(weight, rows=weight.rows[neighbour_order(heads, start, width, after)]))
