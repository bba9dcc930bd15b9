"""What a wheel has besides the core: the package's files, and no others. And what makes one for another processor."""

from __future__ import annotations

import shutil
import zipfile

import pytest
from scikit_build_core import build

from support import processes
from support.project import ROOT


@pytest.mark.slow
def test_a_wheel_has_the_package_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    name = build.build_wheel(str(tmp_path), {"wheel.cmake": "false", "wheel.py-api": ""})
    with zipfile.ZipFile(tmp_path / name) as wheel:
        files = {file for file in wheel.namelist() if ".dist-info/" not in file}
    source = ROOT / "src"
    there = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert files == there


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_tools_of_the_arm_wheel_are_for_this_machine(tmp_path):
    """pip takes the platform that it installs for from the environment, as the build of the wheel does."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nenv > "{tmp_path}/seen"\nexit 1\n')
    python.chmod(0o755)
    made = processes.run(["make", f"PYTHON={python}", "arm-wheel"], cwd=ROOT)
    assert made.returncode and (tmp_path / "seen").exists(), made.stderr
    assert "_PYTHON_HOST_PLATFORM" not in (tmp_path / "seen").read_text()
