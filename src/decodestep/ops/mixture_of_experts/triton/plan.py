"""In which order and in which tiles the entries of a call of mixture_of_experts go through the experts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from decodestep._base.devices import to_device_together


class Entries(NamedTuple):
    """Entries in the order of experts, on the device. tokens: int64, the token of each.

    tiles: int64 (tiles, 3), expert, first entry and number of entries.
    """

    tokens: torch.Tensor
    tiles: torch.Tensor


class Plan:
    """routed, shared: `Entries` of the experts that tokens name, and of all tokens.

    columns, places: of every token's experts in ascending order, which column names it, and the entry.
    """

    def __init__(self, experts: np.ndarray, of_routed: int, of_shared: int, device: torch.device) -> None:
        """experts: int64 (T, K). of_routed, of_shared: the entries of a tile."""
        self.tokens, self.used = experts.shape
        order = np.argsort(experts, axis=None, kind="stable")  # of one expert by token, of one token by column
        place = np.empty(order.size, np.int64)
        place[order] = np.arange(order.size)
        columns = np.argsort(experts, axis=1, kind="stable")
        every = np.arange(self.tokens)
        arrays = [
            np.take_along_axis(place.reshape(experts.shape), columns, 1),
            columns,
            order // max(self.used, 1),
            _tiles(experts.reshape(-1)[order], of_routed),
            every,
            _tiles(np.zeros_like(every), of_shared),
        ]
        self.places, self.columns, *rest = _on_device(arrays, device)
        self.routed, self.shared = Entries(*rest[:2]), Entries(*rest[2:])


def _on_device(arrays: list[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """int64 arrays in one copy, each followed by a number, so that none is empty there."""
    parts = to_device_together([np.append(array, 0) for array in arrays], device)
    return [part[:-1].view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def _tiles(experts: np.ndarray, most: int) -> np.ndarray:
    """int64 (tiles, 3): expert, first entry and number of entries, at most `most`. experts: of each entry, ascending."""
    used, first, counts = np.unique(experts, return_index=True, return_counts=True)
    rows = [
        (expert, start + done, min(most, count - done))
        for expert, start, count in zip(used.tolist(), first.tolist(), counts.tolist(), strict=True)
        for done in range(0, count, most)
    ]
    return np.array(rows, np.int64).reshape(-1, 3)
