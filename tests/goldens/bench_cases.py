"""The cases of the operator library's test bench: inputs with dtypes, shapes and ranges, from which values are drawn."""

from __future__ import annotations

from typing import Any

import torch

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "int32": torch.int32}
MOST_VALUES = 1_000_000  # of the first input; of more only the first rows are drawn


def draw(case: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, the same every time."""
    generator = torch.Generator().manual_seed(case["id"])
    inputs = case["inputs"]
    batch, width = inputs[0]["shape"]
    rows = max(1, min(batch, MOST_VALUES // width))
    return {each["name"]: _value(each, rows, generator) for each in inputs}


def _value(given: dict[str, Any], rows: int, generator: torch.Generator) -> Any:
    span = given["range_values"]
    if given["type"] != "tensor":
        return int(torch.randint(span[0], span[1] + 1, (), generator=generator)) if isinstance(span, list) else span
    shape, dtype = (rows, *given["shape"][1:]), _DTYPES[given["dtype"]]
    low, high = span if isinstance(span, list) else (-1, 1)
    if dtype == torch.int32:
        return torch.randint(int(low), int(high) + 1, shape, generator=generator, dtype=dtype)
    return (torch.rand(shape, generator=generator) * (high - low) + low).to(dtype)


def off(ours: torch.Tensor, theirs: torch.Tensor, name: str, tolerance: float = 0.0) -> str:
    """How many elements differ by more than the tolerance; NaN equals NaN, an infinity itself."""
    if ours.shape != theirs.shape:
        return f"{name}: shape {tuple(ours.shape)}, not {tuple(theirs.shape)}; "
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if tolerance:
        same |= (ours.double() - theirs.double()).abs() <= tolerance * theirs.double().abs().clamp(min=1)
    wrong = int((~same).sum())
    return f"{name}: {wrong} of {same.numel()}; " if wrong else ""
