"""GGUF files in the shape of published models, with random weights, for benchmarks.

What a step costs depends on the shape and on the blocks, not on the numbers. Where memory is short a file may have fewer
layers, or fewer experts of which as many are used: a token then reads the same bytes. (llama.cpp takes a file for one without a
compressed query by its 26 or 27 layers, so of V2-Lite and Moonlight it wants all layers.)
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

from decodestep._base.checks import require

_TYPES = gguf.GGMLQuantizationType


class Experts(NamedTuple):
    """Numbers of experts: all, those that a token uses, and shared ones; the width of one; the dense layers before them."""

    count: int
    used: int
    shared: int
    width: int
    dense: int


class Shape(NamedTuple):
    """layers to vocabulary as in config.json. compressed: the width of the queries' latent; None without."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    compressed: int | None
    latent: int
    nope: int
    rope: int
    value: int
    feed_forward: int
    vocabulary: int
    experts: Experts | None = None
    sigmoid: bool = False
    tied: bool = False
    theta: float = 10000.0
    eps: float = 1e-6


class GroupedShape(NamedTuple):
    """A Llama's: grouped-query attention, logits by the embedding."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    width: int
    feed_forward: int
    vocabulary: int
    theta: float
    eps: float = 1e-5
    architecture: str = "llama"
    experts: None = None


SHAPES: dict[str, Shape | GroupedShape] = {
    "135m": GroupedShape(30, 576, 9, 3, 64, 1536, 49152, 1e5),  # SmolLM2
    "0.6b": GroupedShape(28, 1024, 16, 8, 128, 3072, 151936, 1e6, 1e-6),  # Qwen3's sizes, without its norms of heads
    "1b": GroupedShape(16, 2048, 32, 8, 64, 8192, 128256, 5e5),  # Llama 3.2
    "3b": GroupedShape(28, 3072, 24, 8, 128, 8192, 128256, 5e5),
    "v2-lite": Shape("deepseek2", 27, 2048, 16, None, 512, 128, 64, 128, 10944, 102400, Experts(64, 6, 2, 1408, 1)),
    "moonlight": Shape(
        "deepseek2", 27, 2048, 16, None, 512, 128, 64, 128, 11264, 163840, Experts(64, 6, 2, 1408, 1), True, False, 5e4, 1e-5
    ),
    "glm-flash": Shape(
        "deepseek2", 47, 2048, 20, 768, 512, 192, 64, 256, 10240, 154880, Experts(64, 4, 1, 1536, 1), True, False, 1e6, 1e-5
    ),
    "youtu": Shape("deepseek2", 32, 2048, 16, 1536, 512, 128, 64, 128, 6144, 128256, None, False, True),
    "minicpm3": Shape("minicpm3", 62, 2560, 40, 768, 256, 64, 32, 64, 6400, 73448, None, False, True, 1e4, 1e-5),
    "plm": Shape("plm", 32, 2048, 16, None, 512, 128, 64, 128, 8192, 151936, None, False, True, 1e5),
}
# What a matrix becomes: the type, and the one for rows that do not fill its blocks, as llama.cpp's quantiser has it.
KINDS = {
    **{kind: (kind, kind) for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "F16", "BF16")},
    "Q4_K_M": ("Q4_K", "Q5_0"), "Q5_K_M": ("Q5_K", "Q5_1"), "Q6_K": ("Q6_K", "Q8_0"), "IQ4_XS": ("IQ4_XS", "IQ4_NL"),
    "Q2_K": ("Q2_K", "IQ4_NL"), "Q3_K": ("Q3_K", "IQ4_NL"),
}  # fmt: skip
# The same for the logits, and with "_M" for values and down projections of half of the layers; in models with latent attention,
# where the quantiser has other rules, only for logits that are not the embedding's.
_MORE = dict.fromkeys(("Q4_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K_M", "Q5_K_M", "IQ4_NL", "IQ4_XS"), ("Q6_K", "Q8_0"))
# Of a block: where its float16 scale is, and the deviation of its values where that is 1; where its minimum is, and how many
# scales that is where the values' mean is 0.
_SCALES = {
    "Q4_0": (0, 4.6), "Q4_1": (0, 4.6), "Q5_0": (0, 9.2), "Q5_1": (0, 9.2), "Q8_0": (0, 74.0), "Q4_K": (0, 300.0),
    "Q5_K": (0, 600.0), "Q6_K": (208, 1370.0), "IQ4_NL": (0, 70.0), "IQ4_XS": (0, 1300.0),
    "Q2_K": (80, 13.9), "Q3_K": (108, 43.3),
}  # fmt: skip
_MINIMA = {"Q4_1": (2, -7.5), "Q5_1": (2, -15.5), "Q4_K": (2, 7.5), "Q5_K": (2, 15.5), "Q2_K": (82, 1.5)}  # K-quants subtract
_MXFP4_DEVIATION = 5.9  # where the power of two that scales a block is 128


def require_sizes(name: str, layers: int, experts: int) -> None:
    """Refuses numbers of layers and of experts of which no file of the shape is written."""
    shape = SHAPES[name]
    rule = f"in [1, {shape.layers}] for {name}, or 0 for all"
    require(0 <= layers <= shape.layers, "options", "--layers", rule, layers)
    if shape.experts and experts:
        least, most = shape.experts.used, shape.experts.count
        require(least <= experts <= most, "options", "--experts", f"in [{least}, {most}] for {name}, or 0 for all", experts)


def write(path: Path, name: str, kind: str, *, layers: int = 0, experts: int = 0) -> str:
    """Writes the file unless it is there; returns what it is, in words. layers, experts: how many; 0 for the model's own."""
    shape = SHAPES[name]
    layers = layers or shape.layers
    if shape.experts:
        shape = shape._replace(experts=shape.experts._replace(count=experts or shape.experts.count))
    what = f"{name}, {kind}, random weights, {layers} of {SHAPES[name].layers} layers"
    if shape.experts:
        what += f", {shape.experts.count} of {SHAPES[name].experts.count} experts"
    if not path.exists():
        partial = path.with_suffix(".partial")
        (_GroupedFile if isinstance(shape, GroupedShape) else _File)(partial, shape, kind, layers).write()
        partial.rename(path)
    return what


