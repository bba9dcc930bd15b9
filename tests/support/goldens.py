"""Reference implementations that vendors publish: they are run where they are at hand, and are no part of this project.

`python tests/support/goldens.py` fetches them; `make goldens` then runs the tests that compare with them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("DECODESTEP_GOLDENS") or ROOT / "build" / "goldens")  # with a checkout of each
REPOSITORIES = {
    "ops-nn": "https://gitcode.com/cann/ops-nn.git",
    "ops-transformer": "https://gitcode.com/cann/ops-transformer.git",
}
_OF_THE_DEVICE = ("torch_npu", "torch_npu.testing", "torch_npu.testing.testcase", "torchair")


def load(repository: str, path: str) -> ModuleType:
    """The module at `path` of a repository, as with the vendor's device. Skips the test where it is not at hand."""
    import pytest

    torch, file = pytest.importorskip("torch"), FOLDER / repository / path
    if not file.is_file():
        pytest.skip(f"{file} is not at hand: `make goldens` fetches {repository}")
    spec = spec_from_file_location(f"golden_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module, device = module_from_spec(spec), mock.MagicMock()
    # What they set for the whole process stays as it is.
    with (
        mock.patch.dict(sys.modules, dict.fromkeys(_OF_THE_DEVICE, device)),
        mock.patch.object(torch, "npu", device, create=True),
        mock.patch("logging.basicConfig"),
        mock.patch("numpy.random.seed"),
        np.printoptions(),
    ):
        spec.loader.exec_module(module)
    return module


def fetch(repository: str) -> str | None:
    """Fetches the tests of a repository; returns why it cannot, or None."""
    target = FOLDER / repository
    if target.exists():
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    clone = ["git", "clone", "--quiet", "--depth=1", "--filter=blob:none", "--sparse", REPOSITORIES[repository], str(target)]
    chosen = ["git", "-C", str(target), "sparse-checkout", "set", "--no-cone", "tests/"]
    for command in (clone, chosen):
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if ran.returncode:
            return ran.stderr.strip()
    return None


if __name__ == "__main__":
    for each in REPOSITORIES:
        found = fetch(each)
        print(f"{each}: {FOLDER / each}" if found is None else f"{each} is not at hand: {found}")
