"""Calls the native core while another thread changes the arrays of the call: `python tests/fuzz_changes.py --seconds 10`.

The kernels run without the GIL. Whatever a thread does to ids, positions, tables, steps and a sampler's logits meanwhile, a
call returns or raises ValueError, and reads and writes inside its arrays. `--core` names a build with the address sanitizer.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from time import monotonic, sleep
from types import ModuleType
from typing import Any

import numpy as np

import fuzz_native
from support import native_model_calls as model
from support.native_call_arguments import Arguments, Held, Source, built, panel_bytes

OUTPUTS = {"logits", "values", "keys", "cache", "kv_cache", "kr_cache", "query", "query_norm", "out", "chosen"}
SAMPLERS = {"decode_step", "step_rows", "top_k_top_p_sample", "apply_top_k_top_p"}  # their logits are read several times
WILD = (-1, 2**31 - 1, 2**40, -(2**62))
WILD_LOGITS = (np.nan, -np.inf, np.inf, -3e38)


class Big(Source):
    """Calls long enough for another thread to come in between."""

    def size(self, most: int = 5) -> int:
        return 20 * most

    def threads(self) -> int:
        return 2


def gather_rows(s: Source) -> Arguments:
    w = s.array(50, 4 * 64, dtype=np.uint8)
    return {"w": w, "format": 0, "ids": s.ids(20000, end=50), "values": s.array(20000, 64), "threads": 2}


def gather_panels(s: Source) -> Arguments:
    panels = s.array(panel_bytes(0, 64, 50), dtype=np.uint8)
    return {"panels": panels, "format": 0, "outputs": 50, "ids": s.ids(20000, end=50), "values": s.array(20000, 64),
            "threads": 2}  # fmt: skip


def tensor_scatter(s: Source) -> Arguments:
    shape = (2000, 3, 7, 256)
    cache = s.array(*shape, dtype=np.uint8)
    return {"cache": cache, "update": cache[:, :, :5].copy(), "start": s.ids(2000, end=7), "axis": 2}


def tensor_scatter_in_place(s: Source) -> Arguments:
    given = tensor_scatter(s)
    return {"cache": given["cache"], "update": given["update"], "starts": given["start"] % 3, "axis": -2, "mode": "linear"}


def causal_conv1d(s: Source) -> Arguments:
    rows, channels = 3000, 64
    return {"x": s.array(rows, channels), "taps": s.array(4, channels), "bias": None, "silu": True,
            "state": s.array(rows, 3, channels), "starts": np.arange(rows + 1), "read": s.ids(rows, end=rows),
            "written": s.rng.permutation(rows), "y": s.array(rows, channels), "threads": 2}  # fmt: skip


def steps(s: Source, vocab: int) -> tuple[Any, ...]:
    from decodestep.ops.decode_step import steps as types

    ids = [s.rng.permutation(vocab)[:count].astype(np.int64) for count in (500, 2000, vocab // 2)]
    return (
        types.Penalise(ids[0], 1.3),
        types.Add(ids[1], s.array(2000)),
        types.Ban(ids[2]),
        types.TopK(50, 1),
        types.TopP(0.9, 1),
    )


def decode_step(s: Source) -> Arguments:
    vocab = 50000
    return {"logits": s.array(3, vocab), "steps": [steps(s, vocab) for _ in range(3)], "greedy": False, "seed": 1,
            "position": 2, "top_logprobs": None, "need_processed": False, "threads": 2}  # fmt: skip


def step_rows(s: Source) -> Arguments:
    vocab = 20000
    made = steps(s, vocab)
    row = {"vocab": vocab, "history": Held("History", {"prompt_ids": [1, 2]}), "parts": [lambda history: made], "greedy": False,
           "seed": 1, "top_logprobs": None, "ends": [], "stops": [], "limit": None}  # fmt: skip
    return {"logits": s.array(2, vocab), "rows": [Held("Row", row)] * 2, "threads": 2, "changing": made}


SOME_P = np.array([0, 0.5, 0.9, 0.9999, 1], np.float32)


def some_k(s: Source, batch: int) -> np.ndarray:
    """None for every other row."""
    return (s.ids(batch, end=900) * (np.arange(batch) % 2)).astype(np.int32)


def top_k_top_p_sample(s: Source) -> Arguments:
    batch, vocab = 20, 2000
    return {
        "logits": s.array(batch, vocab), "dtype": 0, "k": some_k(s, batch),
        "p": np.resize(SOME_P, batch), "m": np.repeat([0, 0.1, 1, 1], 5).astype(np.float32), "largest_k": 1024,
        "input_is_logits": True, "kernel_exact": False, "guess": 32, "q": None,
        "seed": s.array(batch, dtype=np.uint64), "position": s.array(batch, dtype=np.uint32), "eps": 1e-8,
        "chosen": np.zeros(batch, np.int64), "masked": None, "ids": None, "values": None, "threads": 2,
    }  # fmt: skip


def apply_top_k_top_p(s: Source) -> Arguments:
    batch, vocab = 10, 2000
    return {"logits": s.array(batch, vocab), "dtype": 0, "k": some_k(s, batch), "p": np.repeat(SOME_P, 2),
            "out": s.array(batch, vocab), "threads": 2}  # fmt: skip


CALLS: dict[str, Callable[[Source], Arguments]] = {
    "decoder_forward": model.decoder_forward,
    "lightning_indexer": model.lightning_indexer,
    "mla_attention": model.mla_attention,
    "mla_prolog": model.mla_prolog,
    "gather_rows": gather_rows,
    "gather_panels": gather_panels,
    "tensor_scatter": tensor_scatter,
    "tensor_scatter_in_place": tensor_scatter_in_place,
    "causal_conv1d": causal_conv1d,
    "decode_step": decode_step,
    "step_rows": step_rows,
    "top_k_top_p_sample": top_k_top_p_sample,
    "apply_top_k_top_p": apply_top_k_top_p,
}


def integers(value: Any) -> Iterator[np.ndarray]:
    """The arrays of integers in an argument."""
    if isinstance(value, np.ndarray) and value.dtype in (np.int64, np.int32):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from integers(item)


@contextmanager
def changing(arrays: list[np.ndarray]) -> Iterator[None]:
    """Within this, a thread writes values out of any range into the arrays, and the right ones back, all the time."""
    over = threading.Event()

    def change() -> None:
        right = [array.copy() for array in arrays]
        for wild, wild_logit in cycle(zip(WILD, WILD_LOGITS, strict=True)):
            if over.is_set():
                break
            for array in arrays:
                integer = array.dtype.kind == "i"
                array[...] = max(min(wild, np.iinfo(array.dtype).max), np.iinfo(array.dtype).min) if integer else wild_logit
            for array, values in zip(arrays, right, strict=True):
                array[...] = values

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run(native: ModuleType, seconds: float, seed: int = 0) -> Counter[str]:
    """Calls every entry point for its share of the time, and once when nothing changes any more, which must return; how often
    each returned and refused."""
    counts: Counter[str] = Counter()
    for number, (name, arguments_of) in enumerate(CALLS.items()):
        given = arguments_of(Big(seed, number))
        arrays = list(integers([value for key, value in given.items() if key not in OUTPUTS]))
        arrays += [given["logits"]] if name in SAMPLERS else []
        given.pop("changing", None)
        arguments = {key: built(native, value) for key, value in given.items()}
        end = monotonic() + seconds / len(CALLS)
        with changing(arrays):
            while monotonic() < end:
                try:
                    getattr(native, name)(**arguments)
                except ValueError:
                    counts[f"{name}: ValueError"] += 1
                    sleep(0)  # until the right values are back
                else:
                    counts[f"{name}: result"] += 1
        getattr(native, name)(**arguments)
        counts[f"{name}: result"] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--core", help="the extension module to call, in place of the installed one")
    options = parser.parse_args()
    if options.core:
        native = fuzz_native.load(options.core)
    else:
        from decodestep import _native as native
    sys.setswitchinterval(1e-5)  # so that threads take turns often
    for key, count in sorted(run(native, options.seconds, options.seed).items()):
        print(f"{count:8d}  {key}")


if __name__ == "__main__":
    main()
