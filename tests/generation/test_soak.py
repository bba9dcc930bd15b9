"""Threads, forks, left streams and rows that fail, all at once on one model: a short run of soak.py."""

from __future__ import annotations

import sys

import pytest

from support import processes
from support.project import TESTS

pytestmark = pytest.mark.slow


def test_every_result_is_as_alone():
    soak = str(TESTS / "soak.py")
    command = [sys.executable, "-W", "ignore::DeprecationWarning", soak, "--calls", "4", "--threads", "6", "--requests", "12"]
    assert "every result as alone" in processes.run(command, timeout=600, check=True).stdout
