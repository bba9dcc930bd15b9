"""A layer of a checkpoint, whose weights are converted to a decoder's format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from decodestep.decoding.layer_weights import Weight
from decodestep.models.checkpoint import Checkpoint, Stored
from decodestep.models.experts_in_turn import read_experts
from decodestep.weights.file_weight import FileWeight
from decodestep.weights.lazy_weight import RowWeight, whole
from decodestep.weights.packed import DENSE_FORMATS, PackedWeight

Pack = Callable[[RowWeight, bool], Weight]  # (weight, widened) -> the weight in the decoder's format


class LayerParts:
    """Layer i of a checkpoint: the methods of `Checkpoint` for its parts, and `pack_together` with this `pack`."""

    def __init__(self, checkpoint: Checkpoint, i: int, pack: Pack) -> None:
        self.number, self.config, self.is_of_experts = i, checkpoint.config, checkpoint.config.has_experts(i)
        self.head_dim = self.config.head_dim_of(i) if i < self.config.layers else self.config.head_dim
        self.has_keys = i >= self.config.layers or self.config.grouped.source(i) == i
        self.has, self.pack = partial(checkpoint.has, i=i), partial(pack_together, pack)
        self.vector, self.optional_vector = partial(checkpoint.vector, i=i), partial(checkpoint.optional_vector, i=i)
        self.experts_in_turn = partial(read_experts, checkpoint, i)
        self.weight, self.stack = partial(checkpoint.weight, i=i), partial(checkpoint.stack, i=i)

    @property
    def rotated(self) -> int:
        """The columns of a head that have a rope."""
        return self.head_dim if self.config.grouped.rope_dim is None else self.config.grouped.rope_dim

    def head_count(self, part: str) -> int:
        return self.config.heads if part == "query" else self.config.kv_heads_of(self.number)

    def packed(self, part: str) -> Weight:
        return self.pack(self.weight(part))


def pack_together(pack: Pack, *parts: Stored) -> Weight:
    """The weight whose outputs are those of the parts, one after the other, as `pack` converts it.

    Parts of different formats are widened to float32; those of dense formats are exactly that, and not to be quantised.
    """
    weights = [part.weight for part in parts]
    widened = any(part.widened for part in parts)
    if len(weights) == 1:
        return pack(weights[0], widened)
    formats = {weight.format for weight in weights}
    if len(formats) > 1:
        widened |= not formats <= DENSE_FORMATS
        return pack(PackedWeight.widened(*map(whole, weights)), widened)
    in_file = [weight for weight in weights if isinstance(weight, FileWeight)]
    if len(in_file) == len(weights):
        return pack(FileWeight.stack(*in_file), widened)
    return pack(PackedWeight.stack(*map(whole, weights)), widened)
