"""The memory that this process may use: the machine's, or the limit of a container."""

from __future__ import annotations

import os
from pathlib import Path

from decodestep._base.cpu_limits import control_groups, text_of


def memory_limit(root: Path = Path("/")) -> int:
    """The machine's memory in bytes, or the lowest limit of this process's control groups if that is less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2**32
    files = (group / name for group in control_groups("memory", root) for name in ("memory.max", "memory.limit_in_bytes"))
    return min([machine, *(int(limit) for limit in map(text_of, files) if limit.isdecimal())])
