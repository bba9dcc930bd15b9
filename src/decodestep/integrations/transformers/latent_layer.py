"""Layers of a dynamic cache that grow in place; transformers' own copy the whole cache at every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicIndexedLayer, DynamicLayer

from decodestep.integrations.transformers import huge_pages
from decodestep.integrations.transformers.few_rows import is_watched

_LEAST_ROOM = 64


class LatentLayer(DynamicLayer):  # type: ignore[misc]
    """A `DynamicLayer` whose keys and values are the first positions of buffers that double when they are full.

    It holds the same values as a DynamicLayer after the same calls. `keys` and `values` are views: after a `crop`, positions
    that are overwritten change in views taken before it, but not in those that `update` returned with gradients enabled. With
    keys or values that require gradients, and under torch.compile or tracing, `update` concatenates, as its base class does.

        cache = DynamicCache(config=model.config)
        cache.layers = [LatentLayer() for _ in cache.layers]
    """

    keys: Any
    values: Any
    _room: tuple[Tensor | None, Tensor | None] | None = None  # the buffers that keys and values are views of
    _kept = 0  # positions that a backward pass may still read, for example for the gradient of a weight

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        held: tuple[Tensor, Tensor] = (self.keys, self.values)
        wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (key_states, value_states, *held))
        if wanted or is_watched():
            self._room = None
            updated: tuple[Tensor, Tensor] = super().update(key_states, value_states, *args, **kwargs)
            return updated
        if self.get_seq_length() < self._kept:
            self._room, self._kept = None, 0
        rooms = self._room or (None, None)
        pairs = [_append(*each) for each in zip(held, rooms, (key_states, value_states), strict=True)]
        (self.keys, key_room), (self.values, value_room) = pairs
        self._room = key_room, value_room
        if torch.is_grad_enabled():
            self._kept = self.get_seq_length()
        return self.keys, self.values

    def reset(self) -> None:
        self._room = None
        super().reset()

    def __copy__(self) -> LatentLayer:
        """A copy with its own buffers."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__, _room=None)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Without the rest of the buffers, which is memory that has never been written to."""
        held = {} if self._room is None else {"keys": self.keys.clone(), "values": self.values.clone()}
        return {**self.__dict__, "_room": None, **held}


class IndexedLatentLayer(LatentLayer, DynamicIndexedLayer):  # type: ignore[misc]
    """A `LatentLayer` that also holds the keys of a sparse attention's indexer, as its base class does."""


_LAYERS = {DynamicLayer: LatentLayer, DynamicIndexedLayer: IndexedLatentLayer}


def grow_in_place(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A forward pre-hook: replaces transformers' own dynamic layers in the caches of a call, with what they hold. Offloaded
    caches keep theirs: a LatentLayer's buffers would stay on the device, and would be made again at every step."""
    for cache in (*args, *kwargs.values()):
        if not isinstance(cache, Cache) or cache.offloading:
            continue
        cache.layers[:] = [_growing(layer) if type(layer) in _LAYERS else layer for layer in cache.layers]
        if cache.layer_class_to_replicate is DynamicLayer:
            cache.layer_class_to_replicate = LatentLayer


def _growing(layer: DynamicLayer) -> LatentLayer:
    replaced = _LAYERS[type(layer)]()
    replaced.__dict__.update(vars(layer))
    return replaced


def _append(held: Tensor, room: Tensor | None, new: Tensor) -> tuple[Tensor, Tensor | None]:
    """`held` and `new` along axis -2 as a view of a buffer, and that buffer: `room` if `held` is in it and `new` fits."""
    length = held.shape[-2] if held.dim() > 1 else 0  # an empty layer holds a vector
    total = length + new.shape[-2]
    if held.dim() > 1 and not _alike(held, new):
        return torch.cat([held, new], -2), None  # raises, or converts both to the wider dtype
    if room is None or not _continues(held, length, room, total, new):
        like = new if not length else held
        room = like.new_empty((*new.shape[:-2], max(_LEAST_ROOM, 2 * total), new.shape[-1]))
        huge_pages.ask(room)
        if length:
            room[..., :length, :] = held
    # Through `data`, which does not change autograd's version counter: earlier views do not contain these positions.
    room.data[..., length:total, :] = new
    return room[..., :total, :], room


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors differ at most in their number of positions."""
    return (a.shape[:-2], a.shape[-1], a.dtype, a.device) == (b.shape[:-2], b.shape[-1], b.dtype, b.device)


def _continues(held: Tensor, length: int, room: Tensor, total: int, new: Tensor) -> bool:
    writable = torch.is_inference_mode_enabled() or not room.is_inference()
    at_start = held.data_ptr() == room.data_ptr() and held.stride() == room.stride()
    return _alike(room, new) and writable and total <= room.shape[-2] and length > 0 and at_start
