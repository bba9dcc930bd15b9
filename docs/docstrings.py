"""How mkdocstrings reads our docstrings: each argument, Returns and Raises begins a paragraph."""

from __future__ import annotations

import re
from typing import Any

import griffe

_BEGINNINGS = re.compile(r"\n(?=(?:[a-z_0-9*]+(?:, [a-z_0-9*]+)*|Notes?|Source): |Returns |Raises )")


class Paragraphs(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _BEGINNINGS.sub("\n\n", obj.docstring.value)
