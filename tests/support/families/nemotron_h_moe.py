"""Files of Nemotron-H's mixtures, which are tested with its folders."""

from __future__ import annotations

from support.family_sizes import Cases

CASES: dict[str, Cases] = {}
