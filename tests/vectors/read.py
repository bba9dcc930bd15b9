"""Reads conformance data: arrays under `<case>/in/<argument>` and `<case>/out/<result>`, the call under `<case>/call`.

The call is JSON. It holds "op", "arguments" (the ones that are no arrays) and "dtypes": by array, the types that NumPy
lacks, each stored as the unsigned integer of its bits.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (teaches NumPy the names of those types)
import numpy as np


def cases(stem: str) -> Iterator[tuple[str, dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]]:
    with np.load(Path(__file__).with_name(f"{stem}.npz")) as file:
        for name in dict.fromkeys(key.split("/")[0] for key in file.files):
            call, arrays = json.loads(str(file[f"{name}/call"])), {"in": {}, "out": {}}
            for key in (key for key in file.files if key.startswith((f"{name}/in/", f"{name}/out/"))):
                side, argument = key.split("/")[1:]
                arrays[side][argument] = file[key].view(call["dtypes"].get(f"{side}/{argument}", file[key].dtype))
            yield name, call, arrays["in"], arrays["out"]
