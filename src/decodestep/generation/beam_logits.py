"""The logits of live beams, computed by a model on its paged cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from decodestep._base.checks import is_int, require
from decodestep.decoding.sequence import admit

if TYPE_CHECKING:
    from decodestep.models import CachedSequence, Model


class BeamLogits:
    """The `next_logits` of one `beam_search` with a model: runs the prompt once, then one token of every live beam per step.

    Reserves the pages that these beams may need, until `close`. Each beam has a lane, which is a sequence in the cache. If
    several beams continue the same parent, the first keeps the parent's lane; the others take unused lanes and share its pages.
    The logits are the same, bit for bit, as for the sequence alone.

    Args:
        model: made by `load`.
        num_beams: >= 1, that of the search.
        capacity: how many tokens a sequence may reach, prompt included; in [1, the model's context].

    Raises:
        ValueError: for num_beams or capacity out of range.
        CacheFullError: if the cache has no room for such beams.
    """

    def __init__(self, model: Model, num_beams: int, capacity: int) -> None:
        require(is_int(num_beams) and num_beams >= 1, "BeamLogits", "num_beams", "an integer >= 1", num_beams)
        context = model.config.context
        ok = is_int(capacity) and 1 <= capacity <= context
        require(ok, "BeamLogits", "capacity", f"an integer in [1, {context}]", capacity)
        self._model = model
        self._lanes = admit(model.cache, num_beams, capacity)
        self._of_beams = self._lanes[:1]

    def expect(self, length: int) -> None:
        """Announces a prompt of `length` tokens that the first calls run piece by piece: see `CachedSequence.expect`."""
        self._lanes[0].expect(length)

    def __call__(self, sequences: list[list[int]], parents: list[int]) -> np.ndarray:
        """Logits (len(sequences), V), as `beam_search` calls it: `parents` index the sequences of the previous call."""
        self._of_beams = self._continue(parents)
        if len(sequences) == 1:
            self._of_beams[0].reuse(sequences[0][len(self._of_beams[0]) :])
        return self._model.forward([(lane, ids[len(lane) :]) for lane, ids in zip(self._of_beams, sequences, strict=True)])

    def close(self) -> None:
        """Releases the pages."""
        for lane in self._lanes:
            lane.close()

    def _continue(self, parents: list[int]) -> list[CachedSequence]:
        """The lanes of the new beams, each holding its parent's tokens."""
        continued = [self._of_beams[parent] for parent in parents]
        free = [lane for lane in self._lanes if lane not in continued]
        lanes: list[CachedSequence] = []
        for parent in continued:
            if parent in lanes:
                lane = free.pop()
                lane.assign(parent)
                lanes.append(lane)
            else:
                lanes.append(parent)
        return lanes
