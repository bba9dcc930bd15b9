"""Programs whose annotations have a value only when they are read, as all have from Python 3.14 on."""

from __future__ import annotations

import sys


def define(source):
    """What `made` is in a program, whose annotations may have names that nothing has."""
    flags = 0 if sys.version_info >= (3, 14) else annotations.compiler_flag
    names = {"__name__": __name__}
    exec(compile(source, __file__, "exec", flags, dont_inherit=True), names)
    return names["made"]
