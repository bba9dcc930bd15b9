"""Where the project's files are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS, BENCHMARKS = ROOT / "tests", ROOT / "benchmarks"
CHAT_TEMPLATES = TESTS / "chat" / "templates"
