"""The examples of the README and of every page run as they stand, and print what the page says that they print."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# A program, and the block of text that follows it at once, which is what it prints.
BLOCKS = re.compile(r"^```python\n(.*?)^```\n(\n```text\n.*?^```)?", re.MULTILINE | re.DOTALL)
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page, model, tmp_path, monkeypatch):
    text = page.read_text()
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block, printed in BLOCKS.findall(text):
        shown = io.StringIO()
        with redirect_stdout(shown):
            exec(compile(block, str(page), "exec"), names)
        if printed:
            assert shown.getvalue() == printed.removeprefix("\n```text\n").removesuffix("```"), block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert "://" in link or (page.parent / link).exists(), link


def test_the_navigation_names_pages_that_are_there():
    """`make docs` checks links and anchors too."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = set(re.findall(r"[\w/-]+\.md", navigation))
    assert named <= {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    index = (ROOT / "docs/results/index.md").read_text()
    assert all(report.name in index for report in ROOT.glob("docs/results/*.md") if report.name != "index.md")
