"""Writes mla_prolog.npz: one call of each scenario, cache mode and token axis with its results, read by `read.py`.

The results are those of the token-by-token float64 oracle of the tests, rounded to the types of the operator; int8 and
bfloat16 values may be one unit off in an implementation that sums in float32. kv_cache and kr_cache under `in` are the
caches before the call, under `out` after it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from support.mla_prolog_cases import BF16, INT8_SCENARIOS, MODES, SCENARIOS, for_version, legal, make
from support.mla_prolog_oracle import oracle

SMALL = dict(He=6, Hcq=6, N=2, D=2, block=2, blocks=4, tiles=1)
TYPES = {
    "query": BF16,
    "query_rope": BF16,
    "dequant_scale_q_nope": np.float32,
    "query_norm": BF16,
    "dequant_scale_q_norm": np.float32,
}


def coarse(call: dict[str, Any]) -> dict[str, Any]:
    """Fewer bits in what is long, so that the file is small."""
    for name in ("token_x", "weight_dq", "weight_uq_qr", "weight_uk", "weight_dkv_kr"):
        if call[name].dtype == BF16:
            call[name] = (np.rint(call[name].astype(float) * 8) / 8).astype(BF16)
    for name in ("kv_cache", "kr_cache"):
        call[name] = (np.arange(call[name].size) % 7).reshape(call[name].shape).astype(call[name].dtype)
    return call


def calls() -> Iterator[tuple[str, int, str, dict[str, Any]]]:
    """Name, version, scenario and arguments."""
    for i, scenario in enumerate(INT8_SCENARIOS):
        for j, mode in enumerate(MODES):
            for merged in (True, False):
                # Where both are legal the axes alternate, so that every mode and every scenario meets both.
                if not legal(scenario, mode, merged) or (legal(scenario, mode, not merged) and merged == bool((i + j) % 2)):
                    continue
                rng = np.random.default_rng([i, j, merged])
                wide = 32 if SCENARIOS[scenario][2] in ("channel", "tensor") else 16  # a fractal row of the cache
                sizes = SMALL | {"Hckv": wide, "Dr": (32 if scenario == "PARTIAL_KV" else 16) if mode.endswith("NZ") else 8}
                sizes |= {"lengths": [3, 0, 1]} if merged and mode.startswith("PA_BLK") else {"B": 1, "S": 3}
                call = coarse(make(rng, scenario, mode, merged, smooth=bool(j % 2), **sizes))
                more = {"qc_qr_scale": 1.5, "kc_scale": 0.75} if j % 2 else {}
                yield f"v3-{scenario}-{mode}-{'T' if merged else 'BS'}", 3, scenario, call | more | {"query_norm_flag": True}
                if mode == "PA_NZ" and scenario in ("PARTIAL_KV", "FULL_KV"):
                    version = 1 if scenario == "PARTIAL_KV" else 2
                    yield f"v{version}-{scenario}", version, scenario, for_version(call, version)


def typed(scenario: str, call: dict[str, Any], name: str, value: np.ndarray) -> np.ndarray | None:
    """A result of the oracle in its type and shape, None where the call does not produce it."""
    full_kv, quantised = scenario == "FULL_KV", SCENARIOS[scenario][1]
    axes = call["token_x"].shape[:-1]
    if name in ("kv_cache", "kr_cache"):
        return value
    if (name == "dequant_scale_q_nope" and not full_kv) or (name == "dequant_scale_q_norm" and not quantised):
        return None
    if name.startswith("dequant"):
        return value.astype(np.float32)
    int8 = full_kv if name == "query" else quantised and name == "query_norm"
    return value.astype(np.int8 if int8 else TYPES[name]).reshape(*axes, *value.shape[1:])


def main() -> None:
    file: dict[str, np.ndarray] = {}
    for name, version, scenario, call in calls():
        results = oracle({"cache_mode": "PA_BSND"} | call, scenario=scenario)
        if version < 3:
            del results["query_norm"], results["dequant_scale_q_norm"]
        outputs = {key: typed(scenario, call, key, value) for key, value in results.items()}
        arrays = {f"in/{key}": value for key, value in call.items() if isinstance(value, np.ndarray)}
        arrays |= {f"out/{key}": value for key, value in outputs.items() if value is not None}
        arguments = {key: value for key, value in call.items() if not isinstance(value, np.ndarray)}
        dtypes = {key: "bfloat16" for key, value in arrays.items() if value.dtype == BF16}
        op = "mla_prolog" if version == 1 else f"mla_prolog_v{version}"
        file[f"{name}/call"] = np.array(json.dumps({"op": op, "arguments": arguments, "dtypes": dtypes}))
        file |= {f"{name}/{key}": value.view(np.uint16) if key in dtypes else value for key, value in arrays.items()}
    np.savez_compressed(Path(__file__).with_name("mla_prolog.npz"), **file)


if __name__ == "__main__":
    main()
