"""What a wheel has besides the core: the package's files, and no others."""

from __future__ import annotations

import zipfile

import pytest
from scikit_build_core import build

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
