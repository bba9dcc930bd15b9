"""The drafter of constraints and thinking budgets: text that must follow."""

from __future__ import annotations

from collections.abc import Sequence

from decodestep.constraints.processor import ConstraintLogitsProcessor
from decodestep.errors import ConstraintError
from decodestep.generation.drafts.drafter import Drafter, Outlook
from decodestep.sampling.row import Row
from decodestep.sampling.thinking_budget import ThinkingBudget


class ForcedDrafter(Drafter):
    """Proposes the tokens that a row's constraint, or its thinking budget, leaves no choice about."""

    is_certain = True

    def __init__(self, source: ConstraintLogitsProcessor | ThinkingBudget) -> None:
        self._source = source

    def outlook(self, row: Row, most: int) -> Outlook:
        return Outlook(len(self.propose(row, most)), 1.0)

    def propose(self, row: Row, limit: int) -> Sequence[int]:
        try:
            return self._source.forced_tokens(row.history.tokens)[:limit]
        except ConstraintError:
            return []  # the row's next step ends it with the same error
