"""Llama-family GGUF files as weights of a decoder, in the form of multi-head latent attention (MLA).

Grouped-query attention with n_kv key/value heads of width d is MLA, exactly, with
    latent = the value heads side by side, Hckv = n_kv * d, no norm
    shared rope key = the rotated key heads side by side, Dr = n_kv * d, the same frequencies for each head
    query head, rope part = its own vector in the columns of its key head, zero elsewhere; the part without rope is empty
    scale = 1 / sqrt(d)
GGUF stores the rows of q and k for interleaved rope pairs, which is what `mla_prolog` expects.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from decodestep.models import metadata
from decodestep.models.config import Config, Layer, Weight, Weights
from decodestep.models.errors import ModelError
from decodestep.models.gguf_file import GgufFile, Tensor
from decodestep.weights.packed import Format, PackedWeight

_NATIVE = {
    GGMLQuantizationType.F32: Format.F32,
    GGMLQuantizationType.F16: Format.F16,
    GGMLQuantizationType.BF16: Format.BF16,
    GGMLQuantizationType.Q4_0: Format.Q4_0,
    GGMLQuantizationType.Q4_1: Format.Q4_1,
    GGMLQuantizationType.Q8_0: Format.Q8_0,
    GGMLQuantizationType.Q4_K: Format.Q4_K,
    GGMLQuantizationType.Q5_K: Format.Q5_K,
    GGMLQuantizationType.Q6_K: Format.Q6_K,
}
# What metadata may ask for: no product of sizes overflows before they are compared with the tensors.
_MAX_WIDTH, _MAX_HEADS = 1 << 24, 1 << 16
MAX_CONTEXT = 1 << 24  # positions that are exact in float32, in which the angles of the rotary embedding are computed
_LEAST_FACTOR, _MOST_FACTOR = 2.0**-20, 2.0**20  # of the frequencies
Pack = Callable[[PackedWeight, bool], Weight]  # (weight, widened) -> the weight in the decoder's format
_READ_ELSEWHERE = ("rope_freqs.weight",)  # by `_inverse_frequencies`


def as_it_is(weight: PackedWeight, widened: bool) -> Weight:
    return weight


def convert(file: GgufFile, config: Config, pack: Pack = as_it_is) -> Weights:
    """The decoder's weights.

    config: `config_of(file)`.
    pack: pack(weight, widened) converts one weight to the decoder's format. `widened`: the file's format has no kernel, so
        the weight arrives as float32. The default leaves weights as they are. The embedding is never packed.
    Raises ModelError for a tensor that is missing, unknown, or of a wrong shape or an unsupported format.
    """
    tensors = _Tensors(file)
    queries, keys = config.heads * config.head_dim, config.groups * config.head_dim
    w_uk = np.zeros((config.heads, 0, config.latent), np.float32)  # of no values, whatever the sizes
    feed_forward = config.feed_forward

    def layer(i: int) -> Layer:
        def weight(name: str, inputs: int, outputs: int) -> Weight:
            return _packed(pack, tensors.weight(f"blk.{i}.{name}.weight", inputs, outputs))

        value, key = (tensors.weight(f"blk.{i}.attn_{name}.weight", config.hidden, keys) for name in "vk")
        return Layer(
            attention_norm=tensors.vector(f"blk.{i}.attn_norm.weight", config.hidden),
            w_uq_qr=weight("attn_q", config.hidden, queries),
            w_dkv_kr=_packed(pack, value, key),
            w_uk=w_uk,
            w_o=weight("attn_output", queries, config.hidden),
            ffn_norm=tensors.vector(f"blk.{i}.ffn_norm.weight", config.hidden),
            w_gate=weight("ffn_gate", config.hidden, feed_forward),
            w_up=weight("ffn_up", config.hidden, feed_forward),
            w_down=weight("ffn_down", feed_forward, config.hidden),
        )

    embedding = tensors.weight("token_embd.weight", config.hidden, config.vocab_size)
    tied = "output.weight" not in file.tensors
    output = embedding if tied else tensors.weight("output.weight", config.hidden, config.vocab_size)
    weights = Weights(
        config=config,
        embedding=embedding[0],
        layers=tuple(layer(i) for i in range(config.layers)),
        norm=tensors.vector("output_norm.weight", config.hidden),
        output=_packed(pack, output),
        inverse_frequencies=_inverse_frequencies(file, config.head_dim),
    )
    unknown = sorted(set(file.tensors) - tensors.taken - set(_READ_ELSEWHERE))
    if unknown:
        raise ModelError(
            f"{file.path}: tensors that this decoder does not know: {', '.join(unknown[:5])}"
            + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        )
    return weights


def config_of(file: GgufFile) -> Config:
    """The sizes that a file's metadata give. Raises ModelError for another architecture, or sizes that are not supported."""
    data = file.metadata
    architecture = data.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"{file.path}: architecture {architecture!r} is not supported ('llama' is)")

    def size(key: str, default: int | None = None, most: int = _MAX_WIDTH) -> int:
        return metadata.integer(data, f"llama.{key}", default, most=most)

    hidden, heads = size("embedding_length"), size("attention.head_count", most=_MAX_HEADS)
    groups = size("attention.head_count_kv", heads, _MAX_HEADS)
    head_dim = size("attention.key_length", hidden // heads)
    values = size("attention.value_length", head_dim)
    rotated = size("rope.dimension_count", head_dim)
    if heads % groups or head_dim % 2 or not head_dim == values == rotated:
        raise ModelError(
            f"{file.path}: {heads} query heads on {groups} key heads of {head_dim} values, {values} of them read, "
            f"{rotated} rotated: not supported"
        )
    scaling = metadata.text(data, "llama.rope.scaling.type", "none")
    if scaling not in ("none", "linear") or metadata.integer(data, "llama.expert_count", 0, least=0, most=_MAX_WIDTH):
        raise ModelError(f"{file.path}: rope scaling {scaling!r} or experts are not supported")
    return Config(
        name=metadata.text(data, "general.name", file.path.stem),
        vocab_size=len(metadata.texts(data, "tokenizer.ggml.tokens")) or size("vocab_size"),
        hidden=hidden,
        layers=size("block_count"),
        heads=heads,
        groups=groups,
        head_dim=head_dim,
        feed_forward=size("feed_forward_length"),
        context=size("context_length", most=MAX_CONTEXT),
        norm_eps=metadata.number(data, "llama.attention.layer_norm_rms_epsilon", least=1e-30, most=1.0),
    )


def _inverse_frequencies(file: GgufFile, head_dim: int) -> np.ndarray:
    data = file.metadata
    base = metadata.number(data, "llama.rope.freq_base", 10000.0, least=1.0, most=1e30)
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    # float32 powers differ between math libraries; rounded from float64 they have the same bits everywhere.
    frequencies = np.float32(1.0) / (base ** exponent.astype(np.float64)).astype(np.float32)
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        divisors = _float32(factors)
        if divisors.shape != frequencies.shape or not ((divisors >= _LEAST_FACTOR) & (divisors <= _MOST_FACTOR)).all():
            rule = f"{head_dim // 2} numbers in [{_LEAST_FACTOR:g}, {_MOST_FACTOR:g}]"
            raise ModelError(f"{file.path}: tensor rope_freqs.weight must hold {rule}")
        frequencies = frequencies / divisors
    linear = data.get("llama.rope.scaling.type") == "linear"
    factor = metadata.number(data, "llama.rope.scaling.factor", 1.0, least=_LEAST_FACTOR, most=_MOST_FACTOR) if linear else 1.0
    return (frequencies / np.float32(factor)).astype(np.float32)


class _Tensors:
    """Reads the tensors of a file by name, each checked to have the shape that the configuration gives it.

    taken: the names that have been read.
    """

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.taken: set[str] = set()

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise ModelError(f"{self._file.path}: tensor {name} is missing")
        if tensor.shape != shape:
            raise ModelError(f"{self._file.path}: tensor {name} has shape {tensor.shape}, not {shape}")
        self.taken.add(name)
        return tensor

    def vector(self, name: str, length: int) -> np.ndarray:
        return _float32(self._take(name, (length,))).reshape(-1)

    def weight(self, name: str, inputs: int, outputs: int) -> tuple[PackedWeight, bool]:
        """A weight, and whether it was widened to float32 because its format has no kernel."""
        tensor = self._take(name, (outputs, inputs))
        format_ = _NATIVE.get(tensor.type)
        if format_ is None:
            return PackedWeight(_float32(tensor).view(np.uint8).reshape(outputs, -1), Format.F32, inputs), True
        return PackedWeight(tensor.read().reshape(outputs, -1), format_, inputs), False


def _float32(tensor: Tensor) -> np.ndarray:
    if tensor.type == GGMLQuantizationType.F32:
        return tensor.read().view(np.float32).reshape(tensor.shape)
    rows = tensor.read().reshape(math.prod(tensor.shape[:-1]), -1)
    try:
        values = dequantize(rows, tensor.type) if tensor.type != GGMLQuantizationType.F16 else rows.view(np.float16)
    except NotImplementedError as error:
        raise ModelError(f"tensor {tensor.name} has the type {tensor.type.name}, which is not supported") from error
    return np.ascontiguousarray(values, np.float32).reshape(tensor.shape)


def _packed(pack: Pack, *parts: tuple[PackedWeight, bool]) -> Weight:
    """The weight whose outputs are those of the parts, one after the other, as `pack` converts it.

    Parts of different formats are widened to float32.
    """
    weights = [weight for weight, _ in parts]
    if len({weight.format for weight in weights}) > 1:
        weights = [PackedWeight.from_array(weight.dense()) for weight in weights]
    whole = PackedWeight.stack(*weights) if len(weights) > 1 else weights[0]
    return pack(whole, any(widened for _, widened in parts))
