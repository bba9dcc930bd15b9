"""The sizes that the device accepts, as data: one `SizeLimits` for each published state of the operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from decodestep._base.checks import refuse, require_choice

_HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
PAGED_MODES = ("PA_BSND", "PA_NZ")
LATEST = "2026"
_ALIAS = "latest"
ALL_MODES = (*PAGED_MODES, "PA_BLK_BSND", "PA_BLK_NZ", "BSND", "TND")


@dataclass(frozen=True)
class SizeLimits:
    sizes: Mapping[str, Sequence[int]]  # allowed sizes by symbol; B and S hold for (B, S, He) tokens, T for (T, He)
    cache_modes: tuple[str, ...]
    attributes_reserved: bool = False  # V3's later attributes keep their defaults, and the dtypes name the scenario


def _limits(hidden: tuple[int, ...]) -> dict[str, Sequence[int]]:
    return {
        "He": hidden,
        "Hcq": (1536,),
        "Hckv": (512,),
        "N": _HEADS,
        "D": (128,),
        "Dr": (64,),
        "BlockSize": (16, 128),
        "B": range(65537),
        "S": range(17),
        "T": range(1048577),
    }


_IN_2026: dict[str, Sequence[int]] = {
    "He": (1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192),
    "Hcq": (1536, 2048),
    "Hckv": (512,),
    "N": _HEADS,
    "D": (128, 192),
    "Dr": (64,),
    "BlockSize": range(16, 1025, 16),
}

SIZE_LIMITS: Mapping[str | None, SizeLimits] = {
    None: SizeLimits({}, ALL_MODES),
    "design-note": SizeLimits(_limits((7168, 7680)), PAGED_MODES),
    "nov2025": SizeLimits(_limits((6144, 7168, 7680)), PAGED_MODES, attributes_reserved=True),
    LATEST: SizeLimits(_IN_2026, ALL_MODES),
}


def size_limits(op: str, limits: str | None) -> SizeLimits:
    """The limits that the public argument `limits` names."""
    return SIZE_LIMITS[limits_name(op, limits)]


def limits_name(op: str, limits: str | None) -> str | None:
    """The name of the limits for which "latest" may stand."""
    require_choice(op, "limits", limits, (*SIZE_LIMITS, _ALIAS))
    return LATEST if limits == _ALIAS else limits


def check_sizes(op: str, limits: str | None, sizes: Mapping[str, int | None]) -> None:
    """Refuses a size outside the limits. `sizes`: each size of the call by its symbol, None for one that it does not have."""
    for symbol, allowed in size_limits(op, limits).sizes.items():
        size = sizes[symbol]
        if size is None or size in allowed:
            continue
        shown = f"one of {', '.join(map(str, allowed))}"
        if isinstance(allowed, range):
            multiple = "" if allowed.step == 1 else f"a multiple of {allowed.step} "
            shown = f"{multiple}in [{allowed[0]}, {allowed[-1]}]"
        refuse(op, symbol, f"{shown} under limits={limits!r}", size)
