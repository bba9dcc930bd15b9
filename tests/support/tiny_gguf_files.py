"""Small Llama-family GGUF files of two layers with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType

VOCABULARY = 300
# Where a block's scales are, for types that the gguf package does not write: float16, but one byte in MXFP4.
SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
SCALES |= {"IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (0,)}


def write(
    path: Path,
    *,
    heads: int = 6,
    groups: int = 2,
    head_dim: int = 16,
    hidden: int = 96,
    kind: str = "F32",
    tied: bool = True,
    context: int = 64,
    without: tuple[str, ...] = (),
    **metadata: Any,
) -> Path:
    """Writes a file. kind: the type of the matrices. without: tensors to leave out. metadata: keys to override or add."""
    feed_forward = 256 if kind.endswith("_K") or kind in ("IQ4_XS", "TQ2_0") else 128
    writer = gguf.GGUFWriter(path, metadata.pop("architecture", "llama"))
    writer.add_embedding_length(hidden)
    writer.add_block_count(2)
    writer.add_context_length(context)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_tokenizer(writer, metadata.pop("pre", "gpt-2"))
    _override(writer, metadata)
    rng = np.random.default_rng(5)
    for name, shape in _shapes(heads * head_dim, groups * head_dim, hidden, feed_forward, tied).items():
        if name not in without:
            _add_weight(writer, f"{name}.weight", shape, kind, rng)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, pre: str) -> None:
    """A token for each of 297 characters or numbers, without merges, and three control tokens."""
    byte_tokens = [chr(b) if 33 <= b <= 126 else f"<{b}>" for b in range(VOCABULARY - 3)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*byte_tokens, "<bos>", "<eos>", "<pad>"])
    writer.add_token_types([1] * (VOCABULARY - 3) + [3] * 3)
    writer.add_token_merges([])
    writer.add_bos_token_id(VOCABULARY - 3)
    writer.add_eos_token_id(VOCABULARY - 2)


def _override(writer: gguf.GGUFWriter, metadata: dict[str, Any]) -> None:
    kinds = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float64}
    for key, value in metadata.items():
        writer.kv_data[0].pop(key, None)
        kinds.get(type(value), writer.add_array)(key, value)


def _shapes(queries: int, keys: int, hidden: int, feed_forward: int, tied: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCABULARY, hidden), "output_norm": (hidden,)}
    if not tied:
        shapes["output"] = (VOCABULARY, hidden)
    for i in range(2):
        shapes |= {
            f"blk.{i}.attn_norm": (hidden,),
            f"blk.{i}.ffn_norm": (hidden,),
            f"blk.{i}.attn_q": (queries, hidden),
            f"blk.{i}.attn_k": (keys, hidden),
            f"blk.{i}.attn_v": (keys, hidden),
            f"blk.{i}.attn_output": (hidden, queries),
            f"blk.{i}.ffn_gate": (feed_forward, hidden),
            f"blk.{i}.ffn_up": (feed_forward, hidden),
            f"blk.{i}.ffn_down": (hidden, feed_forward),
        }
    return shapes


def _add_weight(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> None:
    type_ = GGMLQuantizationType[kind]
    values = rng.standard_normal(shape).astype(np.float32) * (1.0 if len(shape) == 1 else 0.2)
    if len(shape) == 1 or type_ == GGMLQuantizationType.F32:
        writer.add_tensor(name, values)
    elif type_ == GGMLQuantizationType.F16:
        writer.add_tensor(name, values.astype(np.float16))
    elif kind in SCALES:
        writer.add_tensor(name, _random_blocks(shape, kind, rng), raw_dtype=type_)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, type_), raw_dtype=type_)


def _random_blocks(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> np.ndarray:
    """Random bytes with small scales, for types that the gguf package does not write."""
    block, size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rows = rng.integers(0, 256, (shape[0], shape[1] // block, size), np.uint8)
    scale = np.float16(2e-3 if kind == "IQ4_NL" else 2e-4)
    for at in SCALES[kind]:
        rows[..., at : at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    if kind == "MXFP4":
        rows[..., 0] = 121  # 2^-6
    return rows.reshape(shape[0], -1)
