"""The states of a sequence's tokens that layers for next-token prediction read with the token after each."""

from __future__ import annotations

import numpy as np

_KEPT = 64  # more than a draft has tokens, of which the last ones are dropped


class TokenStates:
    """Those of the tokens that the sequence ran last: see `NextTokenLayers`.

    again: how many of the tokens that come next were run for a page of which the sequence has a copy, and run again because the
    page does not have their states (`Pages.run_again`).
    """

    def __init__(self, again: int = 0) -> None:
        self.again = again
        self._first, self._rows = 0, np.empty(0)  # the position of the first, and the states of all, (T, K, He)

    def at(self, position: int) -> np.ndarray | None:
        """Those of the token at a position, which outlive the others; None if they are not known."""
        place = position - self._first
        return self._rows[place].copy() if 0 <= place < len(self._rows) else None

    def add(self, first: int, rows: np.ndarray) -> None:
        """Those of tokens that have run, from position `first` on, in place of the earlier ones."""
        self._first, self._rows, self.again = first, rows, max(0, self.again - len(rows))

    def cut(self, length: int) -> None:
        """The tokens from position `length` on are dropped."""
        self._rows, self.again = self._rows[: max(0, length - self._first)], 0

    def forget(self) -> None:
        """Keeps no more than the next tokens may need."""
        if len(self._rows) > _KEPT:
            self._first, self._rows = self._first + len(self._rows) - _KEPT, self._rows[-_KEPT:].copy()

    def copy(self) -> TokenStates:
        made = TokenStates(self.again)
        made._first, made._rows = self._first, self._rows
        return made
