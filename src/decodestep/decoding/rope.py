"""Rotary embeddings: the frequency of every pair, the factor of sine and cosine, and their tables.

The scalings are those of transformers' `modeling_rope_utils`. Frequencies are computed in float64 and rounded to float32, so
that they have the same bits everywhere: float32 powers differ between math libraries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# YaRN's turns in the original context, where a checkpoint has 0 or none.
YARN_FAST, YARN_SLOW = 32.0, 1.0


@dataclass(frozen=True, eq=False)
class Rope:
    """The rotary embedding of positions.

    inverse_frequencies: float32 (pairs,). factor: of sine and cosine.
    long_frequencies: used instead for texts of more than `original` tokens; None if there are none. As in transformers, the
        length of a text decides for all its new tokens, and cached keys are not changed.
    query_growth, query_interval: queries are also multiplied by 1 + query_growth * ln(1 + floor(position / query_interval)).
    """

    inverse_frequencies: np.ndarray
    factor: float = 1.0
    long_frequencies: np.ndarray | None = None
    original: int = 0
    query_growth: float = 0.0
    query_interval: int = 1

    def table(
        self, positions: np.ndarray, long: np.ndarray | None = None, pairs: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """sin and cos, float32 (T, pairs). long: bool (T,), which positions take the long frequencies; None: none. pairs: of
        a head, of which those after the rope's own stay as they are; None: its own alone."""
        sin, cos = rope_table(positions, self.inverse_frequencies, self.factor)
        if self.long_frequencies is not None and long is not None and long.any():
            sin[long], cos[long] = rope_table(positions[long], self.long_frequencies, self.factor)
        pad = ((0, 0), (0, (pairs or 0) - sin.shape[1]))
        return (np.pad(sin, pad), np.pad(cos, pad, constant_values=1)) if pairs and pad[1][1] else (sin, cos)

    def of_queries(self, table: tuple[np.ndarray, np.ndarray], positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What a `table` of these positions is for queries, which it also multiplies by their factor."""
        if not self.query_growth:
            return table
        factor = 1 + self.query_growth * np.log1p(positions // self.query_interval)[:, None].astype(np.float32)
        sin, cos = table
        return sin * factor, cos * factor

    @property
    def long_after(self) -> int | None:
        """The longest text that takes the short frequencies; None: there are no others."""
        return None if self.long_frequencies is None else self.original


def rope_table(positions: np.ndarray, inverse_frequencies: np.ndarray, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """sin and cos, float32 (T, pairs), of one angle per rope pair, times a factor.

    Angles are float32 products; their sine and cosine are computed in float64 and rounded, to be the same bits everywhere.
    """
    angles = (positions.astype(np.float32)[:, None] * inverse_frequencies).astype(np.float64)
    return (np.sin(angles) * factor).astype(np.float32), (np.cos(angles) * factor).astype(np.float32)


def plain(theta: float, width: int) -> np.ndarray:
    """theta^(-2i / width) for i < width / 2, float32."""
    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return np.float32(1.0) / (theta ** exponent.astype(np.float64)).astype(np.float32)


def proportional(theta: float, width: int, part: float) -> np.ndarray:
    """Those of `plain` for a part of the pairs, and zeros for the others, which are left unchanged."""
    frequencies = plain(theta, width)
    frequencies[int(part * width // 2) :] = 0
    return frequencies


def none(width: int) -> Rope:
    """Frequencies that leave every pair unchanged."""
    return Rope(np.zeros(width // 2, np.float32))


def llama3(theta: float, width: int, *, factor: float, low: float, high: float, original: int) -> np.ndarray:
    """Wavelengths above original / low are stretched by `factor`, those below original / high unchanged, blended in between."""
    frequencies = plain(theta, width).astype(np.float64)
    turns = original * frequencies / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return ((1 - smooth) * frequencies / factor + smooth * frequencies).astype(np.float32)


def yarn(
    theta: float, width: int, *, factor: float, original: int, fast: float, slow: float, truncate: bool = True
) -> np.ndarray:
    """YaRN: pairs that turn more than `fast` times in the original context are unchanged, fewer than `slow` stretched."""

    def pair(turns: float) -> float:
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(fast), pair(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = np.clip((np.arange(width // 2) - low) / ((high - low) or 0.001), 0, 1)
    frequencies = plain(theta, width).astype(np.float64)
    return (ramp * frequencies / factor + (1 - ramp) * frequencies).astype(np.float32)


def longrope(theta: float, width: int, divisors: np.ndarray) -> np.ndarray:
    """Frequencies, each divided by its own factor, as in long-rope."""
    return (plain(theta, width).astype(np.float64) / divisors.astype(np.float64)).astype(np.float32)


def by_length(short: np.ndarray, long: np.ndarray, factor: float, *, original: int, context: int) -> Rope:
    """Long-rope: by the short frequencies alone where no text is longer than `original`, or both are equal."""
    switches = original < context and not np.array_equal(short, long)
    return Rope(short, factor, long if switches else None, original)


def yarn_growth(factor: float, strength: float = 1.0) -> float:
    """YaRN's g(strength) = 0.1 * strength * ln(factor) + 1, and 1 where nothing is stretched."""
    return 0.1 * strength * math.log(factor) + 1.0 if factor > 1 else 1.0


def yarn_factor(factor: float, mscale: float, mscale_all_dim: float) -> float:
    """What YaRN multiplies sine and cosine by."""
    if mscale and mscale_all_dim:
        return yarn_growth(factor, mscale) / yarn_growth(factor, mscale_all_dim)
    return yarn_growth(factor)


def long_factor(factor: float, original: int) -> float:
    """What long-rope multiplies sine and cosine by."""
    return math.sqrt(1 + math.log(factor) / math.log(max(original, 2))) if factor > 1 else 1.0
