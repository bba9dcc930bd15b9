"""Calls every entry point of the native core with arguments right and wrong: `python tests/fuzz_native.py --seconds 10`.

Whatever it is given, the core returns or raises; it never reads or writes outside an array. Only a build with the
address sanitizer sees all of that: `--core` names one, tests/core/test_sanitizers.py makes one. The calls follow from `--seed`
alone, and `--first N` starts at the call that a failure named.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from support import native_model_calls as model
from support import native_sampling_calls as sampling
from support.native_call_arguments import Arguments, Source, built

# Every entry point that takes arguments, and what it may be called with.
CALLS: dict[str, Callable[[Source], Arguments]] = {
    "linear": model.linear,
    "grouped_products": model.grouped_products,
    "head_products": model.head_products,
    "pack_linear_panels": model.pack_linear_panels,
    "unpack_linear_panels": model.unpack_linear_panels,
    "quantise_blocks": model.quantise_blocks,
    "read_file_rows": model.read_file_rows,
    "checksum_bytes": model.checksum_bytes,
    "read_checked_bytes": model.read_checked_bytes,
    "pin_workers": model.pin_workers,
    "linear_panels": model.linear_panels,
    "Decoder": model.decoder,
    "decoder_forward": model.decoder_forward,
    "replay_states": model.replay_states,
    "gather_rows": model.gather_rows,
    "gather_panels": model.gather_panels,
    "rms_norm": model.rms_norm,
    "swiglu": model.swiglu,
    "causal_conv1d": model.causal_conv1d,
    "gated_delta_rule": model.gated_delta_rule,
    "selective_state_update": model.selective_state_update,
    "expert_router": model.expert_router,
    "mixture_of_experts": model.mixture_of_experts,
    "pack_columns": model.pack_columns,
    "mla_prolog": model.mla_prolog,
    "lightning_indexer": model.lightning_indexer,
    "mla_attention": model.mla_attention,
    "decode_step": sampling.decode_step,
    "History": sampling.history,
    "append_token": sampling.append_token,
    "truncate_history": sampling.truncate_history,
    "token_ids": sampling.token_ids,
    "tally": sampling.tally,
    "followers": sampling.followers,
    "SequenceEndings": sampling.sequences,
    "endings": sampling.endings,
    "continuations": sampling.continuations,
    "Row": sampling.row,
    "step_rows": sampling.step_rows,
    "accept_tokens": sampling.accept_tokens,
    "tensor_scatter": model.tensor_scatter,
    "tensor_scatter_in_place": model.tensor_scatter_in_place,
    "noise_bits": sampling.noise(np.uint32),
    "uniform": sampling.noise(np.float32),
    "exponential": sampling.noise(np.float32),
    "gumbel": sampling.noise(np.float32),
    "top_k_top_p_sample": sampling.top_k_top_p_sample,
    "apply_top_k_top_p": sampling.apply_top_k_top_p,
}
WITHOUT_ARGUMENTS = {"DefaultFloats", "isa", "tiers", "compiler", "formats"}
# The address of a function that ctypes made: no other number is its caller's to give.
ADDRESSES = {"set_onnxruntime_registrar"}


def wrong_array(s: Source, a: np.ndarray) -> Any:
    """An array that differs from the right one in shape, values, type, layout or rights."""

    def longer(axis: int, by: int) -> np.ndarray:
        shape = list(a.shape)
        shape[axis] = max(shape[axis] + by, 0)
        if math.prod(shape) > 2**20:
            return a
        return np.resize(a, shape).astype(a.dtype) if a.size else np.ones(shape, a.dtype)

    def at(value: int) -> np.ndarray:
        changed = a.copy()
        if a.size:
            changed.flat[int(s.rng.integers(a.size))] = value
        return changed

    def misaligned() -> np.ndarray:
        return np.ndarray(a.shape, a.dtype, bytearray(1) + bytearray(a.tobytes()), 1)

    def read_only() -> np.ndarray:
        frozen = a.copy()
        frozen.flags.writeable = False
        return frozen

    axis = int(s.rng.integers(a.ndim)) if a.ndim else 0
    changes: list[Callable[[], Any]] = [
        lambda: a.astype(s.one_of(np.float64, np.int8, np.float16, np.bool_, np.int64, np.uint64)),
        lambda: np.zeros(a.shape, "m8[s]"), lambda: a.astype(a.dtype.newbyteorder()), misaligned, read_only,
        lambda: a[..., None], lambda: a.reshape(-1),
        lambda: np.zeros((), a.dtype), lambda: np.broadcast_to(a, a.shape), lambda: np.asfortranarray(a),
        lambda: np.repeat(a, 2, -1)[..., ::2] if a.ndim else a, lambda: a[..., ::-1] if a.ndim else a, lambda: [1, 2],
    ]  # fmt: skip
    if a.ndim:
        changes += [lambda: longer(axis, 1), lambda: longer(axis, -1), lambda: longer(axis, 1000), lambda: a[:0],
                    lambda: np.zeros((2**20, 0, 1, 7, 9)[: a.ndim] if a.ndim > 1 else 0, a.dtype)]  # fmt: skip
    if a.dtype.kind in "iu":
        info = np.iinfo(a.dtype)
        changes += [lambda: at(s.one_of(info.min, info.max, 2**31 % info.max, 1000 % info.max, 0))] * 4
    return s.one_of(*changes)()


def wrong(s: Source, value: Any) -> Any:
    if isinstance(value, np.ndarray) and s.one_of(*[True] * 9, False):
        return wrong_array(s, value)
    if isinstance(value, (list, tuple)) and value and s.one_of(*[True] * 9, False):
        place = s.one_of(*range(len(value)))
        items = [wrong(s, item) if i == place else item for i, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict) and value and s.one_of(*[True] * 9, False):
        name = s.one_of(*value)
        without = {key: item for key, item in value.items() if key != name}
        return without if s.one_of(*[False] * 9, True) else without | {name: wrong(s, value[name])}
    if isinstance(value, (int, float)) and s.one_of(*[True] * 9, False):
        return s.one_of(-1, 0, 1, 2, 3, 6, 257, 2**31 - 1, 2**31, 2**62, 2**63, 2**64 - 1, 2**70, -(2**31), 0.5, np.nan, np.inf)
    return s.one_of(None, "text", 7, 1.5, [], object(), np.zeros(3), b"bytes", {})


def overlapping(s: Source, arguments: Arguments) -> Arguments:
    """The arguments with one of their arrays in the memory of another, or partly beyond its end."""
    arrays = {key: value for key, value in arguments.items() if isinstance(value, np.ndarray) and value.size}
    if len(arrays) < 2:
        return arguments
    chosen = [list(arrays)[i] for i in s.rng.permutation(len(arrays))[:2]]
    first, second = (arrays[key] for key in chosen)
    start = int(s.rng.integers(first.nbytes // second.itemsize + 1)) * second.itemsize
    memory = np.zeros(max(first.nbytes, start + second.nbytes), np.uint8)
    placed = [np.ndarray(first.shape, first.dtype, memory), np.ndarray(second.shape, second.dtype, memory, start)]
    for key, array in zip(chosen, placed, strict=True):
        array[...] = arrays[key]
    return arguments | dict(zip(chosen, placed, strict=True))


def call(native: ModuleType, seed: int, number: int, counts: Counter[str]) -> None:
    s = Source(seed, number)
    name = s.one_of(*CALLS)
    arguments = {key: built(native, value) for key, value in CALLS[name](s).items()}
    if s.one_of(*[False] * 9, True):
        arguments = overlapping(s, arguments)
    for _ in range(s.one_of(0, 0, 1, 1, 1, 2, 3)):
        key = s.one_of(*arguments)
        arguments[key] = wrong(s, arguments[key])
    if s.one_of(*[False] * 30, True):
        arguments.pop(s.one_of(*arguments))
    try:
        getattr(native, name)(**arguments)
    except (TypeError, ValueError, MemoryError) as error:  # MemoryError: sizes that are right but for the machine
        counts[f"{name}: {type(error).__name__}"] += 1
    else:
        counts[f"{name}: result"] += 1


def run(
    native: ModuleType, *, seconds: float = math.inf, calls: float = math.inf, seed: int = 0, first: int = 0
) -> Counter[str]:
    """Calls until the time is up or so many are made; how often each entry point gave which kind of end."""
    np.seterr(all="ignore")
    counts: Counter[str] = Counter()
    end, number = time.monotonic() + seconds, first
    while number == first or (number < first + calls and time.monotonic() < end):
        try:
            call(native, seed, number, counts)
        except BaseException:
            print(f"--seed {seed} --first {number}", file=sys.stderr)
            raise
        number += 1
    return counts


def load(path: str) -> ModuleType:
    """The core from a file; its module is named as in the package."""
    spec = importlib.util.spec_from_file_location("_native", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this many; 10 by default without --calls")
    parser.add_argument("--calls", type=float, default=math.inf, help="stop after this many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--core", help="the extension module to call, in place of the installed one")
    options = parser.parse_args()
    if options.core:
        native = load(options.core)
    else:
        from decodestep import _native as native
    if math.isinf(options.seconds) and math.isinf(options.calls):
        options.seconds = 10.0
    counts = run(native, seconds=options.seconds, calls=options.calls, seed=options.seed, first=options.first)
    for key, count in sorted(counts.items()):
        print(f"{count:8d}  {key}")
    print(f"{counts.total():8d}  calls on {native.isa()}")


if __name__ == "__main__":
    main()
