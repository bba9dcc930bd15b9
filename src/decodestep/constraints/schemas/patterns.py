"""What patterns allow, asked of llguidance once for all texts of a schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from decodestep.constraints.json_form import JSON_FORM, OPTIONS
from decodestep.constraints.trial import whole_texts


class Patterns:
    """Which texts of a schema are of its patterns.

    patterns, texts: all that the schema has, wherever they are; the patterns with a place of each, also those of formats.
    """

    def __init__(self, patterns: Mapping[str, str], texts: Iterable[str]) -> None:
        self._texts = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        self.places = patterns
        several, places = list(patterns), list(patterns.values())
        written = [json.dumps(text, ensure_ascii=False) for text in self._texts]
        grammars = [text_grammar({"pattern": each}) for each in several]
        found = whole_texts(grammars, written, places) if grammars and written else [[False] * len(written)] * len(several)
        self._found = dict(zip(several, found, strict=True))

    def matches(self, pattern: str, text: str) -> bool:
        """Whether a pattern is found in a text."""
        return self._found[pattern][self._texts[text]]


def text_grammar(keywords: dict[str, object]) -> str:
    """The grammar of JSON strings with these keywords."""
    return f"start: value\nvalue: %json {json.dumps({'type': 'string', **keywords, OPTIONS: JSON_FORM})}"
