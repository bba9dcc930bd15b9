"""The operators whose rows have states, as calls of random arrays: what their tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import decodestep as ds

Arrays = dict[str, Any]
POISON = np.float32(-777.5)


class Recurrent(NamedTuple):
    """An operator: its name, its arguments before the state, the arrays with an item for each token, and how to make a call."""

    name: str
    inputs: tuple[str, ...]
    by_token: tuple[str, ...]
    make: Callable[[np.random.Generator, int, int], Arrays]  # for so many tokens and states

    def __call__(self, arguments: Arrays, **changed: Any) -> Any:
        """The results; `state` is copied first, and returned beside them."""
        call = {**arguments, **changed}
        call["state"] = call["state"].copy()
        return getattr(ds, self.name)(**call), call["state"]

    def cut(self, arguments: Arrays, tokens: Any) -> Arrays:
        """The arguments for some of the tokens: a slice or an index array."""
        return {
            name: value[tokens] if name in self.by_token and value is not None else value for name, value in arguments.items()
        }


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def convolution(rng: np.random.Generator, tokens: int, states: int) -> Arrays:
    channels, taps = 37, 4
    return {"x": normal(rng, tokens, channels), "weight": normal(rng, channels, taps), "bias": normal(rng, channels),
            "state": normal(rng, states, taps - 1, channels), "activation": "silu"}  # fmt: skip


def delta_rule(rng: np.random.Generator, tokens: int, states: int) -> Arrays:
    key_heads, heads, key_width, width = 2, 4, 19, 37
    return {"query": normal(rng, tokens, key_heads, key_width), "key": normal(rng, tokens, key_heads, key_width),
            "value": normal(rng, tokens, heads, width), "state": normal(rng, states, heads, key_width, width),
            "decay": -np.abs(normal(rng, tokens, heads)), "beta": 1 / (1 + np.exp(-normal(rng, tokens, heads))),
            "scale": 0.25, "l2_norm": True}  # fmt: skip


def state_space(rng: np.random.Generator, tokens: int, states: int) -> Arrays:
    heads, groups, state_width, width = 4, 2, 19, 37
    return {"x": normal(rng, tokens, heads, width), "dt": normal(rng, tokens, heads), "a": -np.exp(normal(rng, heads)),
            "b": normal(rng, tokens, groups, state_width), "c": normal(rng, tokens, groups, state_width),
            "state": normal(rng, states, heads, state_width, width), "d": normal(rng, heads),
            "dt_bias": normal(rng, heads)}  # fmt: skip


OPERATORS = {
    "causal_conv1d": Recurrent("causal_conv1d", ("x", "weight"), ("x",), convolution),
    "gated_delta_rule": Recurrent(
        "gated_delta_rule", ("query", "key", "value"), ("query", "key", "value", "decay", "beta"), delta_rule
    ),
    "selective_state_update": Recurrent(
        "selective_state_update", ("x", "dt", "a", "b", "c"), ("x", "dt", "b", "c"), state_space
    ),
}
