"""Limits of a checkpoint's sizes, so that no product overflows before they are compared with the tensors."""

from __future__ import annotations

from pathlib import Path

from decodestep._base.checks import RequestError
from decodestep.models.config import Config
from decodestep.models.errors import ModelError

MAX_WIDTH, MAX_HEADS, MAX_LAYERS, MAX_EXPERTS = 1 << 24, 1 << 16, 1 << 16, 1 << 16
MAX_CONTEXT = 1 << 24  # positions that are exact in float32, in which the angles of the rotary embedding are computed
LEAST_FACTOR, MOST_FACTOR = 2.0**-20, 2.0**20  # of the frequencies


def checked(path: Path, config: Config) -> Config:
    """Returns the config. Raises ModelError if its sizes contradict each other."""
    experts = config.experts
    if experts is not None:
        try:
            experts.rule.check(experts.count)
        except RequestError as error:
            raise ModelError(f"{path}: the router: {error.arg} must be {error.rule}; got {error.got}") from error
    return config
