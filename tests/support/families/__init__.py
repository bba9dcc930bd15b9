"""The cases of all model_types: a file a family, found as the files beside this one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from support.family_sizes import Cases

FAMILIES = {found.name: import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)}
CASES: dict[str, Cases] = {name: cases for family in FAMILIES.values() for name, cases in family.CASES.items()}
