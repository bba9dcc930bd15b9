"""The README and every page of docs: programs run as they stand and print what the page says, commands are understood.

A block of Python is a program that runs, each of the cookbook alone and those of another page in turn; what it prints is the
block of text after it. A block marked `py` is a fragment that needs what the tests lack, as another program's object: it is
compiled, and what it imports of ours must be there. Commands are blocks marked `sh`. There is no other code.
"""

from __future__ import annotations

import ast
import doctest
import io
import re
import shlex
import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

import pytest

import decodestep as ds
from decodestep import cli
from support import core_builds
from support.project import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
# A block, its kind, and the block of text that follows it at once.
BLOCKS = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"    (?:>>>|from [\w.]+ import|import \w|(?:[\w.]+/)*(?:decodestep|pip|make|python) )")
OTHER_PROGRAMS = {"cp", "curl", "lm_eval", "podman", "printf", "sglang.launch_server", "systemctl", "vllm"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def printed(call, *arguments):
    shown = io.StringIO()
    with redirect_stdout(shown):
        call(*arguments)
    return "\n".join(line.rstrip() for line in shown.getvalue().splitlines())


@pytest.mark.slow
@each_page
def test_examples_print_what_they_show(page, model, tmp_path, monkeypatch):
    load = ds.load
    monkeypatch.setattr(ds, "load", lambda *file, **options: load(*file, **options) if file or options else model)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for kind, block, text in BLOCKS.findall(page.read_text()):
        if kind == "python":
            names = {} if page.name == "cookbook.md" else names
            program = compile(block, str(page), "exec")
            assert printed(exec, program, names) == text.rstrip("\n") or not core_builds.IS_FUSED, block
        elif kind == "sh" and text:
            (words,) = commands(block)
            assert printed(cli.main, words[1:]) == text.rstrip("\n") or not core_builds.IS_FUSED, block


@each_page
def test_no_code_is_left_out(page):
    text = page.read_text()
    outside = BLOCKS.sub("", text)
    assert "```" not in outside and "~~~" not in outside
    for kind, block, _ in BLOCKS.findall(text):
        assert kind in ("python", "py", "sh"), block
        if kind == "py":
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and node.module.startswith("decodestep"):
                    path = node.module.replace(".", "/")
                    (source,) = [*ROOT.glob(f"src/{path}.py"), *ROOT.glob(f"src/{path}/__init__.py")]
                    missing = [name.name for name in node.names if not re.search(rf"\b{name.name}\b", source.read_text())]
                    missing = [name for name in missing if not [*source.parent.glob(f"{name}*")]]
                    assert not missing, block
    indented = [line for line in outside.splitlines() if COMMAND.match(line) and ">>>" not in line]
    assert not indented, "code that nothing runs: mark it as python, py or sh"


@each_page
def test_lists_do_not_end_at_their_paragraphs(page):
    """For the site a paragraph of an item has four spaces before it: with fewer it ends the list, and the next begins at 1."""
    assert not re.findall(r"\n\n {1,3}\S.*", BLOCKS.sub("", page.read_text()))


@pytest.mark.parametrize("page", [page for page in PAGES if "\n    >>> " in page.read_text()], ids=lambda page: page.stem)
def test_sessions_print_what_they_show(page):
    assert doctest.testfile(str(page), module_relative=False).failed == 0


def commands(block):
    """The words of each command of a block, without comments, settings of the environment and what a pipe leads to."""
    lines = block.replace("\\\n", "").splitlines() if not block.startswith("curl") else ["curl"]
    found = []
    for line in lines:
        for part in re.split(r" \| ", line):
            words = shlex.split(part, comments=True)
            while words and re.fullmatch(r"DECODESTEP_\w+=.*", words[0]):
                words.pop(0)
            found += [words] if words else []
    return found


@each_page
def test_commands_are_understood(page, monkeypatch):
    text = page.read_text()
    found = [words for kind, block, _ in BLOCKS.findall(text) if kind == "sh" for words in commands(block)]
    # In a sentence only whole ones: no names in capitals and no brackets, for which a reader puts something.
    named = re.findall(r"`(decodestep [^`\[]+)`", text)
    found += [shlex.split(line) for line in named if not re.search(r"\b[A-Z]{2,}\b|\.\.\.|…", line)]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    extras = set(re.findall(r"^([a-z-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.M))
    for program, *words in found:
        match Path(program).name:
            case "decodestep":
                verb = import_module(f"decodestep.cli.{words[0]}")
                if words[1:] and "--help" not in words:  # one that is only named is not called
                    monkeypatch.setattr(verb, "run", lambda options: 0)
                    assert cli.main(words) == 0, words
            case "make":
                assert {word for word in words if "=" not in word} <= targets, words
            case "pip":
                assert {extra for word in words for extra in re.findall(r"\[([\w-]+)\]", word)} <= extras, words
            case "python":
                file = words[0] if words[0] != "-m" else f"src/{words[1].replace('.', '/')}.py"
                assert words[1] in {"pytest", *OTHER_PROGRAMS} or (ROOT / file).exists(), words
            case other:
                assert other in OTHER_PROGRAMS, words


@pytest.mark.slow
def test_make_lint_installs_the_packages_whose_types_mypy_reads():
    lists = re.findall(r"^module = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.M)
    untyped = {name for modules in lists for name in re.findall(r'"(\w+)', modules)}
    (line,) = re.findall(r"/\.lint:.*\n\t(.*)", (ROOT / "Makefile").read_text())
    installed = {re.split("[>=<]", word)[0] for word in shlex.split(line)}
    imported = set()
    for file in (ROOT / "src/decodestep").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
    library = sys.stdlib_module_names | {"annotationlib"}  # which Python has from 3.14 on
    assert imported - library - untyped - {"decodestep"} <= installed


@each_page
def test_links_lead_somewhere(page):
    """`make docs` checks those of the site, and anchors too."""
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        file = page.parent / link if link else page
        assert "://" in link or file.exists(), link
        if anchor and file.suffix == ".md" and "api/" not in str(file):
            heads = re.findall(r"^#+ (.+)$", file.read_text(), re.M)
            assert anchor in [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads], f"{link}#{anchor}"


def test_the_navigation_names_pages_that_are_there():
    """`make docs` checks links and anchors too."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = set(re.findall(r"[\w/-]+\.md", navigation))
    assert named <= {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    index = (ROOT / "docs/results/index.md").read_text()
    assert all(report.name in index for report in ROOT.glob("docs/results/*.md") if report.name != "index.md")
