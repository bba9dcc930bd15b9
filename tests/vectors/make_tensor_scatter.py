"""Writes tensor_scatter.npz: calls with their inputs and results, read by `read.py`.

Every type of the operator, both modes, every sequence axis, empties. Results are bits, so nothing here depends on a
machine. A case whose call has "refused" has no result: an implementation must raise, and that names the argument.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import decodestep as ds

PLAIN = [np.bool_, *(np.dtype(f"{sign}int{width}") for sign in ("", "u") for width in (8, 16, 32, 64)), np.float16, np.float32,
         np.float64, np.complex64, np.complex128]  # fmt: skip
OTHERS = [
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn", "int4",
    "uint4",
]  # fmt: skip
FOUR_BITS = {"float4_e2m1fn", "int4", "uint4"}
Case = tuple[str, dict[str, np.ndarray], dict[str, Any]]

rng = np.random.default_rng(24)


def values(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Any bits, NaN among them; four-bit types hold theirs in the low half of a byte."""
    if dtype.kind == "U":
        return np.array([rng.choice(["", "a", "né", "漢字", "🙂"]) for _ in range(int(np.prod(shape)))], dtype).reshape(shape)
    raw = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    raw &= {"bool": 1}.get(dtype.name, 15 if dtype.name in FOUR_BITS else 255)
    return raw.view(dtype).reshape(shape)


def case(name: str, shape: tuple[int, ...], steps: int, dtype: Any, starts: list[int] | None, **arguments: Any) -> Case:
    axis = arguments.get("axis", -2)
    new_shape = list(shape)
    new_shape[axis] = steps
    inputs = {"past_cache": values(shape, np.dtype(dtype)), "update": values(tuple(new_shape), np.dtype(dtype))}
    if starts is not None:
        inputs["write_indices"] = np.array(starts, np.int64)
    return name, inputs, arguments


def cases() -> list[Case]:
    types = [*map(np.dtype, PLAIN), *(np.dtype(getattr(ml_dtypes, name)) for name in OTHERS), np.dtype("<U2")]
    made = [case(f"type-{d.name}", (2, 2, 4, 3), 2, d, [2, 0]) for d in types]
    made += [case(f"circular-{d.name}", (2, 2, 4, 3), 3, d, [3, -6], mode="circular") for d in types]
    for rank in range(2, 6):
        for axis in range(1, rank):
            shape = (2, 3, 2, 4, 2)[:rank]
            steps = shape[axis] - 1
            made.append(case(f"axis-{axis}-of-{rank}", shape, steps, np.int16, [1, 0], axis=axis))
            made.append(case(f"axis-{axis - rank}-of-{rank}-circular", shape, steps, np.int16, [7, -1], axis=axis - rank,
                             mode="circular"))  # fmt: skip
    i = np.int32
    made += [
        case("no-indices", (2, 4, 3), 2, i, None), case("no-indices-circular", (2, 4, 3), 4, i, None, mode="circular"),
        case("whole-cache", (2, 4, 3), 4, i, [0, 0]), case("whole-cache-turned", (2, 4, 3), 4, i, [1, 3], mode="circular"),
        case("far-indices", (4, 5, 1), 2, i, [2**63 - 1, -(2**63), 12345678901, -1], mode="circular"),
        case("no-batch", (0, 4, 3), 2, i, []), case("no-steps", (2, 4, 3), 0, i, [4, 0]),
        case("no-steps-circular", (2, 4, 3), 0, i, [9, -9], mode="circular"), case("no-rows", (2, 0, 3), 0, i, [0, 0]),
        case("no-rows-circular", (2, 0, 3), 0, i, [5, -5], mode="circular"), case("no-width", (2, 4, 0), 1, i, [3, 0]),
    ]  # fmt: skip
    return made


def refused() -> list[tuple[str, Case]]:
    i = np.int32
    return [
        ("write_indices", case("refused-minus-one", (2, 4, 3), 1, i, [0, -1])),
        ("write_indices", case("refused-beyond", (2, 4, 3), 2, i, [3, 0])),
        ("write_indices", case("refused-beyond-no-steps", (2, 4, 3), 0, i, [0, 5])),
        ("write_indices", case("refused-shape", (2, 4, 3), 1, i, [0, 0, 0])),
        ("update", case("refused-too-long", (2, 4, 3), 5, i, [0, 0], mode="circular")),
        ("axis", case("refused-batch-axis", (4, 4), 4, i, None, axis=0)),
        ("axis", case("refused-batch-axis-negative", (4, 4), 4, i, None, axis=-2)),
    ]


def main() -> None:
    file: dict[str, np.ndarray] = {}
    for wrong, (name, inputs, arguments) in [("", made) for made in cases()] + refused():
        arrays = {f"in/{key}": value for key, value in inputs.items()}
        if not wrong:
            arrays["out/present_cache"] = ds.tensor_scatter(**inputs, **arguments, backend="reference")
        dtypes = {key: value.dtype.name for key, value in arrays.items() if value.dtype.name in OTHERS}
        call = {"op": "tensor_scatter", "arguments": arguments, "dtypes": dtypes} | ({"refused": wrong} if wrong else {})
        file[f"{name}/call"] = np.array(json.dumps(call))
        for key, value in arrays.items():
            file[f"{name}/{key}"] = value.view(f"u{value.itemsize}") if key in dtypes else value
    np.savez_compressed(Path(__file__).with_name("tensor_scatter.npz"), **file)


if __name__ == "__main__":
    main()
