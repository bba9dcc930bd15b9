"""config.json combined with the defaults of its family; the type and range of each value are checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from decodestep.errors import ModelError
from decodestep.families.common.limits import LEAST_FACTOR, MAX_CONTEXT, MAX_WIDTH, MOST_FACTOR
from decodestep.files import metadata as md
from decodestep.files.model_folder import ModelFolder

FIXED = "fixed"  # a rope type whose base is stretched by alpha, whatever the length of a text


class Keys:
    """config.json combined with the defaults of its family; a key is read as `files.metadata` reads it.

    aliases: keys that count as another one, which they replace. rope_types: likewise of types of rope.
    """

    def __init__(
        self,
        folder: ModelFolder,
        model_type: str,
        defaults: Mapping[str, Any],
        aliases: Mapping[str, str],
        rope_types: Mapping[str, str],
    ) -> None:
        self.path, self.model_type, self.rope_types = folder.path, model_type, rope_types
        found = {key: folder.config.get(name) for name, key in aliases.items()}
        data = {**defaults, **folder.config, **{key: value for key, value in found.items() if value is not None}}
        self._data = {f"config.json: {key}": value for key, value in data.items()}

    def get(self, key: str) -> Any:
        return self._data.get(f"config.json: {key}")

    def size(self, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_WIDTH) -> int:
        return md.integer(self._data, f"config.json: {key}", default, least=least, most=most)

    def size_or_none(self, key: str) -> int | None:
        """None for a key that is missing or null."""
        return None if self.get(key) is None else self.size(key)

    def number(self, key: str, default: float | None = None, *, least: float, most: float) -> float:
        return md.number(self._data, f"config.json: {key}", default, least=least, most=most)

    def flag(self, key: str, default: bool = False) -> bool:
        """The default for a key that is missing or null."""
        return default if self.get(key) is None else md.flag(self._data, f"config.json: {key}", default)

    def refusal(self, what: str) -> ModelError:
        """The error to raise."""
        return ModelError(f"{self.path}: config.json: {what}")


class RopeParameters:
    """The rotary parameters of config.json in both of its styles, rope_parameters, and rope_theta beside rope_scaling.

    layer_type: of which layers, where the family has ropes of its own for "full_attention" and "sliding_attention": those
    are in rope_parameters under these names alone, and rope_scaling changes the first.
    """

    def __init__(self, keys: Keys, layer_type: str | None = None) -> None:
        self._keys = keys
        parameters, scaling = (_object(keys, name, keys.get(name)) for name in ("rope_parameters", "rope_scaling"))
        slides = layer_type == "sliding_attention"
        place = "rope_scaling" if scaling and not slides else "rope_parameters"
        self._of_layers = layer_type is not None
        if layer_type is None:
            found = outer = scaling or parameters
            if any(isinstance(value, dict) for value in found.values()):
                raise keys.refusal(f"{place} by layer type are not supported for model_type {keys.model_type!r}")
        else:
            outer = parameters  # where transformers looks for `truncate`
            own = _object(keys, f"rope_parameters.{layer_type}", parameters.get(layer_type))
            # Without rope_parameters it is there, so that the older name in rope_scaling, "type", changes nothing.
            found = {} if parameters else {"rope_type": "default"}
            found |= own if slides else own | scaling
        self._prefix = f"config.json: {place}."
        self._data = {self._prefix + key: value for key, value in found.items() if value is not None}
        named = md.text(self._data, f"{self._prefix}rope_type", found.get("type", "default"))
        self.rope_type = keys.rope_types.get(named, named)
        part = found.get("partial_rotary_factor", keys.get("partial_rotary_factor"))  # of a head's columns, with rope
        self.part = (
            None if part is None else md.number({"partial_rotary_factor": part}, "partial_rotary_factor", least=0.0, most=1.0)
        )
        theta = keys.get("rope_local_base_freq" if slides else "rope_theta")
        key = f"{self._prefix}truncate"
        self.truncate = md.flag({key: outer.get("truncate", True) or False}, key, True)  # of YaRN; null is false
        self.theta = self.number("rope_theta", 10000.0 if theta is None else theta, least=1.0, most=1e30)

    def __contains__(self, key: str) -> bool:
        return self._prefix + key in self._data

    def number(self, key: str, default: float | None = None, *, least: float, most: float) -> float:
        return md.number(self._data, self._prefix + key, default, least=least, most=most)

    def base(self, width: int) -> float:
        """theta, or what a fixed factor makes of it for a rope of this width."""
        if self.rope_type != FIXED:
            return self.theta
        return self.theta * self.number("alpha", least=LEAST_FACTOR, most=MOST_FACTOR) ** (width / (width - 2))

    def divisors(self, key: str, count: int) -> np.ndarray:
        """`count` numbers by which frequencies are divided."""
        values = md.numbers(self._data, self._prefix + key, count)
        if values is None or not ((values >= LEAST_FACTOR) & (values <= MOST_FACTOR)).all():
            raise self._keys.refusal(f"{key} must be {count} numbers in [{LEAST_FACTOR:g}, {MOST_FACTOR:g}]")
        return values

    def original(self, context: int) -> int:
        """The context before it was extended; `context` where the file does not say."""
        outside = self._keys.get("original_max_position_embeddings")
        if outside is not None and not self._of_layers:
            return self._keys.size("original_max_position_embeddings", most=MAX_CONTEXT)
        return md.integer(self._data, self._prefix + "original_max_position_embeddings", context, most=MAX_CONTEXT)


def _object(keys: Keys, name: str, value: object) -> dict[str, Any]:
    """{} for null, false and others that are as good as nothing to transformers."""
    if not value:
        return {}
    if not isinstance(value, dict):
        raise keys.refusal(f"{name} must be an object")
    return value
