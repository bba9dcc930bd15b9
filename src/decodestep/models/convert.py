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
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

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
Pack = Callable[[PackedWeight, bool], Weight]  # (weight, widened) -> the weight in the decoder's format
_READ_ELSEWHERE = ("rope_freqs.weight",)  # by `_inverse_frequencies`


def as_it_is(weight: PackedWeight, widened: bool) -> Weight:
    return weight


def convert(file: GgufFile, config: Config, pack: Pack = as_it_is) -> Weights:
    """The decoder's weights.

    config: `config_of(file)`.
    pack: pack(weight, widened) converts one weight to the decoder's format. `widened`: the file's format has no kernel, so
        the weight arrives as float32. The default leaves weights as they are: views of the file, except for the latent
        projection, which is two of the file's tensors in one. The embedding always stays a view.
    Raises ModelError for a tensor that is missing, unknown, or of a wrong shape or an unsupported format.
    """
    tensors = _Tensors(file)
    queries, keys = config.heads * config.head_dim, config.groups * config.head_dim
    w_uk = np.zeros((config.heads, 0, config.latent), np.float32)
    feed_forward = config.feed_forward

    def layer(i: int) -> Layer:
        def weight(name: str, inputs: int, outputs: int) -> Weight:
            return _packed(file, pack, tensors.weight(f"blk.{i}.{name}.weight", inputs, outputs))

        value, key = (tensors.weight(f"blk.{i}.attn_{name}.weight", config.hidden, keys) for name in "vk")
        return Layer(
            attention_norm=tensors.vector(f"blk.{i}.attn_norm.weight", config.hidden),
            w_uq_qr=weight("attn_q", config.hidden, queries),
            w_dkv_kr=_packed(file, pack, value, key),
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
        output=_packed(file, pack, output),
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
    hidden, heads = _integer(data, "llama.embedding_length"), _integer(data, "llama.attention.head_count")
    groups = _integer(data, "llama.attention.head_count_kv", heads)
    head_dim = _integer(data, "llama.attention.key_length", hidden // heads)
    values = _integer(data, "llama.attention.value_length", head_dim)
    rotated = _integer(data, "llama.rope.dimension_count", head_dim)
    if heads % groups or head_dim % 2 or not head_dim == values == rotated:
        raise ModelError(
            f"{file.path}: {heads} query heads on {groups} key heads of {head_dim} values, {values} of them read, "
            f"{rotated} rotated: not supported"
        )
    scaling = data.get("llama.rope.scaling.type", "none")
    if scaling not in ("none", "linear") or _integer(data, "llama.expert_count", 0, least=0):
        raise ModelError(f"{file.path}: rope scaling {scaling!r} or experts are not supported")
    tokens = data.get("tokenizer.ggml.tokens", [])
    return Config(
        name=str(data.get("general.name", file.path.stem)),
        vocab_size=len(tokens) or _integer(data, "llama.vocab_size"),
        hidden=hidden,
        layers=_integer(data, "llama.block_count"),
        heads=heads,
        groups=groups,
        head_dim=head_dim,
        feed_forward=_integer(data, "llama.feed_forward_length"),
        context=_integer(data, "llama.context_length"),
        norm_eps=_number(data, "llama.attention.layer_norm_rms_epsilon"),
    )


def _inverse_frequencies(file: GgufFile, head_dim: int) -> np.ndarray:
    base = _number(file.metadata, "llama.rope.freq_base", 10000.0)
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    # float32 powers differ between math libraries; rounded from float64 they have the same bits everywhere.
    frequencies = np.float32(1.0) / (base ** exponent.astype(np.float64)).astype(np.float32)
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        frequencies = frequencies / _float32(factors).reshape(-1)
    linear = file.metadata.get("llama.rope.scaling.type") == "linear"
    factor = _number(file.metadata, "llama.rope.scaling.factor", 1.0) if linear else 1.0
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
        return PackedWeight(tensor.data.reshape(outputs, -1), format_, inputs), False


def _float32(tensor: Tensor) -> np.ndarray:
    if tensor.type == GGMLQuantizationType.F32:
        return np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
    rows = tensor.data.reshape(-1, tensor.data.size // math.prod(tensor.shape[:-1]))
    try:
        values = dequantize(rows, tensor.type) if tensor.type != GGMLQuantizationType.F16 else rows.view(np.float16)
    except NotImplementedError as error:
        raise ModelError(f"tensor {tensor.name} has the type {tensor.type.name}, which is not supported") from error
    return np.ascontiguousarray(values, np.float32).reshape(tensor.shape)


def _packed(file: GgufFile, pack: Pack, *parts: tuple[PackedWeight, bool]) -> Weight:
    """The weight whose outputs are those of the parts, one after the other, as `pack` converts it.

    Parts of different formats are widened to float32. A part that was copied need not stay in memory.
    """
    weights = [weight for weight, _ in parts]
    if len({weight.format for weight in weights}) > 1:
        weights = [PackedWeight.from_array(weight.dense()) for weight in weights]
    whole = PackedWeight.stack(*weights) if len(weights) > 1 else weights[0]
    packed = pack(whole, any(widened for _, widened in parts))
    if packed is not whole:
        for weight, _ in parts:
            file.forget(weight.rows)
    return packed


def _integer(data: dict[str, Any], key: str, default: int | None = None, least: int = 1) -> int:
    value = data.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ModelError(f"metadata {key} is {value!r}, not an integer >= {least}")
    return value


def _number(data: dict[str, Any], key: str, default: float | None = None) -> float:
    value = data.get(key, default)
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ModelError(f"metadata {key} is {value!r}, not a positive number")
    return float(value)
