"""How the delta rule's arguments fit together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from decodestep._base.arrays import Array
from decodestep._base.checks import is_finite, refuse, require, require_choice, require_dtype, require_shape

OP = "gated_delta_rule"
NORM_EPSILON = 1e-6
# By rule: whether it has a decay and a beta.
UPDATE_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
HEAD_MAPS = ("grouped", "tiled")


@dataclass(frozen=True)
class Rule:
    """What is the same for all tokens: see `gated_delta_rule`."""

    update_rule: str
    scale: float
    l2_norm: bool
    head_map: str

    def check(self, decay: object, beta: object) -> None:
        """Refuses options outside the rules, and a decay or beta that the update rule does not have or lacks."""
        require_choice(OP, "update_rule", self.update_rule, UPDATE_RULES)
        for name, value, has in zip(("decay", "beta"), (decay, beta), UPDATE_RULES[self.update_rule], strict=True):
            if has != (value is not None):
                refuse(OP, name, f"{'given' if has else 'None'} for the rule {self.update_rule!r}", value)
        require(is_finite(self.scale), OP, "scale", "a finite number", self.scale)
        require(isinstance(self.l2_norm, bool), OP, "l2_norm", "a bool", self.l2_norm)
        require_choice(OP, "head_map", self.head_map, HEAD_MAPS)

    def key_heads(self, heads: int, key_heads: int) -> np.ndarray:
        """The key head that each head reads."""
        each = np.arange(heads)
        return each % key_heads if self.head_map == "tiled" else each // max(heads // key_heads, 1)


class Arrays(NamedTuple):
    """The arrays of a call, as they were given or as NumPy sees them."""

    query: Array
    key: Array
    value: Array
    state: Array
    decay: Array | None
    beta: Array | None

    def with_widths(self) -> Arrays:
        """decay: (T, H, dk), or (T, H, 1) for one of the whole head. beta: (T, H, 1)."""
        decay, beta = self.decay, self.beta
        return self._replace(
            decay=decay[..., None] if decay is not None and decay.ndim == 2 else decay,
            beta=None if beta is None else beta[..., None],
        )


def check(arrays: Arrays) -> None:
    """Refuses arrays other than `state` that do not fit together."""
    query, key, value, _, decay, beta = arrays
    require_dtype(OP, "query", query, (np.float32, np.float64))
    require(query.ndim == 3 and query.shape[1] > 0, OP, "query", "of shape (T, Hk, dk) with Hk >= 1", query)
    for name, array in (("key", key), ("value", value), ("decay", decay), ("beta", beta)):
        if array is not None:
            require_dtype(OP, name, array, (query.dtype,))
    require_shape(OP, "key", key, query.shape)
    tokens, key_heads, width = query.shape
    if value.ndim != 3 or len(value) != tokens or value.shape[1] % key_heads:
        refuse(OP, "value", f"of shape ({tokens}, H, dv), H a multiple of {key_heads}", value)
    of_heads = value.shape[:2]
    if decay is not None and decay.shape not in (of_heads, (*of_heads, width)):
        heads = ", ".join(map(str, of_heads))
        refuse(OP, "decay", f"of shape ({heads}) or ({heads}, {width})", decay)
    if beta is not None:
        require_shape(OP, "beta", beta, of_heads)
