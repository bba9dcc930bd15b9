"""The operators whose rows have states, as calls of random arrays: what their tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import decodestep as ds
from support.tolerances import assert_close

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


def widened(arguments: Arrays) -> Arrays:
    """The same with arrays of float64."""
    return {name: value.astype(np.float64) if isinstance(value, np.ndarray) else value for name, value in arguments.items()}


def with_nan(array: np.ndarray, place: tuple[int, ...]) -> np.ndarray:
    spoilt = array.copy()
    spoilt[place] = np.nan
    return spoilt


def assert_results(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> None:
    """Results of one row, and the state that it left, beside those in float64."""
    assert_close(found[0], expected[0])
    assert_close(found[1][0], expected[1])


def assert_nan_stays(found: tuple[Any, Any], calm: tuple[Any, Any], heads: list[int], first: int) -> None:
    """Results and states with a NaN in the inputs of these heads, from token `first` on, beside those without."""
    (out, state), (calm_out, calm_state) = found, calm
    assert np.isnan(out[first, heads]).all() and not np.isnan(out[:first, heads]).any()
    np.testing.assert_array_equal(np.delete(out, heads, 1), np.delete(calm_out, heads, 1))
    np.testing.assert_array_equal(np.delete(state, heads, 1), np.delete(calm_state, heads, 1))


def assert_nan_stays_in_its_column(out: np.ndarray, calm: np.ndarray, token: int, head: int, column: int) -> None:
    """Results with a NaN in one number of a token beside those without."""
    assert np.isnan(out[token:, head, column]).all()
    np.testing.assert_array_equal(np.delete(out, column, 2), np.delete(calm, column, 2))


def assert_refused(operator: Recurrent, arguments: Arrays, message: str, changed: Arrays) -> None:
    """The changed call is an error with this message, and leaves the state as it was."""
    before = arguments["state"].copy()
    with pytest.raises(ValueError, match=f"^{operator.name}: {message}$"):
        getattr(ds, operator.name)(**{**arguments, **changed})
    np.testing.assert_array_equal(arguments["state"], before)


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
