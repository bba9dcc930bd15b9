"""GGUF files of small random models of transformers, for every architecture that its loader reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import transformers
from transformers.integrations import GGUF_CONFIG_MAPPING
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

VOCABULARY = 128


def write(path: Path, architecture: str, model: transformers.PreTrainedModel, kind: str, **metadata: Any) -> Path:
    """Writes a model's tensors under the names of its architecture; matrices of a width that allows it in blocks of `kind`.

    Values are random: what is compared is what two loaders make of the file.
    """
    writer = gguf.GGUFWriter(path, architecture)
    fields = {key: value for key, value in _fields(architecture, model.config).items() if value is not None}
    for key, value in (fields | metadata).items():
        _add(writer, key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"<{i}>" for i in range(VOCABULARY)])
    writer.add_token_types([1] * VOCABULARY)
    rng = np.random.default_rng(11)
    for name, shape in sorted(_tensors(architecture, model).items()):
        values = (rng.standard_normal(shape) * 0.05 + (1.0 if "norm" in name else 0.0)).astype(np.float32)
        if name.endswith("ssm_a"):
            values = -np.abs(values) - 0.1
        type_ = gguf.GGMLQuantizationType[kind]
        if len(shape) < 2 or shape[-1] % gguf.GGML_QUANT_SIZES[type_][0] or re.search("conv(1d)?\\.weight", name):
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, _quantised(values, kind), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _quantised(values: np.ndarray, kind: str) -> np.ndarray:
    from decodestep.weights.native import quantise_blocks
    from decodestep.weights.packed import Format

    if not kind.endswith("_K"):
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    rows = quantise_blocks(values.reshape(-1, values.shape[-1]), Format[kind])
    return rows.reshape(*values.shape[:-1], -1)


def _fields(architecture: str, config: Any) -> dict[str, Any]:
    """The metadata that transformers' loader reads."""
    names = [architecture, architecture.replace("-", "_"), re.sub("moe$", "_moe", architecture)]
    table = next((GGUF_CONFIG_MAPPING[name] for name in names if name in GGUF_CONFIG_MAPPING), {})
    return {f"{architecture}.{key}": getattr(config, field, None) for key, field in table.items() if field}


def _tensors(architecture: str, model: transformers.PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """The shapes of the file's tensors, by their names."""
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config={})
    names = get_gguf_hf_weights_map(model, processor, model_type=architecture)
    names |= {f"blk.{i}.ssm_dt.bias": name for i, name in _layers(model, "dt_bias")}
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found: dict[str, tuple[int, ...]] = {}
    for name, parameter in names.items():
        shape = shapes.get(parameter)
        if shape is None or (name == "output.weight" and model.config.tie_word_embeddings):
            continue
        stem = name.removesuffix(".weight")
        if stem.endswith("_exps"):
            halves = {part: (shape[0], shape[1] // 2, shape[2]) for part in ("gate", "up")}
            for part, of_part in ({"down": shape} if "down" in stem else halves).items():
                found[re.sub("_(gate_up|gate|up|down)_", f"_{part}_", stem) + ".weight"] = of_part
            continue
        if len(shape) == 3:  # of a convolution
            shape = (shape[0], shape[-1])
        elif "ffn_gate_inp_shexp" in name:
            shape = shape[-1:]
        elif architecture == "gpt2" and re.search(r"(attn_qkv|ffn_down|ffn_up|attn_output)\.weight", name):
            shape = shape[::-1]
        found[name] = shape
    return found


def _layers(model: transformers.PreTrainedModel, end: str) -> list[tuple[int, str]]:
    """The numbers of layers with a parameter of that name, and its whole name."""
    return [(int(m[1]), m[0]) for name in model.state_dict() if (m := re.fullmatch(rf".*\.(\d+)\..*\.{end}", name))]


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    kinds.get(type(value), writer.add_array)(key, value)
