"""Renders a recording as one self-contained HTML file: markup, style, script and data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from decodestep.explain.descriptions import describe_processor

_HERE = Path(__file__).parent
_SCRIPTS = ("what_if.js", "panel.js", "page.js")


def page(document: Mapping[str, Any], docs: str = "") -> str:
    """The page of a `data.record_document`. It loads no resources, so it works from a file and offline.

    docs: the URL of the documentation, to which processors link; "" for links within the page only.
    """
    names = {step["name"] for run in document["runs"] for step in run["plan"]}
    described = {name: describe_processor(name)._asdict() for name in sorted(names)}
    for description in described.values():
        section = description.pop("section")
        description["link"] = f"{docs.rstrip('/')}/processors/#{section}" if docs and section else ""
    shown = json.dumps({**document, "described": described}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    parts = {
        "title": escape(f"decodestep explain: {document['prompt'][:60]}"),
        "style": (_HERE / "page.css").read_text(encoding="utf-8"),
        "script": "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS),
        "data": shown.replace("<", "\\u003c"),  # so that no text can close the script element
    }
    template = (_HERE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"@@(\w+)@@", lambda found: parts[found[1]], template)
