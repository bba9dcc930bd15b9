"""Integrations with other packages, one module each, imported on use: ``decodestep.integrations.torch``.

`__all__` lists them. The other modules hold what several of them share, or a host's C interface:

- `host_params`, `host_row`: requests of a host that draws by rows of `Sampler`, and such a row;
- `onnx_operators`: the domain "decodestep" of ONNX; `onnxruntime_interface`: the structures of onnxruntime's C interface.
"""

from importlib import import_module
from typing import Any

__all__ = ["llama_cpp", "lm_eval", "onnx", "onnxruntime", "ray", "sglang", "torch", "torch_onnx", "transformers", "vllm"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"decodestep.integrations.{name}")
    raise AttributeError(f"module 'decodestep.integrations' has no attribute {name!r}")
