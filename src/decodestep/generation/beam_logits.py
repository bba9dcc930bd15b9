"""The logits of live beams from a model, over its paged key/value cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from decodestep._base.checks import is_int, require
from decodestep._base.dispatch import use_threads

if TYPE_CHECKING:
    from decodestep.models import Model


class BeamLogits:
    """The `next_logits` of one `beam_search` with a model: runs the prompt once, then one token of every live beam per step.

    model: made by `load`. num_beams: >= 1, that of the search.
    capacity: how many tokens a sequence may reach, prompt included; in [1, the model's context].
    Raises ValueError for num_beams or capacity out of range.

    Each beam has a lane of its own: a sequence of the cache. Of several beams that continue the same parent, the first keeps
    the parent's lane; the others copy its blocks, from the first block that differs, into lanes that no beam continues. The
    logits have the bits that the sequence would have alone.
    """

    def __init__(self, model: Model, num_beams: int, capacity: int) -> None:
        require(is_int(num_beams) and num_beams >= 1, "BeamLogits", "num_beams", "an integer >= 1", repr(num_beams))
        context = model.config.context
        ok = is_int(capacity) and 1 <= capacity <= context
        require(ok, "BeamLogits", "capacity", f"an integer in [1, {context}]", repr(capacity))
        self._model = model
        self._cache = model.decoder.new_cache([int(capacity)] * int(num_beams))
        self._cached: list[list[int]] = [[] for _ in range(num_beams)]  # of each lane, the tokens in the cache
        self._lanes = [0]  # of each beam

    def __call__(self, sequences: list[list[int]], parents: list[int]) -> np.ndarray:
        """Logits (len(sequences), V), as `beam_search` calls it: `parents` index the sequences of the previous call."""
        self._lanes = self._continue(parents)
        new_tokens: list[int] = []
        lanes: list[int] = []
        positions: list[int] = []
        last: list[int] = []  # the index of each sequence's last token among the new ones
        for lane, ids in zip(self._lanes, sequences, strict=True):
            known = len(self._cached[lane])
            new_tokens += ids[known:]
            lanes += [lane] * (len(ids) - known)
            positions += range(known, len(ids))
            last.append(len(new_tokens) - 1)
            self._cached[lane] = ids
        with use_threads(self._model.threads):
            blocks = self._model.decoder.in_blocks(
                np.array(new_tokens), np.array(lanes), np.array(positions), self._cache, np.array(last)
            )
            return np.concatenate([logits for _, logits in blocks])

    def _continue(self, parents: list[int]) -> list[int]:
        """The lanes of the new beams, each holding its parent's tokens."""
        continued = {self._lanes[parent] for parent in parents}
        free = [lane for lane in range(len(self._cached)) if lane not in continued]
        lanes: list[int] = []
        for parent in parents:
            lane = self._lanes[parent]
            if lane in lanes:
                source, lane = lane, free.pop()
                self._copy(source, lane)
            lanes.append(lane)
        return lanes

    def _copy(self, source: int, target: int) -> None:
        ids, other = self._cached[source], self._cached[target]
        same = next((i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), min(len(ids), len(other)))
        size, table = self._cache.block_size, self._cache.block_table
        blocks = slice(same // size, -(-len(ids) // size))
        for layers in self._cache.arrays:
            layers[:, table[target, blocks]] = layers[:, table[source, blocks]]
        self._cached[target] = ids
