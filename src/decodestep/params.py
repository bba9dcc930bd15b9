"""SamplingParams: what one request asks of the decode loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from decodestep.checks import is_int, is_real, require

_OP = "SamplingParams"


@dataclass(frozen=True)
class SamplingParams:
    """The parameters of one row; names are transformers' GenerationConfig's, vLLM's where that has none.

    max_new_tokens: how many tokens at most, >= 1; None for as many as the context holds.
    do_sample: False takes the argmax at every step, as temperature 0 does.
    temperature: finite, >= 0; 1 leaves the distribution, 0 takes the argmax.
    top_k: integer >= 0; 0 keeps all tokens.
    top_p: in [0, 1]; 1 keeps all tokens.
    min_p: in [0, 1]; 0 keeps all tokens.
    repetition_penalty: finite, > 0; 1 changes nothing. Over the prompt and what was generated.
    seed: integer in [0, 2^64). The same seed gives the same text, whatever the batch, the threads or the backend.
    stop_strings: the row ends where one of these appears in its text, which is cut there; () for none.
    max_time: seconds after which the row ends, > 0; None for no limit.
    ignore_eos: goes on after an end-of-sequence token.

    `SamplingParams()` samples from the whole distribution. Raises ValueError, naming the legal interval.
    """

    max_new_tokens: int | None = None
    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop_strings: tuple[str, ...] = ()
    max_time: float | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        stops: Any = self.stop_strings
        if isinstance(stops, (str, list)):
            object.__setattr__(self, "stop_strings", (stops,) if isinstance(stops, str) else tuple(stops))
        for field in fields(self):
            rule, legal = _RULES[field.name]
            value = getattr(self, field.name)
            require(legal(value), _OP, field.name, rule, repr(value))

    @property
    def greedy(self) -> bool:
        return not self.do_sample or self.temperature == 0


def _finite(value: Any) -> bool:
    return is_real(value) and math.isfinite(value)


def _share(value: Any) -> bool:
    return is_real(value) and 0 <= value <= 1


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "max_new_tokens": ("an integer >= 1 or None", lambda v: v is None or (is_int(v) and v >= 1)),
    "do_sample": ("a bool", _is_bool),
    "temperature": ("a finite number >= 0", lambda v: _finite(v) and v >= 0),
    "top_k": ("an integer >= 0", lambda v: is_int(v) and v >= 0),
    "top_p": ("a number in [0, 1]", _share),
    "min_p": ("a number in [0, 1]", _share),
    "repetition_penalty": ("a finite number > 0", lambda v: _finite(v) and v > 0),
    "seed": ("an integer in [0, 2^64)", lambda v: is_int(v) and 0 <= v < 2**64),
    "stop_strings": ("non-empty strings", lambda v: isinstance(v, tuple) and all(isinstance(s, str) and s for s in v)),
    "max_time": ("a number of seconds > 0 or None", lambda v: v is None or (_finite(v) and v > 0)),
    "ignore_eos": ("a bool", _is_bool),
}
