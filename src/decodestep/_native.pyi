"""The native core. The operators' `cpu.py` call it, and the few modules that own its objects."""

from typing import Any

class History:
    """The tokens of a row, and indexes over them that grow with each token; `tokens` starts with the prompt."""

    def __init__(self, prompt_ids: list[int]) -> None: ...
    def __len__(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def highest(self) -> int: ...  # the highest id, -1 if there is no token

class Row:
    """A row that lives from one decode step to the next.

    parts: in their order, tuples or lists of steps, steps of steps.py that depend on the history, and callables that take the
    history and return steps. ends, stops: ids that end the row as "eos" or "stop"; limit: the length of what is generated.
    """

    ended: bool
    def __init__(
        self,
        vocab: int,
        history: History,
        parts: list[Any],
        greedy: bool,
        seed: int,
        top_logprobs: int | None,
        ends: list[int],
        stops: list[int],
        limit: int | None,
    ) -> None: ...

def __getattr__(name: str) -> Any: ...
