"""Integrations with other packages, one module each, imported on use: ``decodestep.integrations.torch``."""

from importlib import import_module
from typing import Any

__all__ = ["llama_cpp", "lm_eval", "onnx", "onnxruntime", "ray", "sglang", "torch", "torch_onnx", "transformers", "vllm"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"decodestep.integrations.{name}")
    raise AttributeError(f"module 'decodestep.integrations' has no attribute {name!r}")
