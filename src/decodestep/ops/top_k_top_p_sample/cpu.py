"""The samplers in the native core."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from decodestep import _native
from decodestep._base import arrays
from decodestep._base.threads import threads
from decodestep.ops.top_k_top_p_sample.rules import GivenNoise, Outputs, Rules, SeededNoise

# As in csrc/sampling/decode_step/decode_step.h.
_NUMBERS = {np.dtype(np.float32): 0, np.dtype(ml_dtypes.bfloat16): 1, np.dtype(np.float16): 2}


def sample_v1(logits: np.ndarray, k: np.ndarray, p: np.ndarray, rules: Rules) -> Outputs:
    return _sample(logits, k, p, None, rules)


def sample_v2(logits: np.ndarray, k: np.ndarray, p: np.ndarray, m: np.ndarray, rules: Rules) -> Outputs:
    return _sample(logits, k, p, m.astype(np.float32), rules)


def apply(logits: np.ndarray, p: np.ndarray | None, k: np.ndarray | None) -> np.ndarray:
    rows, dtype = _bits(arrays.contiguous_rows(logits))
    out = np.empty(logits.shape, logits.dtype)
    _native.apply_top_k_top_p(
        logits=rows,
        dtype=dtype,
        k=None if k is None else arrays.contiguous(k),
        p=None if p is None else p.astype(np.float32),
        out=_bits(out)[0],
        threads=_threads(logits),
    )
    return out


def _sample(logits: np.ndarray, k: np.ndarray, p: np.ndarray, m: np.ndarray | None, rules: Rules) -> Outputs:
    noise = rules.noise
    seeded = noise if isinstance(noise, SeededNoise) else None
    chosen = None if rules.need_survivors else np.empty(len(logits), np.int64)
    masked = np.empty(logits.shape, np.float32) if rules.need_logits else None
    ids = np.empty(logits.shape, np.int64) if rules.need_survivors else None
    values = np.empty(logits.shape, np.float32) if rules.need_survivors else None
    rows, dtype = _bits(arrays.contiguous_rows(logits))
    _native.top_k_top_p_sample(
        logits=rows,
        dtype=dtype,
        k=arrays.contiguous(k),
        p=p.astype(np.float32),
        m=m,
        largest_k=rules.largest_k,
        input_is_logits=rules.input_is_logits,
        kernel_exact=rules.kernel_exact,
        guess=rules.guess,
        q=arrays.contiguous_rows(noise.q) if isinstance(noise, GivenNoise) else None,
        seed=None if seeded is None else seeded.seeds,
        position=None if seeded is None else seeded.positions.astype(np.uint32),
        eps=rules.eps,
        chosen=chosen,
        masked=masked,
        ids=ids,
        values=values,
        threads=_threads(logits),
    )
    return Outputs(chosen, masked, ids, values)


def _bits(rows: np.ndarray) -> tuple[np.ndarray, int]:
    """The rows, half-precision as uint16 bits, and the number of their dtype in the core."""
    number = _NUMBERS[rows.dtype]
    return rows if number == 0 else rows.view(np.uint16), number


def _threads(logits: np.ndarray) -> int:
    return threads() if len(logits) > 1 else 1
