"""The rule by which a mixture's router selects experts."""

from __future__ import annotations

from dataclasses import dataclass

from decodestep._base.checks import Phrase, is_finite, is_int, require, require_choice

OP = "expert_router"
SCORES = ("softmax", "sigmoid")
GROUP_SCORES = ("maximum", "top_two")


@dataclass(frozen=True)
class RouterRule:
    """The rule of `expert_router`, see its docstring; `check` refuses contradictions."""

    used: int
    scores: str = "softmax"
    groups: int = 1
    kept_groups: int = 1
    group_score: str = "maximum"
    normalise: bool = False
    scale: float = 1.0
    eps: float = 1e-20

    def check(self, experts: int, op: str = OP) -> None:
        """Refuses a rule that is not valid for this number of experts, with a ValueError."""
        require_choice(op, "scores", self.scores, SCORES)
        require_choice(op, "group_score", self.group_score, GROUP_SCORES)
        ok = is_int(self.groups) and self.groups > 0 and experts % self.groups == 0
        require(ok, op, "groups", f"an integer that divides the {experts} experts", self.groups)
        ok = is_int(self.kept_groups) and 0 < self.kept_groups <= self.groups
        require(ok, op, "kept_groups", f"an integer in [1, {self.groups}]", self.kept_groups)
        in_group = experts // self.groups
        most = in_group * self.kept_groups
        ok = is_int(self.used) and 0 < self.used <= most
        require(ok, op, "used", f"an integer in [1, {most}], the experts of the groups that are kept", self.used)
        if self.group_score == "top_two":
            require(in_group >= 2, op, "groups", "of two experts or more for 'top_two'", Phrase(f"{self.groups} of {in_group}"))
        require(isinstance(self.normalise, bool), op, "normalise", "a bool", self.normalise)
        require(is_finite(self.scale), op, "scale", "a finite number", self.scale)
        require(is_finite(self.eps) and self.eps >= 0, op, "eps", "a finite number >= 0", self.eps)
