"""What each flag of a schedule is for: what breaks without it, or the proof that nothing does."""

from __future__ import annotations

from dataclasses import dataclass

from decodestep.ops.mla_prolog.schedule.check import Report, check
from decodestep.ops.mla_prolog.schedule.instructions import Schedule


@dataclass(frozen=True)
class Verdict:
    """What follows if all sets and waits of one flag are removed."""

    flag: str
    report: Report  # of the schedule without it

    @property
    def needed(self) -> bool:
        return not self.report.ok

    def __str__(self) -> str:
        if not self.needed:
            return f"{self.flag}: redundant here: without it every interleaving still computes the same"
        return f"{self.flag}: needed: {str(self.report).splitlines()[0]}"


def audit(schedule: Schedule) -> list[Verdict]:
    """Removes each flag in turn and checks what is left.

    schedule: one that `check` finds right; of another the verdicts say nothing about the flag.
    Returns a verdict for every flag, in their order. A verdict of "redundant" is a proof for these programs and sizes: the
    check considers every interleaving. It does not say that two redundant flags can both go.
    """
    return [Verdict(flag, check(schedule.without(flag))) for flag in schedule.flags]
