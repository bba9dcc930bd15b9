"""The logits of live beams from a model, over its paged latent cache."""

from __future__ import annotations

import numpy as np

from decodestep._base.checks import is_int, require
from decodestep._base.dispatch import use_threads
from decodestep.models import Model


class BeamLogits:
    """`next_logits` of a model for one search: a prompt is run once, then each step runs one token of every live beam.

    model: as `load` gives it. num_beams: >= 1, as in the search. capacity: how many tokens a sequence may come to, prompt
        included; in [1, the model's context].

    Called as `beam_search` calls: `parents` index the call before. Each beam has a sequence of the cache of its own. Of
    several children of a beam the first takes over its sequence; each other copies it into one that no beam continues, from
    the first block on that differs. The logits have the bits that the sequence would have alone.
    Raises ValueError for num_beams or capacity out of range.
    """

    def __init__(self, model: Model, num_beams: int, capacity: int) -> None:
        require(is_int(num_beams) and num_beams >= 1, "BeamLogits", "num_beams", "an integer >= 1", repr(num_beams))
        context = model.config.context
        ok = is_int(capacity) and 1 <= capacity <= context
        require(ok, "BeamLogits", "capacity", f"an integer in [1, {context}]", repr(capacity))
        self._model = model
        self._cache = model.decoder.new_cache([int(capacity)] * int(num_beams))
        self._held: list[list[int]] = [[] for _ in range(num_beams)]  # the tokens that each sequence of the cache holds
        self._places = [0]  # the sequence of the cache of each beam

    def __call__(self, sequences: list[list[int]], parents: list[int]) -> np.ndarray:
        self._follow(parents)
        counts: list[int] = []
        tokens: list[int] = []
        places: list[int] = []
        positions: list[int] = []
        for place, ids in zip(self._places, sequences, strict=True):
            known = len(self._held[place])
            counts.append(len(ids) - known)
            tokens += ids[known:]
            places += [place] * (len(ids) - known)
            positions += range(known, len(ids))
            self._held[place] = ids
        with use_threads(self._model.threads):
            blocks = self._model.decoder.in_blocks(
                np.array(tokens), np.array(places), np.array(positions), self._cache, np.cumsum(counts) - 1
            )
            return np.concatenate([logits for _, logits in blocks])

    def _follow(self, parents: list[int]) -> None:
        continued = {self._places[parent] for parent in parents}
        free = [place for place in range(len(self._held)) if place not in continued]
        places: list[int] = []
        for parent in parents:
            place = self._places[parent]
            if place in places:
                source, place = place, free.pop()
                self._copy(source, place)
            places.append(place)
        self._places = places

    def _copy(self, source: int, target: int) -> None:
        ids, other = self._held[source], self._held[target]
        same = next((i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), min(len(ids), len(other)))
        size, table = self._cache.block_size, self._cache.block_table
        blocks = slice(same // size, -(-len(ids) // size))
        for layers in self._cache.arrays:
            layers[:, table[target, blocks]] = layers[:, table[source, blocks]]
        self._held[target] = ids
