"""JSON-Schema-Test-Suite: the texts of a schema are those of its valid values, or the schema is refused.

DECODESTEP_SCHEMA_SUITE names a folder with a copy of json-schema-org/JSON-Schema-Test-Suite; without it, there is nothing to
test.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from decodestep.constraints import worker
from decodestep.constraints.grammar import compile_grammar
from decodestep.constraints.trial import LIMITS

SUITE = os.environ.get("DECODESTEP_SCHEMA_SUITE")
DRAFTS = {"draft2020-12": "https://json-schema.org/draft/2020-12/schema", "draft7": "http://json-schema.org/draft-07/schema#"}
MOST_ORDERS = 24  # of the members of an instance
# Valid instances whose texts are not allowed, by file: other forms of a number than the one that json.dumps writes, escapes
# with u, and what a metaschema turns off. A format is asserted, also where the suite has it as an annotation.
NOT_WRITTEN = {
    "const.json": {"float zero is valid", "float one is valid", "float is valid"},
    "enum.json": {"float zero is valid", "float one is valid", "[0.0] is valid", "[1.0] is valid"},
    "type.json": {"a float with zero fractional part is an integer"},
    "optional/format/json-pointer.json": {"valid JSON-pointer (control characters allowed after JSON unescaping)"},
    "vocabulary.json": {"no validation: invalid number, but it still validates"},
}
ANNOTATED = "is only an annotation by default"


def groups(draft):
    """(file, schema, tests) of the required part and of the formats."""
    folder = Path(SUITE or "") / "tests" / draft
    for file in sorted([*folder.glob("*.json"), *folder.glob("optional/format/*.json")]):
        for group in json.loads(file.read_text()):
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {"$schema": DRAFTS[draft], **schema}
            yield file.relative_to(folder).as_posix(), schema, group["tests"]


def orders(value):
    """The value with its members in several orders, one of which may be that of the schema."""
    if isinstance(value, dict):
        for items in itertools.permutations(value.items()):
            for each in itertools.product(*(itertools.islice(orders(inner), 4) for _, inner in items)):
                yield dict(zip([name for name, _ in items], each, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*(itertools.islice(orders(inner), 4) for inner in value)))
    else:
        yield value


def is_allowed(grammar, value):
    written = [json.dumps(each, ensure_ascii=False) for each in itertools.islice(orders(value), MOST_ORDERS)]
    [found] = worker.answers([[grammar, "texts", written]], LIMITS)
    return any(found)


@pytest.mark.slow
@pytest.mark.skipif(SUITE is None, reason="DECODESTEP_SCHEMA_SUITE names no copy of JSON-Schema-Test-Suite")
def test_texts_are_those_of_valid_values_or_the_schema_is_refused():
    wrong, refused, cases = [], 0, 0
    for draft in DRAFTS:
        for file, schema, tests in groups(draft):
            grammar, why = None, ""
            try:
                grammar = compile_grammar("json_schema", json.dumps(schema), closed=False)
            except ValueError as error:
                why = str(error)
            for each in tests:
                cases += 1
                if grammar is None and "possible to satisfy" not in why:
                    refused += 1
                    continue
                allowed = grammar is not None and is_allowed(grammar, each["data"])
                punycode = file == "optional/format/hostname.json" and "xn--" in str(each["data"]).lower()
                known = each["description"] in NOT_WRITTEN.get(file, ()) or each["description"].endswith(ANNOTATED)
                if allowed != each["valid"] and not (punycode if allowed else known):
                    wrong.append((draft, file, each["description"], allowed))
    assert cases > 3000
    assert wrong == []
    assert refused <= 900
