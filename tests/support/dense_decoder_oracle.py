"""A plain Llama forward pass in float64: grouped-query attention as such, interleaved rope, no cache. An oracle."""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np

from decodestep.files.gguf_file import GgufFile, Tensor

DOUBLE = np.dtype(np.float64)
Product = Callable[[np.ndarray, Tensor], np.ndarray]


def values_of(tensor: Tensor) -> np.ndarray:
    if tensor.type == gguf.GGMLQuantizationType.F32:
        return tensor.read().view(np.float32).reshape(tensor.shape).astype(np.float64)
    return gguf.quants.dequantize(tensor.read().reshape(tensor.shape[0], -1), tensor.type).astype(np.float64)


def exact(x: np.ndarray, tensor: Tensor) -> np.ndarray:
    return x @ values_of(tensor).T


def dense_logits(file: GgufFile, ids: np.ndarray, *, product: Product = exact, attention: np.dtype = DOUBLE) -> np.ndarray:
    """Logits (T, V). product: of activations and a weight. attention: what queries, keys, values and weights are rounded to."""

    def weight(name: str) -> Tensor:
        return file.tensors[f"{name}.weight"]

    data = file.metadata
    heads, groups = data["llama.attention.head_count"], data["llama.attention.head_count_kv"]
    dim = data.get("llama.attention.key_length", data["llama.embedding_length"] // heads)
    epsilon, base = data["llama.attention.layer_norm_rms_epsilon"], data["llama.rope.freq_base"]
    angle = np.arange(len(ids))[:, None] * base ** (-np.arange(0, dim, 2) / dim)
    turn = np.exp(1j * angle)[:, None]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * values_of(weight(name))

    def rope(x: np.ndarray) -> np.ndarray:
        x = x.reshape(len(ids), -1, dim // 2, 2)
        z = (x[..., 0] + 1j * x[..., 1]) * turn
        return np.stack([z.real, z.imag], -1).reshape(len(ids), -1, dim)

    def rounded(x: np.ndarray) -> np.ndarray:
        return x.astype(attention).astype(np.float64)

    x = values_of(weight("token_embd"))[ids]
    for i in range(data["llama.block_count"]):
        h = norm(x, f"blk.{i}.attn_norm")
        q, k = rounded(rope(product(h, weight(f"blk.{i}.attn_q")))), rounded(rope(product(h, weight(f"blk.{i}.attn_k"))))
        v = rounded(product(h, weight(f"blk.{i}.attn_v")).reshape(len(ids), groups, dim))
        k, v = np.repeat(k, heads // groups, 1), np.repeat(v, heads // groups, 1)
        score = np.einsum("tnd,snd->nts", q, k) / np.sqrt(dim) + np.triu(np.full((len(ids),) * 2, -np.inf), 1)
        shares = np.exp(score - score.max(-1, keepdims=True))
        attended = np.einsum("nts,snd->tnd", rounded(shares) / shares.sum(-1, keepdims=True), v).reshape(len(ids), -1)
        x = x + product(attended, weight(f"blk.{i}.attn_output"))
        h = norm(x, f"blk.{i}.ffn_norm")
        gate, up = product(h, weight(f"blk.{i}.ffn_gate")), product(h, weight(f"blk.{i}.ffn_up"))
        x = x + product(gate / (1 + np.exp(-gate)) * up, weight(f"blk.{i}.ffn_down"))
    return product(norm(x, "output_norm"), weight("output" if "output.weight" in file.tensors else "token_embd"))
