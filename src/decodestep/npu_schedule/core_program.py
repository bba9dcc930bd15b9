"""A core's program while it is written: its instructions in order, and the flags among them."""

from __future__ import annotations

from decodestep.npu_schedule.frame import Frame, Step
from decodestep.npu_schedule.instructions import PIPES, Instruction, SetFlag, WaitFlag


class CoreProgram:
    kind: str

    def __init__(self, frame: Frame, index: int) -> None:
        self.frame, self.sizes, self.index = frame, frame.sizes, index
        self.made: list[Instruction] = []

    def down(self, step: Step) -> None:
        """The first phase: what depends on the tokens alone."""
        raise NotImplementedError

    def up(self, step: Step) -> None:
        """The second phase: the queries of all heads."""
        raise NotImplementedError

    def absorb(self, step: Step) -> None:
        """The third phase: the queries in the latent's space."""
        raise NotImplementedError

    def wait(self, flag: str, step: Step) -> None:
        self.made.append(WaitFlag(flag, step.index))

    def set(self, flag: str, step: Step) -> None:
        """Sets a flag once everything has been stored."""
        self.made.append(SetFlag(flag, PIPES[self.kind][2], step.index))

    def join(self, flag: str, step: Step) -> None:
        """Waits for all cores that join."""
        self.set(flag, step)
        self.wait(flag, step)
