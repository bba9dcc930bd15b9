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

from decodestep.weights.native import quantise_blocks
from decodestep.weights.packed import Format

VOCABULARY = 128
_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_USUAL = _SIZES | {"num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 64}
_HEADS = _USUAL | {"head_dim": 16}
_PER_LAYER = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 32}
_MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SHARED = _MIXTURE | {"shared_expert_intermediate_size": 64}
_T5 = {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}
_DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
_DELTA |= {"num_hidden_layers": 4, "head_dim": 32, "linear_conv_kernel_dim": 4}

# The class of the config and its fields, by the architecture of the file. Not those that transformers lists but cannot load, or
# loads without their experts: mistral and deci, gpt-oss.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("BloomConfig", {"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "falcon": ("FalconConfig", _SIZES | {"ffn_hidden_size": 256}),
    "gemma2": ("Gemma2Config", _HEADS),
    "gemma3": ("Gemma3TextConfig", _HEADS),
    "gemma4": ("Gemma4TextConfig", _HEADS | _PER_LAYER | {"global_head_dim": 32}),
    "gpt2": ("GPT2Config", {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "lfm2": ("Lfm2Config", _USUAL | {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "llama": ("LlamaConfig", _USUAL),
    "mamba": ("MambaConfig", {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2}),
    "minimax-m2": ("MiniMaxM2Config", _HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "nemotron": ("NemotronConfig", _USUAL),
    "phi3": ("Phi3Config", _USUAL | {"pad_token_id": 0}),
    "qwen2": ("Qwen2Config", _USUAL),
    "qwen2moe": ("Qwen2MoeConfig", _USUAL | _SHARED),
    "qwen3": ("Qwen3Config", _HEADS),
    "qwen35": ("Qwen3_5TextConfig", _USUAL | _DELTA),
    "qwen35moe": ("Qwen3_5MoeTextConfig", _USUAL | _DELTA | _SHARED),
    "qwen3moe": ("Qwen3MoeConfig", _HEADS | _MIXTURE),
    "stablelm": ("StableLmConfig", _USUAL),
    "starcoder2": ("Starcoder2Config", _USUAL),
    "t5": ("T5Config", _T5 | {"feed_forward_proj": "gated-gelu"}),
    "umt5": ("UMT5Config", _T5 | {"feed_forward_proj": "gated-gelu"}),
}


def build_config(architecture: str, **fields: Any) -> transformers.PreTrainedConfig:
    name, usual = MODELS[architecture]
    return getattr(transformers, name)(**(usual | fields))


def build_model(config: transformers.PreTrainedConfig) -> transformers.PreTrainedModel:
    return auto_class(config).from_config(config)


def auto_class(config: transformers.PreTrainedConfig) -> Any:
    return transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM


def write(
    path: Path, architecture: str, model: transformers.PreTrainedModel, kind: str, kinds: dict[str, str] | None = None
) -> Path:
    """Writes a model's tensors under the names of its architecture; matrices of a width that allows it in blocks of
    `kind`, or of what `kinds` says for a part of their names.

    Values are random: what is compared is what two loaders make of the file.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in _fields(architecture, model.config).items():
        if value is not None:
            _add(writer, key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"<{i}>" for i in range(VOCABULARY)])
    writer.add_token_types([1] * VOCABULARY)
    rng = np.random.default_rng(11)
    for name, shape in sorted(_tensors(architecture, model).items()):
        values = (rng.standard_normal(shape) * 0.05 + (1.0 if "norm" in name else 0.0)).astype(np.float32)
        if name.endswith("ssm_a"):
            values = -np.abs(values) - 0.1
        chosen = next((other for part, other in (kinds or {}).items() if part in name), kind)
        type_ = gguf.GGMLQuantizationType[chosen]
        if len(shape) < 2 or shape[-1] % gguf.GGML_QUANT_SIZES[type_][0] or re.search("conv(1d)?\\.weight", name):
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, _quantised(values, chosen), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _quantised(values: np.ndarray, kind: str) -> np.ndarray:
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