class _File:
    def __init__(self, path: Path, shape: Any, kind: str, layers: int) -> None:
        self.shape, self.kind, self.layers = shape, kind, layers
        self.writer = gguf.GGUFWriter(path, shape.architecture)
        self.rng = np.random.default_rng(0)
        self.bytes = self.rng.integers(0, 256, 1 << 24, np.uint8)
        self.tensors: list[tuple[str, tuple[int, ...], str]] = []

    def write(self) -> None:
        self._keys()
        self._list()
        w = self.writer
        for name, size, kind in self.tensors:
            type_ = _TYPES[kind]
            shape = gguf.quant_shape_to_byte_shape(size, type_)
            w.add_tensor_info(name, shape, np.dtype(np.uint8), int(np.prod(shape)), raw_dtype=type_)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_ti_data_to_file()
        for name, size, kind in self.tensors:
            w.write_tensor_data(self._data(name, size, kind))
        w.close()

    def _keys(self) -> None:
        w, size = self.writer, self.shape.vocabulary
        add = {bool: w.add_bool, int: w.add_uint32, float: w.add_float32}
        for key, value in self._sizes().items():
            add[type(value)](f"{self.shape.architecture}.{key}", value)
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("gpt-2")
        letters = [chr(b) if 33 <= b <= 126 else f"<{b}>" for b in range(size - 2)]
        w.add_token_list([*letters, "ab", "<end>"])
        w.add_token_types([1] * (size - 1) + [3])
        w.add_token_merges(["a b"])
        w.add_eos_token_id(size - 1)

    def _sizes(self) -> dict[str, Any]:
        s = self.shape
        latent = s.architecture == "deepseek2"
        keys: dict[str, Any] = {
            "block_count": self.layers, "context_length": 32768, "embedding_length": s.hidden,
            "feed_forward_length": s.feed_forward, "attention.head_count": s.heads,
            "attention.head_count_kv": 1 if latent else s.heads, "attention.layer_norm_rms_epsilon": s.eps,
            "vocab_size": s.vocabulary, "attention.kv_lora_rank": s.latent, "rope.dimension_count": s.rope,
        }  # fmt: skip
        if s.compressed:
            keys["attention.q_lora_rank"] = s.compressed
        if latent:
            keys |= {
                "rope.freq_base": s.theta, "attention.key_length": s.latent + s.rope, "attention.value_length": s.latent,
                "attention.key_length_mla": s.nope + s.rope, "attention.value_length_mla": s.value,
                "leading_dense_block_count": s.experts.dense if s.experts else self.layers,
            }  # fmt: skip
        else:
            keys["attention.key_length"] = s.nope + s.rope
        if s.architecture == "plm":
            keys |= {"rope.freq_base": s.theta, "attention.value_length": s.value}
        if s.experts:
            keys |= {
                "expert_count": s.experts.count, "expert_used_count": s.experts.used, "expert_shared_count": s.experts.shared,
                "expert_feed_forward_length": s.experts.width, "expert_weights_scale": 1.0,
                "expert_gating_func": 2 if s.sigmoid else 1,
            }  # fmt: skip
            if s.sigmoid:
                keys["expert_weights_norm"] = True
        elif latent:
            keys |= {"expert_feed_forward_length": s.feed_forward, "expert_shared_count": 0}
        return keys

    def _list(self) -> None:
        s = self.shape
        self._matrix("token_embd", s.vocabulary, s.hidden)
        self._exact("output_norm", s.hidden)
        if not s.tied:
            self._matrix("output", s.vocabulary, s.hidden, kinds=("Q6_K", "Q5_0") if self.kind == "Q4_K_M" else None)
        for i in range(self.layers):
            self._attention(f"blk.{i}.")
            if s.experts and i >= s.experts.dense:
                self._experts(f"blk.{i}.", s.experts)
            else:
                self._block(f"blk.{i}.ffn_", "", s.feed_forward)

    def _attention(self, at: str) -> None:
        s = self.shape
        queries = s.heads * (s.nope + s.rope)
        self._exact(f"{at}attn_norm", s.hidden)
        self._exact(f"{at}ffn_norm", s.hidden)
        if s.compressed:
            self._matrix(f"{at}attn_q_a", s.compressed, s.hidden)
            self._exact(f"{at}attn_q_a_norm", s.compressed)
            self._matrix(f"{at}attn_q_b", queries, s.compressed)
        else:
            self._matrix(f"{at}attn_q", queries, s.hidden)
        self._matrix(f"{at}attn_kv_a_mqa", s.latent + s.rope, s.hidden)
        self._exact(f"{at}attn_kv_a_norm", s.latent)
        if s.architecture != "deepseek2":
            self._matrix(f"{at}attn_kv_b", s.heads * (s.nope + s.value), s.latent)
        else:
            self._matrix(f"{at}attn_k_b", s.heads, s.latent, s.nope)
            self._matrix(f"{at}attn_v_b", s.heads, s.value, s.latent)
        self._matrix(f"{at}attn_output", s.hidden, s.heads * s.value)

    def _experts(self, at: str, experts: Experts) -> None:
        self.tensors.append((f"{at}ffn_gate_inp.weight", (experts.count, self.shape.hidden), "F32"))
        if self.shape.sigmoid:
            self.tensors.append((f"{at}exp_probs_b.bias", (experts.count,), "F32"))
        self._block(f"{at}ffn_", "_exps", experts.width, experts.count)
        self._block(f"{at}ffn_", "_shexp", experts.width * experts.shared)

    def _block(self, at: str, ending: str, width: int, *count: int) -> None:
        for part in ("up",) if self.shape.architecture == "plm" else ("gate", "up"):
            self._matrix(f"{at}{part}{ending}", *count, width, self.shape.hidden)
        self._matrix(f"{at}down{ending}", *count, self.shape.hidden, width)

    def _exact(self, name: str, width: int) -> None:
        self.tensors.append((f"{name}.weight", (width,), "F32"))

    def _matrix(self, name: str, *size: int, kinds: tuple[str, str] | None = None) -> None:
        """kinds: in place of those that the file's kind has in `KINDS`."""
        chosen, other = kinds or KINDS[self.kind]
        fits = size[-1] % gguf.GGML_QUANT_SIZES[_TYPES[chosen]][0] == 0
        self.tensors.append((f"{name}.weight", size, chosen if fits else other))

    def _data(self, name: str, size: tuple[int, ...], kind: str) -> np.ndarray:
        if kind == "F32":
            exact = self.rng.standard_normal(size, np.float32) * size[-1] ** -0.5 if len(size) > 1 else np.ones(size)
            return exact.astype(np.float32) * (0 if name.endswith(".bias") else 1)
        shape = gguf.quant_shape_to_byte_shape(size, _TYPES[kind])
        deviation = size[-1] ** -0.5
        if kind in ("F16", "BF16"):
            values = self.rng.standard_normal(1 << 20, np.float32) * np.float32(deviation)
            halves = values.astype(np.float16) if kind == "F16" else (values.view(np.uint32) >> 16).astype(np.uint16)
            return np.resize(halves, size).view(np.uint8)
        block = gguf.GGML_QUANT_SIZES[_TYPES[kind]][1]
        data = np.resize(self.bytes, int(np.prod(shape))).reshape(-1, block)
        if kind == "MXFP4":
            data[:, 0] = 128 + round(math.log2(deviation / _MXFP4_DEVIATION))
            return data.reshape(shape)
        at, unit = _SCALES[kind]
        for place, factor in ((at, 1.0), *([_MINIMA[kind]] if kind in _MINIMA else [])):
            data[:, place : place + 2] = np.array([deviation / unit * factor], np.float16).view(np.uint8)
        return data.reshape(shape)


