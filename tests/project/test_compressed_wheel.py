"""A wheel that is compressed anew: the same files, in the same bytes each time, and none above the bound."""

from __future__ import annotations

import sys
import zipfile

import numpy as np
import pytest

from support import compressed_wheel

FILES = {
    "package/code.py": b"def f(x):\n    return x\n" * 500,
    "package/empty": b"",
    "package/noise": np.random.default_rng(3).bytes(900),
}


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "package-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in FILES.items():
            info = zipfile.ZipInfo(name, (2026, 11, 30, 4, 5, 6))
            info.external_attr = 0o100755 << 16
            out.writestr(info, data, zipfile.ZIP_DEFLATED)
    return path


def run(folder, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["compressed_wheel.py", str(folder)])
    compressed_wheel.main()


def test_the_files_are_the_same(wheel, monkeypatch):
    before = wheel.stat().st_size
    run(wheel.parent, monkeypatch)
    assert wheel.stat().st_size < before
    with zipfile.ZipFile(wheel) as small:
        assert {name: small.read(name) for name in small.namelist()} == FILES
        assert {(info.date_time, info.external_attr >> 16) for info in small.infolist()} == {
            ((2026, 11, 30, 4, 5, 6), 0o100755)
        }
    once = wheel.read_bytes()
    run(wheel.parent, monkeypatch)
    assert wheel.read_bytes() == once


def test_a_wheel_above_the_bound_is_refused(wheel, monkeypatch):
    monkeypatch.setattr(compressed_wheel, "MOST_BYTES", 1000)
    with pytest.raises(SystemExit, match="must have at most 1,000 bytes"):
        run(wheel.parent, monkeypatch)
