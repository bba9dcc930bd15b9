"""The weights of a layer that has a recurrence in place of attention: its state stands for the past of a sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from decodestep._base.checks import Phrase, is_int, require
from decodestep.ops.decoder_forward.checks import CLASS, require_bias, require_panels, require_vector
from decodestep.weights.linear_panels import LinearPanels

STATE_ALIGNMENT = 16  # values: where a state may begin in a row of states


class RecurrentSizes(NamedTuple):
    """heads, columns: of results. key_heads, rows: of what a state is multiplied by, (heads, rows, columns); 0 rows: there is
    none. channels: of the convolution, whose state is (taps - 1, channels)."""

    heads: int
    columns: int
    key_heads: int
    rows: int
    taps: int
    channels: int

    @property
    def width(self) -> int:
        return self.heads * self.columns

    @property
    def state(self) -> tuple[int, int, int]:
        return self.heads, self.rows, self.columns

    @property
    def kept(self) -> tuple[int, int]:
        return self.taps - 1, self.channels


class Recurrence(ABC):
    """What the three have in common. Products are `LinearPanels` of shape (inputs, outputs), the rest is float32.

    convolution: (K, C), the last of K taps for the newest input. output: (the width of the results, He). output_bias: (He,).
    """

    kind: ClassVar[str]
    convolution: np.ndarray
    output: LinearPanels
    output_bias: np.ndarray | None

    @abstractmethod
    def inputs(self) -> dict[str, LinearPanels]:
        """The products of the hidden rows, by name, in the order of their outputs."""

    @abstractmethod
    def sizes(self) -> RecurrentSizes:
        """They follow from the weights; which need not fit together."""

    @abstractmethod
    def input_width(self) -> int:
        """The outputs that all `inputs` should have."""

    def vectors(self) -> dict[str, int]:
        """The lengths of those that are given, but for output_bias."""
        return {}

    def products(self) -> tuple[LinearPanels, ...]:
        return (*self.inputs().values(), self.output)

    def check(self, name: str, hidden: int) -> None:
        """Refuses weights that do not fit together, as those of a layer `name`."""
        for product, panels in self.inputs().items():
            require_panels(f"{name}.{product}", panels, (hidden, getattr(panels, "outputs", 0)))
        self._check_sized(name)
        s, outputs = self.sizes(), sum(panels.outputs for panels in self.inputs().values())
        fits = min(s.heads, s.columns) > 0 and s.heads % max(s.key_heads, 1) == 0 and outputs == self.input_width()
        rule = "of products, taps, heads and norm that fit together"
        require(fits, CLASS, name, rule, Phrase(f"{s}, {outputs} outputs"))
        for vector, length in self.vectors().items():
            require_vector(f"{name}.{vector}", getattr(self, vector), length)
        require_panels(f"{name}.output", self.output, (s.width, hidden))
        require_bias(f"{name}.output_bias", self.output_bias, self.output)

    def _check_sized(self, name: str) -> None:
        """Refuses what `sizes` cannot be found of."""
        taps = self.convolution
        ok = isinstance(taps, np.ndarray) and taps.dtype == np.float32 and taps.ndim == 2 and len(taps) > 0
        require(ok, CLASS, f"{name}.convolution", "float32 of shape (K, C) with K >= 1", taps)


@dataclass(frozen=True, eq=False)
class DeltaRule(Recurrence):
    """Linear attention by the gated delta rule.

    With H value heads of dv and Hk key heads of dk:

        q, k, v = silu(causal_conv1d(h @ qkv))
        beta, alpha = h @ beta_alpha
        o = gated_delta_rule(q, k, v, state, decay * softplus(alpha + step_bias), sigmoid(beta), l2_norm=True, scale=dk^-0.5)
        y = (every head of o normalised) * silu(h @ gate) @ output
    """

    kind: ClassVar[str] = "delta"

    qkv: LinearPanels  # (He, 2 * Hk * dk + H * dv)
    gate: LinearPanels  # (He, H * dv)
    beta_alpha: LinearPanels  # (He, 2 * H)
    convolution: np.ndarray
    decay: np.ndarray  # (H,), usually -e^A_log
    step_bias: np.ndarray  # (H,)
    norm: np.ndarray  # (dv,), of every head
    output: LinearPanels
    key_heads: int
    tiled: bool = False  # whether head h reads key head h mod Hk, and not h // (H / Hk)
    output_bias: np.ndarray | None = None

    def inputs(self) -> dict[str, LinearPanels]:
        return {"qkv": self.qkv, "gate": self.gate, "beta_alpha": self.beta_alpha}

    def sizes(self) -> RecurrentSizes:
        heads, columns, (taps, channels) = len(self.decay), len(self.norm), self.convolution.shape
        rows = max(channels - heads * columns, 0) // (2 * self.key_heads)
        return RecurrentSizes(heads, columns, self.key_heads, rows, taps, channels)

    def input_width(self) -> int:
        s = self.sizes()
        return 2 * s.key_heads * s.rows + 2 * s.width + 2 * s.heads

    def vectors(self) -> dict[str, int]:
        s = self.sizes()
        return {"decay": s.heads, "step_bias": s.heads, "norm": s.columns}

    def _check_sized(self, name: str) -> None:
        super()._check_sized(name)
        _require_positive(f"{name}.key_heads", self.key_heads)
        require(isinstance(self.tiled, bool), CLASS, f"{name}.tiled", "True or False", self.tiled)
        _require_vectors(name, {"decay": self.decay, "norm": self.norm})


@dataclass(frozen=True, eq=False)
class Mamba(Recurrence):
    """The recurrence of Mamba2.

    With H heads of P in G groups, and states of N rows:

        z, xbc, dt = h @ input
        x, b, c = silu(causal_conv1d(xbc) + convolution_bias)
        y = selective_state_update(x, dt, decay, b, c, state, d=skip, dt_bias=step_bias)
        y = (every group of heads of y * silu(z) normalised as one row) @ output
    """

    kind: ClassVar[str] = "mamba"

    input: LinearPanels  # (He, 2 * H * P + 2 * G * N + H)
    convolution: np.ndarray
    decay: np.ndarray  # (H,), usually -e^A_log
    step_bias: np.ndarray  # (H,)
    skip: np.ndarray  # (H,)
    norm: np.ndarray  # (H * P,)
    output: LinearPanels
    groups: int
    convolution_bias: np.ndarray | None = None  # (C,)
    output_bias: np.ndarray | None = None

    def inputs(self) -> dict[str, LinearPanels]:
        return {"input": self.input}

    def sizes(self) -> RecurrentSizes:
        heads, (taps, channels) = len(self.decay), self.convolution.shape
        rows = max(channels - len(self.norm), 0) // (2 * self.groups)
        return RecurrentSizes(heads, len(self.norm) // max(heads, 1), self.groups, rows, taps, channels)

    def input_width(self) -> int:
        s = self.sizes()
        return 2 * s.width + 2 * s.key_heads * s.rows + s.heads

    def vectors(self) -> dict[str, int]:
        s = self.sizes()
        bias = {} if self.convolution_bias is None else {"convolution_bias": s.channels}
        return {"decay": s.heads, "step_bias": s.heads, "skip": s.heads, "norm": s.width, **bias}

    def _check_sized(self, name: str) -> None:
        super()._check_sized(name)
        _require_positive(f"{name}.groups", self.groups)
        _require_vectors(name, {"decay": self.decay, "norm": self.norm})


@dataclass(frozen=True, eq=False)
class ShortConvolution(Recurrence):
    """A convolution between two gates.

    Of rows h of the hidden state:

        b, c, x = h @ input + input_bias
        y = (c * (causal_conv1d(b * x) + convolution_bias)) @ output + output_bias
    """

    kind: ClassVar[str] = "convolution"

    input: LinearPanels  # (He, 3 * He)
    convolution: np.ndarray
    output: LinearPanels
    input_bias: np.ndarray | None = None
    convolution_bias: np.ndarray | None = None
    output_bias: np.ndarray | None = None

    def inputs(self) -> dict[str, LinearPanels]:
        return {"input": self.input}

    def sizes(self) -> RecurrentSizes:
        taps, channels = self.convolution.shape
        return RecurrentSizes(1, channels, 0, 0, taps, channels)

    def input_width(self) -> int:
        return 3 * self.sizes().width

    def vectors(self) -> dict[str, int]:
        lengths = {"input_bias": self.input_width(), "convolution_bias": self.sizes().channels}
        return {name: length for name, length in lengths.items() if getattr(self, name) is not None}


class StatePlaces(NamedTuple):
    """Where a row of states has those of a layer: its matrices, then the inputs that its convolution keeps."""

    state: int
    kept: int


def state_places(recurrences: Sequence[Recurrence]) -> tuple[list[StatePlaces], int]:
    """Of every layer with a state, in order, and the values of a row."""

    def next_places() -> Iterator[int]:
        at = 0
        for recurrence in recurrences:
            sizes = recurrence.sizes()
            for shape in (sizes.state, sizes.kept):
                yield at
                at += -(-int(np.prod(shape)) // STATE_ALIGNMENT) * STATE_ALIGNMENT
        yield at

    *places, size = next_places()
    return [StatePlaces(*pair) for pair in zip(places[::2], places[1::2], strict=True)], size


def _require_positive(name: str, value: int) -> None:
    require(is_int(value) and value > 0, CLASS, name, "an integer > 0", value)


def _require_vectors(name: str, vectors: dict[str, np.ndarray]) -> None:
    for vector, given in vectors.items():
        require_vector(f"{name}.{vector}", given, len(given) if isinstance(given, np.ndarray) and given.ndim == 1 else 0)
