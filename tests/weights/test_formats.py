"""The weight formats of Python, of the native core, and of what tests call the core with: one table."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from decodestep import _native
from decodestep.weights import Format
from decodestep.weights.blocks import BLOCKS
from decodestep.weights.linear_panels import packed_bytes
from decodestep.weights.packed import DENSE_DTYPES, row_bytes
from support import native_model_calls
from support.native_call_arguments import PANEL_BLOCKS, ROW_BYTES

OF_CORE = _native.formats()


def test_python_has_the_formats_of_the_core():
    assert [format_.name.lower() for format_ in Format] == [name for name, *_ in OF_CORE]
    assert [int(format_) for format_ in Format] == list(range(len(OF_CORE)))
    assert {*BLOCKS, *(format_.name for format_ in DENSE_DTYPES)} == {format_.name for format_ in Format}


@pytest.mark.parametrize("format_", Format, ids=lambda f: f.name)
def test_every_fact_about_a_format_is_that_of_the_core(format_):
    _, values, size, panel_bytes, halves, rounded = OF_CORE[format_]
    block = BLOCKS.get(format_.name)
    if block is None:
        assert (values, size, halves, rounded) == (1, DENSE_DTYPES[format_].itemsize, (), False)
    else:
        assert block[1:] == (values, size, panel_bytes, halves, rounded)
    inputs = 3 * max(values, 32)
    assert row_bytes(format_, inputs) == ROW_BYTES[format_](inputs) == inputs // values * size
    assert packed_bytes(format_, inputs, 65) == 9 * panel_bytes
    assert PANEL_BLOCKS[format_] == (max(values, 32), panel_bytes)
    assert (format_ in native_model_calls.ROUNDED) == rounded


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_have_the_sizes_and_scales_of_the_gguf_package(name, rng):
    """A float16 number of a block changes its values; NaN in one makes some of them so."""
    block, kind = BLOCKS[name], gguf.GGMLQuantizationType[name]
    assert gguf.GGML_QUANT_SIZES[kind] == (block.values, block.bytes)
    blocks = rng.integers(0, 100, (1, block.bytes), np.uint8)  # no byte of which makes a float16 that is not finite
    assert np.isfinite(gguf.quants.dequantize(blocks, kind)).all()
    for at in block.halves:
        spoilt = blocks.copy()
        spoilt[:, at : at + 2] = np.float16([np.nan]).view(np.uint8)
        assert np.isnan(gguf.quants.dequantize(spoilt, kind)).any()
