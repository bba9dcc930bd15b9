"""The rule of a mixture's router as a checkpoint gives it."""

from __future__ import annotations

from collections.abc import Mapping

from decodestep._base.checks import RequestError
from decodestep.errors import ModelError
from decodestep.ops.expert_router.arguments import RouterRule


def checked(rule: RouterRule, experts: int, where: str, names: Mapping[str, str]) -> RouterRule:
    """The rule, if it is valid for this number of experts. names: the checkpoint's keys of its fields, for the ModelError."""
    try:
        rule.check(experts)
    except RequestError as error:  # of a file, not of a call
        named = RequestError(where, names.get(error.arg, error.arg), error.rule, error.got)
        raise ModelError(str(named)) from error
    return rule
