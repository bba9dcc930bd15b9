"""The weights of feed-forward blocks: a dense block, or the experts of a mixture side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from decodestep._base.checks import Phrase, is_int, refuse, require, require_choice, shape_text
from decodestep.weights.device_rows import DeviceRows
from decodestep.weights.linear_panels import PANEL, LinearPanels
from decodestep.weights.packed import PackedWeight

if TYPE_CHECKING:
    import torch

_CLASS = "FeedForward"
GATES = ("silu", "gelu", "clamped_silu")  # activations of a gate; their places are the numbers of the core

Weight: TypeAlias = PackedWeight | LinearPanels | DeviceRows


@dataclass(frozen=True, eq=False)
class FeedForward:
    """`count` blocks of one shape, y = swiglu(x @ gate, x @ up) @ down, side by side in three weights.

    With gate = None, y = max(x @ up, 0)^2 @ down. In swiglu the `activation` may be another than SiLU, if there is a gate: the
    tanh form of GELU; or clamped SiLU, with which g = min(gate, 7) and swiglu is g / (1 + exp(-1.702 g)) * (up + 1) of up
    brought into [-7, 7]. Biases are added to each product. A weight is a `PackedWeight`, as GGUF files store experts, a
    `LinearPanels` packed from one, or a `DeviceRows`, for kernels on a device. In panels F and He must be multiples of 32 if
    count is more than 1, so that no panel belongs to two blocks.

    Attributes:
        gate: (He, count * F); block e has the outputs from e * F on. None for a block without.
        up: likewise.
        down: (F, count * He); block e has the outputs from e * He on.
        count: 1 or more.
        activation: of the gate: "silu", "gelu" or "clamped_silu".
        gate_bias: float32, one value for each output, added to the outputs of gate; or None.
        up_bias: likewise, of up.
        down_bias: likewise, of down.

    Raises:
        ValueError: if the shapes contradict each other.
    """

    gate: Weight | None
    up: Weight
    down: Weight
    count: int = 1
    activation: str = "silu"
    gate_bias: np.ndarray | None = None
    up_bias: np.ndarray | None = None
    down_bias: np.ndarray | None = None

    def __post_init__(self) -> None:
        require(is_int(self.count) and self.count > 0, _CLASS, "count", "an integer > 0", self.count)
        require_choice(_CLASS, "activation", self.activation, GATES if self.gate is not None else GATES[:1])
        for name in ("gate", "up", "down"):
            weight = getattr(self, name)
            if weight is None and name == "gate":
                continue
            require(isinstance(weight, Weight), _CLASS, name, "a PackedWeight, a LinearPanels or a DeviceRows", weight)
            unit = PANEL if self.count > 1 and isinstance(weight, LinearPanels) else 1
            rule = f"of {self.count} blocks of outputs" + (f", multiples of {PANEL}" if unit > 1 else "")
            require(weight.shape[1] % (self.count * unit) == 0, _CLASS, name, rule, Phrase(shape_text(weight.shape)))
        shapes = {"up": self.up.shape if self.gate is None else self.gate.shape, "down": (self.width, self.count * self.hidden)}
        for name, shape in shapes.items():
            found = getattr(self, name).shape
            require(found == shape, _CLASS, name, f"of shape {shape_text(shape)}", Phrase(shape_text(found)))
        for name, weight in (("gate", self.gate), ("up", self.up), ("down", self.down)):
            self._check_bias(f"{name}_bias", weight)

    def _check_bias(self, name: str, weight: Weight | None) -> None:
        bias = getattr(self, name)
        if bias is None:
            return
        ok = weight is not None and isinstance(bias, np.ndarray) and bias.dtype == np.float32 and bias.shape == weight.shape[1:]
        rule = "None without a gate" if weight is None else f"float32 of shape {weight.shape[1]}"
        require(ok, _CLASS, name, rule, bias)

    @property
    def hidden(self) -> int:
        """He, the width of x and y."""
        return self.up.shape[0]

    @property
    def width(self) -> int:
        """F, the width between the products."""
        return self.up.shape[1] // self.count

    @property
    def weights(self) -> tuple[Weight, ...]:
        """gate, if there is one, up and down."""
        return (self.up, self.down) if self.gate is None else (self.gate, self.up, self.down)

    @property
    def has_biases(self) -> bool:
        return not (self.gate_bias is None and self.up_bias is None and self.down_bias is None)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(w.rows.nbytes if isinstance(w, PackedWeight) else w.nbytes for w in self.weights)

    def to(self, device: torch.device | str) -> FeedForward:
        """A copy in the memory of a torch device. Raises ValueError unless the weights are dense `PackedWeight`s."""
        for weight in self.weights:
            require(
                isinstance(weight, PackedWeight),
                _CLASS,
                "weights",
                "PackedWeights, to be copied",
                Phrase(type(weight).__name__),
            )
        copies = [DeviceRows.of(w, device) for w in self.weights if isinstance(w, PackedWeight)]
        return replace(self, gate=None if self.gate is None else copies[0], up=copies[-2], down=copies[-1])

    def block(self, number: int) -> FeedForward:
        """One of the blocks, by its number in [0, count); its weights are views."""
        ok = is_int(number) and 0 <= number < self.count
        require(ok, _CLASS, "number", f"an integer in [0, {self.count})", number)
        *gate, up = (part_of_outputs(weight, number * self.width, self.width) for weight in self.weights[:-1])
        down = part_of_outputs(self.down, number * self.hidden, self.hidden)
        biases = (
            None if bias is None else bias.reshape(self.count, -1)[number]
            for bias in (self.gate_bias, self.up_bias, self.down_bias)
        )
        return FeedForward(gate[0] if gate else None, up, down, 1, self.activation, *biases)


def on_host(weight: Weight) -> PackedWeight | LinearPanels:
    """The weight itself. Raises ValueError if it is on a device."""
    if isinstance(weight, DeviceRows):
        refuse(_CLASS, "weights", "on the CPU for this backend", Phrase("DeviceRows"))
    return weight


def part_of_outputs(weight: Weight, first: int, count: int) -> Weight:
    """A view of outputs [first, first + count) of a weight; in panels both must be multiples of 32."""
    if isinstance(weight, DeviceRows):
        return DeviceRows(weight.values[first : first + count])
    if isinstance(weight, PackedWeight):
        return replace(weight, rows=weight.rows[first : first + count])
    panels = -(-weight.outputs // PANEL)
    data = weight.data.reshape(panels, -1)[first // PANEL : -(-(first + count) // PANEL)]
    return replace(weight, data=data.reshape(-1), outputs=count)
