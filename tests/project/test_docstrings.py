"""The docstrings of the public surface: sections as editors show them, which name what a call takes."""

from __future__ import annotations

import inspect
import re

import pytest

import decodestep as ds

ROOMS = tuple(f"decodestep.{name}" for name in (*ds._MODULES, "chat", "_base.threads", "_base.profiling"))
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Notes", "Source")
# Of a function whose arguments are those of another.
ELSEWHERE = re.compile(r"as (for )?`\w+`")


def public():
    """The public functions and classes by name, and the methods of those classes."""
    found = {}
    for place in (ds, ds.generation, ds.ops, ds.random, ds.processors, ds.stopping, ds.steps):
        for name in getattr(place, "__all__", vars(place)):
            value = getattr(place, name)
            module = getattr(value, "__module__", "")
            if name[0] != "_" and callable(value) and module.startswith(ROOMS):
                found[name] = value
                if inspect.isclass(value):
                    methods = ((f"{name}.{each}", getattr(value, each)) for each in vars(value) if not each.startswith("_"))
                    found.update((each, method) for each, method in methods if inspect.isroutine(method))
    return found


PUBLIC = public()
FUNCTIONS = [name for name, value in PUBLIC.items() if "." not in name and not inspect.isclass(value)]


def named(doc, section):
    """The names that a section of a docstring explains, in order."""
    text = re.search(rf"^{section}:\n((?: {{4}}.*\n|\n)+)", doc + "\n", re.MULTILINE)
    return re.findall(r"^ {4}\*{0,2}(\w+): ", text[1], re.MULTILINE) if text else []


def taken(value):
    return [name for name in inspect.signature(value).parameters if name != "self"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_explains_what_it_takes(name):
    doc = inspect.getdoc(PUBLIC[name])
    is_sentence = "\n\n" not in doc
    assert named(doc, "Args") == taken(PUBLIC[name]) or is_sentence or ELSEWHERE.search(doc)


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - set(FUNCTIONS)))
def test_a_class_or_method_explains_nothing_else(name):
    value = PUBLIC[name]
    doc = inspect.getdoc(value) or ""
    explained, fields = named(doc, "Args"), named(doc, "Attributes")
    assert not explained or explained == [each for each in taken(value) if each in explained]
    assert not fields or fields == [each for each in inspect.get_annotations(value) if each in fields]


@pytest.mark.parametrize("name", PUBLIC)
def test_sections_have_their_form(name):
    doc = inspect.getdoc(PUBLIC[name]) or ""
    order = [each for each in re.findall(r"^(\w+):$", doc, re.MULTILINE) if each in SECTIONS]
    assert order == sorted(order, key=SECTIONS.index)
    assert not re.search(r"^(Returns|Raises|Yields) \w|^(Notes?|Source): \w", doc, re.MULTILINE)
