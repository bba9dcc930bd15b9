"""What patterns and formats allow, asked of llguidance once for all texts of a schema."""

from __future__ import annotations

import json
from collections.abc import Iterable

from decodestep.constraints.json_form import JSON_FORM, OPTIONS
from decodestep.constraints.schemas.formats import format_schema
from decodestep.constraints.trial import whole_texts


class Patterns:
    """Which texts of a schema are of its patterns and formats.

    patterns, formats, texts: all that the schema has, wherever they are.
    """

    def __init__(self, patterns: Iterable[str], formats: Iterable[str], texts: Iterable[str]) -> None:
        self._texts = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        rules = [("pattern", each) for each in dict.fromkeys(patterns)] + [("format", each) for each in dict.fromkeys(formats)]
        written = [json.dumps(text, ensure_ascii=False) for text in self._texts]
        grammars = [text_grammar({"pattern": each} if kind == "pattern" else format_schema(each)) for kind, each in rules]
        found = whole_texts(grammars, written) if grammars and written else [[False] * len(written)] * len(rules)
        self._found = dict(zip(rules, found, strict=True))

    def matches(self, pattern: str, text: str) -> bool:
        """Whether a pattern is found in a text."""
        return self._found["pattern", pattern][self._texts[text]]

    def of_format(self, name: str, text: str) -> bool:
        return self._found["format", name][self._texts[text]]


def text_grammar(keywords: dict[str, object]) -> str:
    """The grammar of JSON strings with these keywords."""
    return f"start: value\nvalue: %json {json.dumps({'type': 'string', **keywords, OPTIONS: JSON_FORM})}"
