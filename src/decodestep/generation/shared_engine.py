"""The engine that the asynchronous streams of a model share; it lives as long as there are any."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decodestep.generation.drafts import Draft
from decodestep.generation.engine import Engine
from decodestep.generation.scheduler import PrefillFirst

if TYPE_CHECKING:
    from decodestep.models import Model

_WITHOUT_LIMIT = 2**31  # rows that may wait: nobody but the process itself makes them


@dataclass
class _Shared:
    engine: Engine
    users: int = 0
    closed: bool = False


# A lease may end in a `__del__`, which the garbage collector calls anywhere: also on the thread that has the lock.
_LOCK = threading.RLock()
_SHARED: dict[tuple[Model, str | int | None], _Shared] = {}


class EngineLease:
    """The use of a model's shared engine with these drafters, from now until `end`. The last one to end closes it."""

    def __init__(self, model: Model, draft: Draft) -> None:
        # A function that makes drafters need not be hashable; the engine keeps it alive.
        self._key, self._is_ended = (model, draft if draft is None or isinstance(draft, str) else id(draft)), False
        with _LOCK:
            while True:
                shared = _SHARED.get(self._key)
                if shared is None:
                    engine = Engine(model, draft=draft, max_rows=PrefillFirst.max_rows, max_waiting=_WITHOUT_LIMIT)
                    shared = _SHARED.setdefault(self._key, _Shared(engine))
                shared.users += 1
                if not shared.closed:
                    break
        self._shared = shared
        self.engine = shared.engine

    def end(self) -> None:
        """Ends the use, without waiting. May be called again."""
        with _LOCK:
            if self._is_ended:
                return
            self._is_ended, shared = True, self._shared
            shared.users -= 1
            if shared.users == 0:
                shared.closed = True
                if _SHARED.get(self._key) is shared:
                    del _SHARED[self._key]
                shared.engine.close(wait=False)


def _begin_child() -> None:
    """After a fork: the engines' threads go on in the parent alone."""
    global _LOCK
    _LOCK = threading.RLock()
    _SHARED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
