"""What an acceleration puts in place of a module's method, and what tells it whether the acceleration is in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Switch:
    """On from `accelerate` to `undo`, for everything that one acceleration has replaced.

    A copy is off, so that a part that is copied or pickled alone computes as its class does: no handle would ever undo it. The
    copy of a handle turns its own switch on.
    """

    def __init__(self, on: bool = False) -> None:
        self.on = on

    def __reduce__(self) -> tuple[type[Switch], tuple[()]]:
        return Switch, ()


class Replacement:
    """In place of a method of a module. One that is off does what the module's class does: it can stay where others hold it, as
    in a wrapper."""

    method = "forward"  # its name

    def __init__(self, module: torch.nn.Module, switch: Switch) -> None:
        self.module, self.switch = module, switch
        self._stock = self._of_class

    @property
    def _of_class(self) -> Any:
        return getattr(type(self.module), self.method)

    @property
    def in_force(self) -> bool:
        """Whether the acceleration is, and the class still has the method that this replaces: others may have given the module
        another class, as parametrisations do, or the class another method, as profilers do."""
        return self.switch.on and self._of_class is self._stock

    def __getstate__(self) -> dict[str, Any]:
        """In place of the method, which pickle would look for by its name, whether it is that of the class."""
        return {**vars(self), "_stock": self._of_class is self._stock}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._stock = self._of_class if state["_stock"] else None


def is_off(method: object, module: torch.nn.Module) -> bool:
    """Whether a method of a module is a `Replacement` of its own that is off."""
    return isinstance(method, Replacement) and method.module is module and not method.switch.on