class _GroupedFile(_File):
    def _sizes(self) -> dict[str, Any]:
        s = self.shape
        return {
            "block_count": self.layers, "context_length": 32768, "embedding_length": s.hidden,
            "feed_forward_length": s.feed_forward, "attention.head_count": s.heads, "attention.head_count_kv": s.kv_heads,
            "attention.key_length": s.width, "attention.value_length": s.width, "rope.dimension_count": s.width,
            "rope.freq_base": s.theta, "attention.layer_norm_rms_epsilon": s.eps, "vocab_size": s.vocabulary,
        }  # fmt: skip

    def _list(self) -> None:
        s = self.shape
        more = _MORE.get(self.kind)
        self._matrix("token_embd", s.vocabulary, s.hidden, kinds=more)
        self._exact("output_norm", s.hidden)
        for i in range(self.layers):
            eighth = self.layers // 8  # the quantiser's choice of layers
            here = i < eighth or i >= 7 * self.layers // 8 or (i - eighth) % 3 == 2
            better = more if here and self.kind.endswith("_M") else None
            at, queries, keys = f"blk.{i}.", s.heads * s.width, s.kv_heads * s.width
            self._exact(f"{at}attn_norm", s.hidden)
            self._exact(f"{at}ffn_norm", s.hidden)
            self._matrix(f"{at}attn_q", queries, s.hidden)
            self._matrix(f"{at}attn_k", keys, s.hidden)
            self._matrix(f"{at}attn_v", keys, s.hidden, kinds=better)
            self._matrix(f"{at}attn_output", s.hidden, queries)
            self._matrix(f"{at}ffn_gate", s.feed_forward, s.hidden)
            self._matrix(f"{at}ffn_up", s.feed_forward, s.hidden)
            self._matrix(f"{at}ffn_down", s.hidden, s.feed_forward, kinds=better)
