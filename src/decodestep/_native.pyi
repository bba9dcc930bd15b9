"""The native core; its entry points take arrays alone and are called from `random` and from the operators' `cpu.py`."""

from typing import Any

def __getattr__(name: str) -> Any: ...
