"""The server's endpoints: a file or a folder each, which is found by being here."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from decodestep.serving.endpoint import Endpoint


def find_endpoints() -> list[Endpoint]:
    """The endpoints of all files, in the order of their names."""
    modules = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
    return [endpoint for module in modules for endpoint in module.ENDPOINTS]
