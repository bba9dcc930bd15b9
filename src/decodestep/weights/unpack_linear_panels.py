"""Rows of a file's format from `LinearPanels`: the inverse of packing. csrc/linear/linear_panels.h has the panels' order."""

from __future__ import annotations

import numpy as np

from decodestep.weights.packed import DENSE_FORMATS, Format


def unpack_rows(data: np.ndarray, format_: Format, block: int, block_bytes: int, inputs: int) -> np.ndarray:
    """data: panels, each a row of blocks of `block` inputs in `block_bytes`. Returns rows of all outputs, padding included."""
    blocks = data.reshape(-1, -(-inputs // block), block_bytes)  # (panel, block, byte)
    if format_ in DENSE_FORMATS:
        return _dense_rows(blocks, 4 if format_ == Format.F32 else 2, inputs)
    rows = _k_quant_rows(blocks, format_) if block == 256 else _rows_of_small_blocks(blocks, format_)
    return rows.swapaxes(1, 2).reshape(len(blocks) * 32, -1)  # from (panel, block, output, byte)


def _dense_rows(blocks: np.ndarray, size: int, inputs: int) -> np.ndarray:
    values = blocks.reshape(len(blocks), -1, 32, size)  # (panel, input, output, byte of a value)
    values = values.swapaxes(1, 2)[:, :, :inputs]  # (panel, output, input, byte of a value)
    return np.ascontiguousarray(values).reshape(-1, inputs * size)


def _of_outputs(part: np.ndarray, size: int) -> np.ndarray:
    """Items of `size` bytes, each of 32 outputs side by side, as (..., output, byte)."""
    items = part.reshape(*part.shape[:-1], -1, 32, size)  # (..., item, output, byte)
    return items.swapaxes(-3, -2).reshape(*part.shape[:-1], 32, -1)


# Of panels of blocks of 32: bytes of a block's values, of their fifth bits, and of each scale or minimum.
_SMALL = {Format.Q8_0: (1024, 0, 2), Format.Q5_0: (512, 128, 2), Format.Q5_1: (512, 128, 2), Format.MXFP4: (512, 0, 1)}


def _rows_of_small_blocks(blocks: np.ndarray, format_: Format) -> np.ndarray:
    values, fifth, size = _SMALL.get(format_, (512, 0, 2))
    body, head = _of_outputs(blocks[..., :values], 4), _of_outputs(blocks[..., values + fifth :], size)
    if format_ == Format.Q8_0:
        body = body ^ 0x80
    if not fifth:
        return np.concatenate([head, body], axis=-1)
    bits = np.unpackbits(_of_outputs(blocks[..., values : values + fifth], 4)[..., None], axis=-1, bitorder="little")
    bits = np.packbits(bits.swapaxes(-1, -2).reshape(*bits.shape[:-2], 32), axis=-1, bitorder="little")  # from (e, j) to (j, e)
    return np.concatenate([head, bits, body], axis=-1)


# Of a piece, 32 inputs of a block: the bytes of its upper bits and of its scales.
_OF_PIECE = {Format.Q4_K: (0, 64), Format.Q5_K: (128, 64), Format.Q6_K: (256, 64), Format.IQ4_XS: (0, 32)}


def _k_quant_rows(blocks: np.ndarray, format_: Format) -> np.ndarray:
    upper, scale_bytes = _OF_PIECE[format_]
    size = 8 * (512 + upper + scale_bytes)
    pieces = blocks[..., :size].reshape(*blocks.shape[:2], 8, -1)  # (panel, block, piece, byte)
    tail = _of_outputs(blocks[..., size:], 2)
    nibbles, scales = _of_outputs(pieces[..., :512], 4), pieces[..., 512 + upper :]
    if format_ == Format.IQ4_XS:
        return _iq4_xs(np.moveaxis(nibbles, 2, 3), np.moveaxis(scales, 2, 3), tail)
    q = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)  # (panel, block, piece, output, input)
    bits = _of_outputs(pieces[..., 512 : 512 + upper], 4)
    q, bits = np.moveaxis(q, 2, 3), np.moveaxis(bits, 2, 3)  # (panel, block, output, piece, input or byte)
    if format_ == Format.Q6_K:
        return _q6_k(q, bits, np.moveaxis(_of_outputs(scales, 2), 2, 3), tail)
    scale_and_minimum = scales.reshape(*scales.shape[:3], 2, 32).transpose(3, 0, 1, 4, 2)  # (which, ..., output, piece)
    parts = [tail, _packed_scales(*scale_and_minimum)]
    if format_ == Format.Q5_K:  # bit j of byte e is that of input 4j + e of a piece, in the file bit `piece` of byte 4j + e
        of_input = bits[..., None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1  # (..., piece, j, e)
        parts.append(_join_bits(of_input.reshape(*q.shape[:-1], 32)))
    return np.concatenate([*parts, _join_halves(q)], axis=-1)


def _join_bits(bits: np.ndarray) -> np.ndarray:
    """Bit `piece` of each input's byte."""
    return np.bitwise_or.reduce(bits << np.arange(8, dtype=np.uint8)[:, None], axis=-2)


def _join_halves(q: np.ndarray) -> np.ndarray:
    """Bytes whose low nibbles are an even piece, and whose high ones the next."""
    return (q[..., ::2, :] | q[..., 1::2, :] << 4).reshape(*q.shape[:-2], -1)


def _packed_scales(scales: np.ndarray, minima: np.ndarray) -> np.ndarray:
    """Twelve bytes of eight scales and minima of six bits."""
    low, high = scales[..., :4], scales[..., 4:]
    least, most = minima[..., :4], minima[..., 4:]
    return np.concatenate([low | high >> 4 << 6, least | most >> 4 << 6, high & 15 | most << 4], axis=-1)


def _q6_k(q: np.ndarray, bits: np.ndarray, scales: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """Each half of a block has pieces 0 to 3: low nibbles of 0 and 1, high ones of 2 and 3 in 64 bytes; upper bits in 32."""
    halves = q.reshape(*q.shape[:-2], 2, 4, 32)
    low = (halves[..., :2, :] | halves[..., 2:, :] << 4).reshape(*q.shape[:-2], 128)
    bytes_ = bits.reshape(*bits.shape[:-1], 2, 1, 4) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3  # (..., half piece, j, e)
    upper = bytes_.reshape(*q.shape[:-2], 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = np.bitwise_or.reduce(upper, axis=-2).reshape(*q.shape[:-2], 64)
    return np.concatenate([low, high, scales.reshape(*q.shape[:-2], 16), tail], axis=-1)


def _iq4_xs(nibbles: np.ndarray, scales: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """scales: (panel, block, output, piece), signed; the file has them plus 32: four bits, then their upper two."""
    stored = scales + np.uint8(32)
    low = stored[..., ::2] & 15 | stored[..., 1::2] << 4
    high = np.bitwise_or.reduce((stored >> 4).reshape(*stored.shape[:-1], 2, 4) << np.array([0, 2, 4, 6], np.uint8), axis=-1)
    return np.concatenate([tail, high, low, nibbles.reshape(*nibbles.shape[:-2], -1)], axis=-1)
