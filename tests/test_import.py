"""Importing the package: little is loaded, and nothing that is optional is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import decodestep as ds

OPTIONAL = ("torch", "transformers", "onnx", "gguf", "tokenizers", "jinja2", "rich", "triton")


def python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_import_loads_neither_numpy_nor_an_extra():
    loaded = python("import sys, decodestep; print([m for m in sys.modules if '.' not in m])")
    assert not {*OPTIONAL, "numpy"} & set(eval(loaded))


def test_operators_work_with_every_extra_absent():
    block = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))"
    code = "import numpy as np, decodestep as ds; print(ds.tensor_scatter(np.zeros((1, 2, 1)), np.ones((1, 1, 1))).sum())"
    assert python(f"{block}; {code}") == "1.0"


def test_every_public_name_is_there_and_documented():
    for name in ds.__all__:
        assert getattr(ds, name).__doc__, name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ds.nonsense


def test_functions_stay_reachable_after_their_modules_are_imported():
    names = "linear", "mla_attention", "tensor_scatter", "generate", "mla_prolog"
    touch = "; ".join(f"ds.{name}" for name in ds.__all__)
    code = f"import decodestep as ds; {touch}; print([callable(getattr(ds, n)) for n in {names}])"
    assert python(code) == str([True] * len(names))
