"""The native core: called from `random`, `history`, `sampler` and the operators' `cpu.py` and `rows.py`."""

from typing import Any

class History:
    def __init__(self, prompt_ids: list[int]) -> None: ...
    def __len__(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def highest(self) -> int: ...

class Row:
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
