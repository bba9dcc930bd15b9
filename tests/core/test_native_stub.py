"""The stub of the native core states what the core has: the same functions, classes and arguments."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from decodestep import _native
from support.project import ROOT

STUB = ast.parse((ROOT / "src" / "decodestep" / "_native.pyi").read_text(encoding="utf-8"))
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
VALUES = {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}


def stated(function: ast.FunctionDef) -> list[str]:
    """The arguments of a function that the stub names, with stars as they are written; without those by position alone."""
    given = function.args
    return [arg.arg for arg in given.args] + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


def actual(function: object) -> list[str]:
    """The arguments in a bound function's first line of help."""
    signature = str(function.__doc__).splitlines()[0]
    depth, text = 0, ""
    for character in signature[signature.index("(") + 1 : signature.rindex(")")]:
        depth += (character in "[(") - (character in "])")
        text += character if depth == 0 or character != "," else ";"  # commas inside a type do not separate arguments
    names = [re.split("[:=]", argument)[0].strip() for argument in text.split(",")]
    return names[names.index("/") + 1 :] if "/" in names else [name for name in names if name]


def test_the_core_has_what_the_stub_states():
    public = {name for name in dir(_native) if not name.startswith("_")}
    assert public == FUNCTIONS.keys() | CLASSES.keys() | VALUES


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_of_functions(name):
    assert stated(FUNCTIONS[name]) == actual(getattr(_native, name))


@pytest.mark.parametrize("name", CLASSES)
def test_members_of_classes(name):
    members = {node.name: node for node in CLASSES[name].body if isinstance(node, ast.FunctionDef)}
    attributes = {node.target.id for node in CLASSES[name].body if isinstance(node, ast.AnnAssign)}
    bound = getattr(_native, name)
    assert stated(members["__init__"]) == actual(bound.__init__)
    listed = {member for member, value in vars(bound).items() if inspect.isdatadescriptor(value)}
    assert listed == {member for member in members if not member.startswith("__")} | attributes
