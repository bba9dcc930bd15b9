"""The ranges of versions in pyproject.toml, whose ends the Makefile and the public CI test."""

from __future__ import annotations

import re

from support.project import ROOT

PROJECT, MAKEFILE = ((ROOT / name).read_text() for name in ("pyproject.toml", "Makefile"))
WORKFLOW = (ROOT / ".github/workflows/test.yml").read_text()


def found(pattern, text):
    match = re.search(pattern, text, re.MULTILINE)
    assert match, pattern
    return match[1]


def test_the_tests_run_on_each_python_that_the_package_names():
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert re.findall(r"3\.\d+", found(r"^ +python: \[(.*)\]", WORKFLOW)) == named
    assert found(r'^requires-python = ">=(.*)"', PROJECT) == named[0]


def test_the_tests_run_on_the_oldest_releases():
    required = dict(re.findall(r'"([\w-]+)>=([\d.]+)', PROJECT))
    tested = dict(re.findall(r"([\w-]+)==([\d.]+)", found(r"^OLDEST := (.*\n.*)", MAKEFILE)))
    assert {"numpy", "ml_dtypes", "array-api-compat", "gguf", "llguidance", "jinja2", "uvicorn"} <= tested.keys()
    for name, version in tested.items():
        assert f"{version}.".startswith(f"{required[name]}."), name
    assert "test-oldest" in found(r"^ +target: \[(.*)\]", WORKFLOW)


def test_the_tests_run_on_both_releases_of_transformers():
    first, end = re.search(r"transformers>=(5\.\d+),<5\.(\d+)", PROJECT).groups()
    assert found(r'"transformers==([\d.]+);', PROJECT).startswith(f"{first}.")
    assert found(r"^TRANSFORMERS_NEXT := transformers==([\d.]+)", MAKEFILE).startswith(f"5.{int(end) - 1}.")
    assert "test-transformers-next" in found(r"^ +target: \[(.*)\]", WORKFLOW)
