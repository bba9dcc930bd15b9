"""PLM, which transformers lacks: its files are tested by themselves."""

from __future__ import annotations

from support.family_sizes import Cases

CASES: dict[str, Cases] = {}
