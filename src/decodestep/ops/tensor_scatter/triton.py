"""tensor_scatter on a GPU: one launch moves the update's bytes, in the widest words that its rows allow."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
import triton
import triton.language as tl

from decodestep._base.devices import to_device

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BLOCK = 1024


def write(
    past_cache: torch.Tensor, update: torch.Tensor, starts: np.ndarray, axis: int, out: torch.Tensor | None
) -> torch.Tensor:
    """`out`, or a new tensor, with the update in it."""
    if out is None:
        present = torch.empty(past_cache.shape, dtype=past_cache.dtype, device=past_cache.device)
        present.copy_(past_cache)
    else:
        present = out
        if _storage(update) == _storage(out):  # as if the update had been copied first
            update = update.clone()
        if present.data_ptr() != past_cache.data_ptr() or present.stride() != past_cache.stride():
            present.copy_(past_cache.clone() if _storage(past_cache) == _storage(out) else past_cache)
    scatter(present, update, starts, axis)
    return present


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def scatter(present: torch.Tensor, update: torch.Tensor, starts: np.ndarray, axis: int) -> None:
    """Writes `update` into `present`; linear starts never wrap, so that the modulus does not change them."""
    if not update.numel():
        return
    shape, new_shape = _folded_shape(present, axis), _folded_shape(update, axis)
    try:
        target = _words(present).view(shape)
    except RuntimeError:  # its axes do not fold into four: a packed copy, and back
        packed = present.contiguous()
        scatter(packed, update, starts, axis)
        present.copy_(packed)
        return
    source = _words(update).reshape(new_shape)
    target, source = _widest(target, source)
    batch, outer, steps, run = source.shape
    if outer and run:
        _scatter[(batch * outer * steps, triton.cdiv(run, _BLOCK))](
            target, source, to_device(starts, present.device), *target.stride(), *source.stride(),
            outer, target.shape[2], steps, run, BLOCK=_BLOCK,
        )  # fmt: skip


@triton.jit
def _scatter(
    target, source, starts, target_b, target_o, target_r, target_i, source_b, source_o, source_r, source_i,
    outer, rows, steps, run, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    t = at % steps
    o = at // steps % outer
    b = at // steps // outer
    slot = (tl.load(starts + b) % rows + t) % rows
    slot = tl.where(slot < 0, slot + rows, slot)  # a remainder has the sign of what is divided
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    words = tl.load(source + b * source_b + o * source_o + t * source_r + i * source_i, mask=i < run, other=0)
    tl.store(target + b * target_b + o * target_o + slot * target_r + i * target_i, words, mask=i < run)


def _folded_shape(tensor: torch.Tensor, axis: int) -> tuple[int, int, int, int]:
    shape = tensor.shape
    return shape[0], prod(shape[1:axis]), shape[axis], prod(shape[axis + 1 :]) * (2 if tensor.is_complex() else 1)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers; a complex number as two."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.view(_WORDS[plain.element_size()])


def _widest(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in the widest words in which all have whole rows and addresses."""
    for size, dtype in sorted(_WORDS.items(), reverse=True):
        if size > tensors[0].element_size() and all(_divisible(tensor, size) for tensor in tensors):
            return [tensor.view(dtype) for tensor in tensors]
    return list(tensors)


def _divisible(tensor: torch.Tensor, size: int) -> bool:
    bytes_of = tensor.element_size()
    steps = [tensor.data_ptr(), tensor.shape[3] * bytes_of, *(stride * bytes_of for stride in tensor.stride()[:3])]
    return tensor.stride(3) == 1 and all(step % size == 0 for step in steps)
