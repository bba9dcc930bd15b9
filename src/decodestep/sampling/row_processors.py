"""A caller's own processors: one list for all rows, or a factory that makes a list for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from decodestep._base.checks import Phrase, refuse, require
from decodestep._base.signatures import read_signature
from decodestep.processors import LogitsProcessor, PrefixConstrainedLogitsProcessor

Processor = Callable[..., Any]  # (input_ids, scores) -> scores
Processors = Sequence[Processor] | Callable[[int], Sequence[Processor]]

_FACTORY = "a factory for several rows, such as processors=lambda row: [...]"


class RowProcessors:
    """The processors of each row, from a caller's `processors` argument.

    processors: a sequence of callables for all rows; or a factory, a callable of one argument that is not a sequence, which is
        called once for each row, with its number, and returns the row's processors.

    Raises ValueError for anything else. A single processor is not a factory, because it has two arguments.
    """

    def __init__(self, op: str, processors: Processors) -> None:
        self._op = op
        self._factory: Callable[[int], Sequence[Processor]] | None = None
        self._shared: tuple[Processor, ...] = ()
        self.served = False  # whether a row has been added with the shared ones
        if isinstance(processors, Sequence):
            self._shared = tuple(processors)
        elif _takes_a_row(processors):
            self._factory = processors
        else:
            refuse(op, "processors", "a sequence of processors, or a function of a row's number that returns one", processors)

    def for_row(self, number: int, num_beams: int = 1) -> list[Processor]:
        """The row's processors. Raises ValueError if one that keeps state would serve a second row, or several beams."""
        made = self._shared if self._factory is None else self._factory(number)
        require(isinstance(made, Sequence), self._op, "processors", "a function that returns a sequence", made)
        refuse_state_of_beams(self._op, made, num_beams)
        stateful = stateful_names(made) if self._factory is None and self.served else []
        require(not stateful, self._op, "processors", _FACTORY, Phrase(f"one {', '.join(stateful)}, with state"))
        return for_item(made, number)


def refuse_state_of_beams(op: str, processors: Sequence[Processor], num_beams: int) -> None:
    """Several beams change places, and state does not go with them."""
    stateful = stateful_names(processors)
    rule = "without state beside several beams"
    require(num_beams == 1 or not stateful, op, "processors", rule, Phrase(", ".join(stateful)))


def stateful_names(processors: Sequence[Processor]) -> list[str]:
    """The names of those that keep state between calls."""
    return [type(p).__name__ for p in processors if getattr(p, "stateful", False)]


def for_item(processors: Sequence[Processor], item: int) -> list[Processor]:
    """The processors for calls whose rows are the beams of one item; a prefix constraint's function is given its index."""
    return [p.of_item(item) if type(p) is PrefixConstrainedLogitsProcessor else p for p in processors]


def _takes_a_row(processors: object) -> bool:
    if not callable(processors) or isinstance(processors, LogitsProcessor):
        return False
    try:
        signature = read_signature(processors)
    except ValueError:  # a builtin such as the __getitem__ of a dict does not tell; a processor is none
        return True
    try:
        signature.bind(0)
    except TypeError:
        return False
    return True
