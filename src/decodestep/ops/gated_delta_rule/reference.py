"""gated_delta_rule as its loop."""

from __future__ import annotations

import numpy as np

from decodestep._base.state_rows import StateRows
from decodestep.ops.gated_delta_rule.arguments import NORM_EPSILON, Arrays, Rule


def attend(given: Arrays, rule: Rule, rows: StateRows) -> np.ndarray:
    """The results; writes to the state. given: with widths."""
    query, key, value, state, decay, beta = given
    out = np.empty(value.shape, value.dtype)
    key_heads = rule.key_heads(value.shape[1], key.shape[1])
    with np.errstate(all="ignore"):
        if rule.l2_norm:
            query, key = _normed(query), _normed(key)
        query, key = query[:, key_heads] * value.dtype.type(rule.scale), key[:, key_heads]
        for tokens, read, written in rows:
            s = state[read]
            for t in range(tokens.start, tokens.stop):
                if decay is not None:
                    s = s * np.exp(decay[t])[:, :, None]
                change = value[t]
                if beta is not None:
                    change = beta[t] * (change - np.einsum("hi,hiv->hv", key[t], s))
                s = s + key[t][:, :, None] * change[:, None, :]
                out[t] = np.einsum("hi,hiv->hv", query[t], s)
            state[written] = s
    return out


def _normed(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + x.dtype.type(NORM_EPSILON))
