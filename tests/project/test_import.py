"""Importing the package: little is loaded, and nothing that is optional is needed."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

import decodestep as ds
from support import processes

pytestmark = pytest.mark.slow

OPTIONAL = ("torch", "transformers", "onnx", "gguf", "tokenizers", "jinja2", "llguidance", "rich", "triton")


def python(code: str) -> str:
    run = processes.run([sys.executable, "-c", code], check=True)
    return run.stdout.strip()


def test_import_loads_neither_numpy_nor_an_extra():
    loaded = python("import sys, decodestep; print([m for m in sys.modules if '.' not in m])")
    assert not {*OPTIONAL, "numpy"} & set(eval(loaded))


WITHOUT_EXTRAS = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))"


def test_operators_work_with_every_extra_absent():
    code = "import numpy as np, decodestep as ds; print(ds.tensor_scatter(np.zeros((1, 2, 1)), np.ones((1, 1, 1))).sum())"
    assert python(f"{WITHOUT_EXTRAS}; {code}") == "1.0"


def test_weights_are_copied_to_a_device_before_torch_is_imported():
    code = "import numpy as np; from decodestep.weights import DeviceRows, PackedWeight"
    weight = "PackedWeight.from_array(np.ones((2, 3), np.float32))"
    assert python(f"{code}; print(DeviceRows.of({weight}, 'cpu').shape)") == "(2, 3)"


def test_all_names_and_beam_search_need_no_extra():
    search = "beam_search(lambda ids, _: np.zeros((len(ids), 3), np.float32), [], vocab_size=3, max_new_tokens=1, num_beams=1)"
    assert python(f"{WITHOUT_EXTRAS}; import numpy as np; from decodestep import *; print(len({search}))") == "1"


@pytest.mark.parametrize(
    ("before", "now"),
    [("decodestep.ops.mla_prolog.schedule", "decodestep.npu_schedule"), ("decodestep.serving", "decodestep.generation")],
)
def test_names_are_found_where_they_were_documented_first(before, now):
    names = import_module(before).__all__
    assert names and [getattr(import_module(before), name) for name in names] == [
        getattr(import_module(now), name) for name in names
    ]


def test_without_the_extra_load_says_what_to_install():
    code = "import decodestep as ds\ntry: ds.load()\nexcept ModuleNotFoundError as error: print(error)"
    assert python(f"{WITHOUT_EXTRAS}\n{code}").endswith("is not installed: pip install 'decodestep[generate]'")
    bridge = code.replace("load()", "integrations.torch")
    assert python(f"{WITHOUT_EXTRAS}\n{bridge}") == "torch is not installed: pip install 'decodestep[torch]'"
    onnx = code.replace("load()", "integrations.onnx")
    assert python(f"{WITHOUT_EXTRAS}\n{onnx}").endswith(" is not installed: pip install 'decodestep[onnx]'")


def test_without_the_extra_the_command_line_says_what_to_install():
    code = "from decodestep.cli import main; sys.exit(main(['generate', 'Hi']))"
    run = processes.run([sys.executable, "-c", f"{WITHOUT_EXTRAS}; {code}"])
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("decodestep: ")
    assert run.stderr.endswith(" is not installed: pip install 'decodestep[generate]'\n")


def test_without_the_server_s_packages_the_command_line_names_their_extra():
    code = "import sys; sys.modules['uvicorn'] = None; from decodestep.cli import main; sys.exit(main(['serve']))"
    run = processes.run([sys.executable, "-c", code])
    assert (run.returncode, run.stderr) == (1, "decodestep: uvicorn is not installed: pip install 'decodestep[serve]'\n")


def test_every_public_name_is_there_and_documented():
    for package in (ds, ds.ops, ds.generation, ds.weights):
        for name in package.__all__:
            value = getattr(package, name)
            own = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
            contract = " ".join((own or "").split())
            # A sentence at least, and not the docstring that dataclass and NamedTuple make.
            assert not contract.startswith(f"{name}("), name
            assert len(contract.split()) > 3, name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ds.nonsense


def test_type_checkers_see_the_names_that_there_are():
    tree = ast.parse(Path(ds.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {(alias.name, alias.asname): node.module for node in block.body for alias in node.names}
    assert seen.pop(("*", None)) == "decodestep.ops"
    assert all(name == asname for name, asname in seen)
    assert {name for name, _ in seen} == set(ds.__all__)
    assert dir(ds) == sorted({*ds.__all__, *ds.ops.__all__})
    for (name, _), module in seen.items():
        found = import_module(f"decodestep.{name}") if module == "decodestep" else getattr(import_module(module), name)
        assert getattr(ds, name) is found, name


def test_every_name_of_ops_is_one_of_the_root():
    for name in ds.ops.__all__:
        assert getattr(ds, name) is getattr(ds.ops, name), name


def test_functions_stay_reachable_after_their_modules_are_imported():
    names = "linear", "mla_attention", "tensor_scatter", "generate", "mla_prolog"
    touch = "; ".join(f"ds.{name}" for name in (*ds.__all__, *ds.ops.__all__))
    code = f"import decodestep as ds; {touch}; print([callable(getattr(ds, n)) for n in {names}])"
    assert python(code) == str([True] * len(names))


def test_the_first_calls_of_several_threads_do_not_wait_for_each_other():
    """The core imports modules at its first call; a hook that is Python code lets another thread run meanwhile."""
    program = """
import builtins, threading, time
import numpy as np, decodestep as ds
from decodestep import steps
ds.decode_step
imported = builtins.__import__
def hook(*args, **kwargs):
    time.sleep(0.02)
    return imported(*args, **kwargs)
builtins.__import__ = hook
tokens, barrier = [], threading.Barrier(4)
def call():
    barrier.wait()
    tokens.append(ds.decode_step(np.zeros((1, 64), np.float32), [[steps.TopK(5)]], greedy=True).tokens[0])
threads = [threading.Thread(target=call, daemon=True) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join(20)
print(*tokens)
"""
    assert python(program) == "0 0 0 0"


def test_a_thread_in_a_kernel_does_not_stop_the_interpreter_from_ending():
    """The weight is packed: an array is multiplied by NumPy, whose OpenBLAS may hang at the end of such a process."""
    program = """
import threading, time
import numpy as np, decodestep as ds
x = np.ones((64, 2048), np.float32)
w = ds.PackedWeight(np.zeros((2048, 2048), np.float32).view(np.uint8), ds.Format.F32, 2048)
def call():
    while True:
        ds.linear(x, w, backend="cpu")
for _ in range(3): threading.Thread(target=call, daemon=True).start()
time.sleep(0.5)
print("end")
"""
    ended = processes.run([sys.executable, "-c", program])
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")


def test_rows_are_made_while_another_thread_imports_torch():
    """As a server does for the first watermark; until its end, the module of an import has only some of its names."""
    params = "ds.SamplingParams(repetition_penalty=1.5, do_sample=False)"
    step = f"ds.Sampler({params}, prompt_ids=[[0]], vocab_size=4).step(np.array([[1.2, 1, 0, 0]], np.float32)).tokens"
    code = "import sys, types, numpy as np, decodestep as ds; sys.modules['torch'] = types.ModuleType('torch')"
    assert python(f"{code}; print(*{step})") == "1"
