"""Why each flag of a schedule is needed: what breaks without it, or a proof that nothing does."""

from __future__ import annotations

from dataclasses import dataclass

from decodestep.npu_schedule.check import Report, check
from decodestep.npu_schedule.instructions import Schedule


@dataclass(frozen=True)
class Verdict:
    """The result of removing all sets and waits of one flag."""

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
    """Checks the schedule once without each flag.

    schedule: must pass `check`; otherwise the verdicts say nothing about the flags.
    Returns a verdict for every flag, in order. "redundant" is a proof for these programs and sizes, because the check
    considers every interleaving; it does not mean that two redundant flags can both be removed.
    """
    return [Verdict(flag, check(schedule.without(flag))) for flag in schedule.flags]
