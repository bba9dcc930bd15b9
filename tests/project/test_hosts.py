"""tests/support/hosts.py: what makes the run of a host a failure."""

import sys

import pytest

from support import hosts

CASES = {  # what a file of tests does, whether the run passes, and a part of what is said
    "import pytest\ndef test(): pass": (True, "1 passed, 0 failed, 0 skipped"),
    "import pytest\ndef test(): pytest.skip('no such thing')": (False, "1 skipped: no such thing: UNEXPECTED"),
    "import pytest\ndef test(): pytest.skip('the cat sleeps')": (True, "1 skipped: the cat sleeps: it is a cat"),
    "import pytest\npytest.importorskip('no_such_module')": (False, "UNEXPECTED"),
    "def test(): assert False": (False, "0 passed, 1 failed"),
    "import os\ndef test(): os._exit(7)": (False, "ended without a report, with 7"),
    "": (False, "0 passed"),
}


@pytest.mark.parametrize("code", CASES)
def test_a_run_passes_without_unexpected_skips(code, tmp_path, monkeypatch, capsys):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(code)
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (python.parents[1] / "report.xml").write_text("<testsuites><testsuite><testcase/></testsuite></testsuites>")  # of before
    monkeypatch.setattr(hosts, "ROOT", tmp_path)
    monkeypatch.setattr(hosts, "make_environment", lambda name: python)
    monkeypatch.setattr(hosts, "EXPECTED", {"the cat": "it is a cat"})
    passes, said = CASES[code]
    assert hosts.run("it", hosts.Host(None, "none", file="test_it.py")) == passes
    assert said in capsys.readouterr().out
