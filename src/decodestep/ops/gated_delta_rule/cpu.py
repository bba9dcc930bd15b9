"""The call into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base.state_rows import StateRows, in_rows, put_back
from decodestep._base.threads import threads
from decodestep.ops.gated_delta_rule.arguments import Arrays, Rule


def attend(given: Arrays, rule: Rule, rows: StateRows) -> np.ndarray:
    """The results; writes to the state. given: with widths."""
    query, key, value, state, decay, beta = given
    out = np.empty(value.shape, np.float32)
    held = in_rows(state)
    _native.gated_delta_rule(
        query=in_rows(query),
        key=in_rows(key),
        value=in_rows(value),
        decay=None if decay is None else in_rows(decay),
        beta=None if beta is None else in_rows(beta),
        state=held,
        starts=rows.starts,
        read=rows.read,
        written=rows.written,
        tiled=rule.head_map == "tiled",
        l2_norm=rule.l2_norm,
        scale=float(rule.scale),
        out=out,
        threads=threads(),
    )
    put_back(held, state, rows)
    return out
