"""The default model in other weight types, made by llama.cpp's own quantiser, so that both sides run the same file."""

from __future__ import annotations

import ctypes
from pathlib import Path

KINDS = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q4_K_M": 15}  # llama.cpp's numbers of them (LLAMA_FTYPE_MOSTLY_...)


def write(source: Path, target: Path, kind: str) -> Path:
    """Writes `source` with weights of this kind to `target`, unless it is there. Raises ImportError without llama-cpp-python.

    The source's weights are quantised already, so these files are a little worse than ones made from the original weights: they
    compare programs on one file, not types with each other. Rows of 576 are not a multiple of 256, so only a part of Q4_K_M is
    Q4_K and Q6_K; the rest is Q5_0 and Q8_0.
    """
    import llama_cpp

    from peers.llama_cpp_model import QUIET

    if target.exists():
        return target
    llama_cpp.llama_log_set(QUIET, ctypes.c_void_p(0))
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.allow_requantize = KINDS[kind], True
    part = target.with_suffix(".part")
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(part).encode(), ctypes.byref(options))
    if failed:
        raise RuntimeError(f"llama.cpp could not write {target}")
    part.rename(target)
    return target
