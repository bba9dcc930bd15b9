"""Shared by the goldens of the sparse attention: sequences in their layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

BLOCK = 16


@dataclass(frozen=True)
class Sequences:
    """Two sequences: the tokens that ask, and the keys that they may see. layouts: of queries and of keys."""

    layouts: tuple[str, str]
    tokens: tuple[int, int] = (3, 2)
    keys: tuple[int, int] = (70, 33)

    def query_lengths(self) -> list[int]:
        return self._lengths(self.layouts[0], self.tokens)

    def key_lengths(self) -> list[int]:
        return self._lengths(self.layouts[1], self.keys)

    def of_queries(self, *shape: int) -> tuple[int, ...]:
        return ((sum(self.tokens),) if self.layouts[0] == "TND" else (len(self.tokens), max(self.tokens))) + shape

    def of_keys(self, *shape: int) -> tuple[int, ...]:
        leading = {"TND": (sum(self.keys),), "PA_BSND": (sum(self._blocks()), BLOCK)}
        return leading.get(self.layouts[1], (len(self.keys), max(self.keys))) + shape

    def block_table(self, generator: torch.Generator) -> torch.Tensor | None:
        """The blocks of the keys in any order, -1 past a sequence's; None without blocks."""
        if self.layouts[1] != "PA_BSND":
            return None
        blocks = self._blocks()
        table = torch.full((len(blocks), max(blocks)), -1, dtype=torch.int32)
        for row, part in zip(table, torch.randperm(sum(blocks), generator=generator).int().split(blocks), strict=True):
            row[: len(part)] = part
        return table

    def options(self, keys: str, mode: int, generator: torch.Generator) -> dict[str, Any]:
        """Arguments of both operators. keys: what the operator calls its keys."""
        return {
            "actual_seq_lengths_query": self.query_lengths(),
            f"actual_seq_lengths_{keys}": self.key_lengths(),
            "block_table": self.block_table(generator),
            "layout_query": self.layouts[0],
            f"layout_{keys}": self.layouts[1],
            "sparse_mode": mode,
        }

    def is_token(self) -> torch.Tensor:
        """Which of the leading places of queries hold a token."""
        if self.layouts[0] == "TND":
            return torch.ones(sum(self.tokens), dtype=torch.bool)
        return torch.arange(max(self.tokens)) < torch.tensor(self.tokens)[:, None]

    def _blocks(self) -> list[int]:
        return [-(-keys // BLOCK) for keys in self.keys]

    @staticmethod
    def _lengths(layout: str, lengths: tuple[int, int]) -> list[int]:
        return [lengths[0], sum(lengths)] if layout == "TND" else list(lengths)
