"""The only source of randomness: a pure function of (seed, position, token).

The bits are MurmurHash3_x86_32 with hash seed 0 of the 16-byte little-endian record
``<u64 seed, u32 position, u32 token>``; `uniform`, `exponential` and `gumbel` noise follow from them. `position` is the
index of the token being drawn in its own sequence, prompt included, so a draw never depends on the rest of the batch, threads
or backend.

This is the only operator outside `decodestep.ops`: references of operators that draw need its noise, and references may only
import from layers below the operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import Integers
from decodestep._base.checks import is_int, is_uint64, refuse, require
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep.random import cpu, reference
from decodestep.random.reference import SAMPLE_HIGH as SAMPLE_HIGH
from decodestep.random.reference import SAMPLE_LOW as SAMPLE_LOW
from decodestep.random.reference import XTC_COIN as XTC_COIN

Field: TypeAlias = "int | Integers"  # of one record or of many
Noise: TypeAlias = Any  # a NumPy scalar, array or tensor, as the arguments are

SEED_BITS = 53  # of a seed that nobody has given, as many as JavaScript's numbers hold: it must come back as it was reported


def noise_bits(seed: Field, position: Field, token: Field, *, backend: str = "auto") -> Noise:
    """MurmurHash3_x86_32 of each record.

        for every broadcast index i:  bits[i] = murmur3_32(le64(seed[i]) + le32(position[i]) + le32(token[i]), seed=0)

    Args:
        seed: integers in [0, 2^64), a scalar or an array of an integer dtype (NumPy or torch).
        position: integers in [0, 2^32), likewise.
        token: as position; the three are broadcast together.
        backend: "auto", "cpu" or "reference".

    Returns:
        uint32 of the broadcast shape: an array, or a tensor if any argument is one; np.uint32 for three scalars.

    Raises:
        ValueError: for a value out of range, a bool, a float, or shapes that do not broadcast.

    Source:
        MurmurHash3_x86_32 by Austin Appleby; the record is the one that SGLang's seeded sampler hashes.
    """
    return _noise("noise_bits", seed, position, token, backend)


def uniform(seed: Field, position: Field, token: Field, *, backend: str = "auto") -> Noise:
    """float32 noise in (0, 1): u = min((float32(bits) + 0.5) * 2^-32, 1 - 2^-24), with its finest steps near 0.

    The conversion and the addition round to nearest even. Arguments, returns and raises: as `noise_bits`.
    """
    return _noise("uniform", seed, position, token, backend)


def exponential(seed: Field, position: Field, token: Field, *, backend: str = "auto") -> Noise:
    """float32 Exp(1) noise: q = -log1p(-u) with the `uniform` u.

    The winner of a race, the largest p / q, has a small q, where the steps of u are finest. log1p is that of
    `decodestep._base.exact_math`. Arguments, returns and raises: as `noise_bits`.
    """
    return _noise("exponential", seed, position, token, backend)


def gumbel(seed: Field, position: Field, token: Field, *, backend: str = "auto") -> Noise:
    """float32 standard Gumbel noise: g = -log(q) with the `exponential` q, itself rounded to float32 first.

    The first argmax of score + g draws from softmax(score). Arguments, returns and raises: as `noise_bits`.
    """
    return _noise("gumbel", seed, position, token, backend)


def sample_seed(seed: int, sample: int) -> int:
    """The seed of a sample of a prompt with this seed.

        sample 0:  seed
        sample k:  (noise_bits(seed, k, SAMPLE_LOW) + 2^32 * noise_bits(seed, k, SAMPLE_HIGH)) mod 2^53

    Args:
        seed: an integer in [0, 2^64).
        sample: an integer in [0, 2^32).

    Returns:
        An integer: the seed itself, or one in [0, 2^53). All samples above 0 of one seed have different seeds.

    Raises:
        ValueError: for a value out of range.
    """
    for name, value, bits in (("seed", seed, 64), ("sample", sample, 32)):
        ok = is_int(value) and 0 <= value < 2**bits
        require(ok, "sample_seed", name, f"an integer in [0, 2^{bits})", value)
    if sample == 0:
        return int(seed)
    low, high = (int(noise_bits(seed, sample, token)) for token in (SAMPLE_LOW, SAMPLE_HIGH))
    return (high << 32 | low) % 2**SEED_BITS


def _noise(op: str, seed: Field, position: Field, token: Field, backend: str) -> Noise:
    given = (seed, position, token)
    records = [
        _integers(op, name, value, bound)
        for name, value, bound in zip(("seed", "position", "token"), given, (2**64, 2**32, 2**32), strict=True)
    ]
    try:
        shape = np.broadcast_shapes(*(r.shape for r in records))
    except ValueError:
        refuse(op, "seed, position and token", "of shapes that broadcast", [r.shape for r in records])
    backend = choose(op, backend, {"cpu": None, "reference": None})
    kernel: Callable[..., np.ndarray] = cpu.noise if backend == "cpu" else reference.noise
    noise = np.asarray(run(op, backend, kernel, op, *records, shape))  # NumPy's arithmetic makes scalars of 0-d arrays
    if not any(arrays.is_array(value) for value in given):
        return noise[()]
    return arrays.like(next((value for value in given if arrays.is_torch(value)), None), noise)


def _integers(op: str, name: str, value: object, bound: int) -> np.ndarray:
    """The argument as unsigned integers of its width in the record; ValueError outside its range."""
    rule = f"integers in [0, 2^{bound.bit_length() - 1})"
    if is_int(value):
        require(0 <= value < bound, op, name, rule, value)
        return np.array(value, np.uint64 if bound > 2**32 else np.uint32)
    array = arrays.as_array(op, name, value)
    if array.dtype.kind == "f" and not arrays.is_array(value):
        array = _exact(array, value)
    require(array.dtype.kind in "iu", op, name, rule, array)
    if array.size:
        low, high = int(array.min()), int(array.max())
        require(low >= 0 and high < bound, op, name, rule, low if low < 0 else high)
    return array.astype(np.uint64 if bound > 2**32 else np.uint32, copy=False)


def _exact(array: np.ndarray, value: object) -> np.ndarray:
    """The integers of a list that NumPy has turned into floats, because some are below 2^63 and some above; else `array`."""
    given = np.asarray(value, object)
    ok = given.size > 0 and all(map(is_uint64, given.flat))
    return given.astype(np.uint64) if ok else array
