"""Nemotron-H with a mixture of experts, as files, which have an architecture of their own."""

from __future__ import annotations

from decodestep.families import nemotron_h
from decodestep.families.common.description import Family

FAMILY = Family(gguf=nemotron_h.MIXTURE)
