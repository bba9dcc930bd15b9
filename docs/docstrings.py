"""How mkdocstrings reads our docstrings: by Google's sections, or, without any, each argument, Returns and Raises a paragraph."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Notes|Source):$", re.MULTILINE)
_NAMES = re.compile(r"\n([a-z_0-9*]+(?:, [a-z_0-9*]+)*|Notes?|Source): ")
_BEGINNINGS = re.compile(r"\n(?=Returns |Raises )")


class Paragraphs(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and not _SECTION.search(obj.docstring.value):
            named = _NAMES.sub(r"\n\n**\1**: ", obj.docstring.value)  # bold, or else the names would be those of sections
            obj.docstring.value = _BEGINNINGS.sub("\n\n", named)
