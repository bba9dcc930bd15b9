"""Triton's kernels without a GPU: imported before the kernels, it turns on the interpreter where no device is at hand.

Where there is one, the same tests run on it.
"""

from __future__ import annotations

import os

import numpy as np
import torch

from decodestep._base import arrays

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

from triton.runtime import interpreter  # noqa: E402

_patched: set[str] = set()  # the modules whose names for the language are the interpreter's, in the launch that runs
_launch, _patch_language = interpreter.GridExecutor.__call__, interpreter._patch_lang


def _launch_afresh(self, *args, **kwargs):
    _patched.clear()
    return _launch(self, *args, **kwargs)


def _call(self, *args, **kwargs):
    """As the interpreter calls a function from a kernel, but it prepares each module once a launch and not at every call:
    that takes longer than most functions do."""
    module = self.fn.__globals__["__name__"]
    if module not in _patched:
        _patch_language(self.fn)
        _patched.add(module)
    return self.rewrite()(*args, **kwargs)


interpreter.GridExecutor.__call__ = _launch_afresh
interpreter.InterpretedFunction.__call__ = _call


def on_device(array):
    """A tensor of its own with a NumPy array's values, for the kernels."""
    return None if array is None else arrays.like(torch.empty(0), np.array(array, order="C")).to(DEVICE)


def on_host(tensor):
    return None if tensor is None else arrays.view("test", "tensor", tensor.cpu())
