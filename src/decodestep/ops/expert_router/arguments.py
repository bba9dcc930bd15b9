"""The rule by which a mixture's router selects experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from decodestep._base.checks import Words, is_finite, is_int, require, require_choice

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

    def check(self, experts: int, op: str = OP, names: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raises ValueError unless the rule is valid for this number of experts.

        names: what the error calls the fields that have another name where the rule comes from.
        """
        called = {field: names.get(field, field) for field in vars(self)}
        require_choice(op, called["scores"], self.scores, SCORES)
        require_choice(op, called["group_score"], self.group_score, GROUP_SCORES)
        ok = is_int(self.groups) and self.groups > 0 and experts % self.groups == 0
        require(ok, op, called["groups"], f"a divisor of the {experts} experts", self.groups)
        ok = is_int(self.kept_groups) and 0 < self.kept_groups <= self.groups
        require(ok, op, called["kept_groups"], f"in [1, {self.groups}]", self.kept_groups)
        in_group = experts // self.groups
        most = in_group * self.kept_groups
        ok = is_int(self.used) and 0 < self.used <= most
        require(ok, op, called["used"], f"in [1, {most}], the experts of the groups that are kept", self.used)
        if self.group_score == "top_two":
            got = Words(f"{self.groups} of {in_group}")
            require(in_group >= 2, op, called["groups"], "of two experts or more for 'top_two'", got)
        require(isinstance(self.normalise, bool), op, called["normalise"], "a bool", self.normalise)
        require(is_finite(self.scale), op, called["scale"], "a finite number", self.scale)
