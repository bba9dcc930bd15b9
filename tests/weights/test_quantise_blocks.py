"""The native core's blocks: K-quants against the same search in NumPy, whose sums are in another order; the others exactly."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from decodestep import _native
from decodestep.models.quantise import quantise
from decodestep.weights import Format, LinearPanels, PackedWeight
from decodestep.weights.native import quantise_blocks
from support import k_quants_oracle
from support.core_builds import TIERS, printed_under

K_QUANTS = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]
SMALL = [Type.Q4_0, Type.Q5_0]
KINDS = [*K_QUANTS, *SMALL]


def samples(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    normal = rng.normal(size=(count, 256))
    return {
        "normal": normal,
        "of many magnitudes": normal * 10.0 ** rng.integers(-4, 4, (count, 8)).repeat(32, axis=1),
        "on one side of zero": 0.1 + normal / 100,
        "positive": rng.random((count, 256)),
        "integers": rng.integers(-3, 4, (count, 256)),
        "near the least float16": normal / 10**6,
        "constant": np.full((count, 256), -3.0),
        "zero": np.zeros((count, 256)),
        "one outlier": np.where(np.arange(256) == 77, 1000, normal),
    }


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("name", samples(1))
def test_small_blocks_are_those_of_the_gguf_package(kind, name):
    x = samples(151)[name].astype(np.float32)
    np.testing.assert_array_equal(quantise(x, kind), quantize(x, kind).view(np.uint8))


@pytest.mark.parametrize("kind", [*KINDS, Type.Q8_0])
@pytest.mark.parametrize("outputs", [1, 32, 45])
def test_panels_are_made_of_the_same_blocks(kind, outputs, rng):
    x, format_ = rng.normal(size=(outputs, 512)).astype(np.float32), Format[kind.name]
    blocks = quantise_blocks(x, format_)
    packed = LinearPanels.pack(PackedWeight.from_array(x.T), format_)
    np.testing.assert_array_equal(packed.data, LinearPanels.pack(PackedWeight(blocks, format_, 512)).data)
    np.testing.assert_array_equal(packed.rows().rows, blocks)
    assert packed.has_finite_scales()
    x[-1, 300] = np.nan
    assert not LinearPanels.pack(PackedWeight.from_array(x.T), format_).has_finite_scales()


@pytest.mark.parametrize("kind", K_QUANTS)
@pytest.mark.parametrize("name", samples(1))
def test_blocks_are_as_near_as_those_of_numpy(kind, name):
    x = samples(151)[name].astype(np.float32)
    mine, expected = quantise(x, kind), k_quants_oracle.quantise(x, kind)
    # The others chose another of two grids that are about as good, such as twos and threes in Q2_K for values that are alike.
    assert (mine == expected).all(axis=1).mean() > (0.2 if kind == Type.Q2_K else 0.5)
    assert error(mine, x, kind) <= 1.005 * error(expected, x, kind)


@pytest.mark.parametrize("kind", K_QUANTS)
def test_d_is_refitted_where_no_minimum_is_needed(kind, rng):
    x = ((1 + rng.normal(size=(151, 256)) / 1000) * rng.gamma(2, 0.1, (151, 8)).repeat(32, axis=1)).astype(np.float32)
    assert error(quantise(x, kind), x, kind) <= 1.2 * error(
        k_quants_oracle.quantise(x, kind), x, kind
    )  # of nearly constant values


def error(blocks: np.ndarray, x: np.ndarray, kind: Type) -> float:
    return float(np.square(dequantize(blocks, kind).astype(float) - x).sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.2e9, -3e38])
def test_what_a_block_cannot_hold_spoils_that_block_alone(kind, value):
    x = samples(5)["normal"].astype(np.float32)
    good = quantise(x, kind)
    x[2, 200] = value
    blocks = quantise(x, kind)
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(dequantize(blocks[2:3], kind)).all()
    others = [0, 1, 3, 4]
    np.testing.assert_array_equal(blocks[others], good[others])


@pytest.mark.parametrize("kind", KINDS)
def test_every_thread_count_and_number_of_blocks_gives_the_same_bits(kind):
    x = np.concatenate([each.astype(np.float32) for each in samples(40).values()])
    expected = quantise(x, kind)
    for count, threads in ((1, 1), (2, 3), (63, 2), (65, 4), (len(x), 7)):
        blocks = np.full((count + 1, expected.shape[1]), 0xAB, np.uint8)
        _native.quantise_blocks(values=x[:count], format=int(Format[kind.name]), blocks=blocks[:count], threads=threads)
        np.testing.assert_array_equal(blocks[:count], expected[:count])
        assert (blocks[count] == 0xAB).all()


def made() -> str:
    """Blocks of all kinds in hexadecimal."""
    x = np.concatenate([each.astype(np.float32) for each in samples(5).values()])
    return b"".join(quantise(x, kind).tobytes() for kind in KINDS).hex()


@pytest.mark.tiers
@pytest.mark.parametrize("isa", TIERS)
def test_every_build_gives_the_same_bits(isa):
    assert printed_under(isa, "import test_quantise_blocks; print(test_quantise_blocks.made())") == made()


@pytest.mark.parametrize(
    ("values", "format_", "blocks", "message"),
    [
        ((2, 255), Format.Q4_K, (2, 144), "whole blocks"),
        ((2, 256), Format.Q4_1, (2, 160), "no values can be rounded to that format"),
        ((2, 256), Format.Q4_K, (1, 144), "wrong shape"),
        ((2, 256), Format.Q6_K, (2, 144), "wrong shape"),
        ((2, 256), 99, (2, 272), "format"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(values, format_, blocks, message):
    with pytest.raises(ValueError, match=message):
        _native.quantise_blocks(
            values=np.zeros(values, np.float32), format=int(format_), blocks=np.zeros(blocks, np.uint8), threads=1
        )
