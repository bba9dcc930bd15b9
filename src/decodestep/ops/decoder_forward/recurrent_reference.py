"""The recurrences of a decoder's layers by their definition, on the references of the operators."""

from __future__ import annotations

import numpy as np

from decodestep._base.state_rows import StateRows
from decodestep.ops.causal_conv1d import arguments as of_convolution
from decodestep.ops.causal_conv1d.reference import convolve
from decodestep.ops.decoder_forward.arguments import Call, token_runs
from decodestep.ops.decoder_forward.recurrent_layers import DeltaRule, Mamba, Recurrence, ShortConvolution, state_places
from decodestep.ops.gated_delta_rule import arguments as of_delta
from decodestep.ops.gated_delta_rule.reference import attend
from decodestep.ops.linear.reference import linear, with_bias
from decodestep.ops.rms_norm.reference import rms_norm
from decodestep.ops.selective_state_update import arguments as of_update
from decodestep.ops.selective_state_update.reference import softplus, update
from decodestep.ops.swiglu.reference import swiglu


class Recurrences:
    """Those of a call, with the rows of states that it updates."""

    def __init__(self, call: Call) -> None:
        self._call = call
        if call.states is None or call.slots is None or call.into is None:
            return
        recurrences = call.weights.recurrences
        self._places = dict(zip(recurrences, state_places(recurrences)[0], strict=True))
        runs = token_runs(call.sequence)
        sequences = call.sequence[[run.start for run in runs]]
        starts = np.array([*(run.start for run in runs), len(call.sequence)])
        self._rows = StateRows(starts, call.slots[sequences], call.into[sequences])

    def run(self, w: Recurrence, h: np.ndarray) -> np.ndarray:
        """What a layer adds for h, before a norm of it; updates its states."""
        held = self._views(w)
        state, kept = (view.astype(h.dtype) for view in held)
        if isinstance(w, ShortConvolution):
            factor, gate, x = np.split(with_bias(linear(h, w.input), w.input_bias), 3, axis=1)
            y = gate * self._convolve(w, factor * x, kept, w.convolution_bias, silu=False)
        elif isinstance(w, DeltaRule):
            y = self._delta(w, h, state, kept)
        else:
            assert isinstance(w, Mamba)
            y = self._mamba(w, h, state, kept)
        for view, updated in zip(held, (state, kept), strict=True):
            view[self._rows.written] = updated[self._rows.written]
        return with_bias(linear(y, w.output), w.output_bias)

    def _views(self, w: Recurrence) -> list[np.ndarray]:
        """(S, heads, rows, columns) and (S, K - 1, C), of the layer's states."""
        states, sizes = self._call.states, w.sizes()
        assert states is not None
        return [
            states[:, first : first + int(np.prod(shape))].reshape(len(states), *shape)
            for first, shape in zip(self._places[w], (sizes.state, sizes.kept), strict=True)
        ]

    def _convolve(self, w: Recurrence, x: np.ndarray, kept: np.ndarray, bias: np.ndarray | None, *, silu: bool) -> np.ndarray:
        weight, bias = w.convolution.T.astype(x.dtype), None if bias is None else bias.astype(x.dtype)
        return convolve(of_convolution.Arrays(x, weight, kept, bias), silu, self._rows)

    def _delta(self, w: DeltaRule, h: np.ndarray, state: np.ndarray, kept: np.ndarray) -> np.ndarray:
        s, tokens = w.sizes(), len(h)
        width = s.key_heads * s.rows
        query, key, value = np.split(self._convolve(w, linear(h, w.qkv), kept, None, silu=True), [width, 2 * width], axis=1)
        beta, step = np.split(linear(h, w.beta_alpha), 2, axis=1)
        given = of_delta.Arrays(
            query.reshape(tokens, s.key_heads, s.rows),
            key.reshape(tokens, s.key_heads, s.rows),
            value.reshape(tokens, s.heads, s.columns),
            state,
            w.decay.astype(h.dtype) * softplus(step + w.step_bias),
            sigmoid(beta),
        )
        rule = of_delta.Rule("gated_delta", s.rows**-0.5, True, "tiled" if w.tiled else "grouped")
        out = attend(given.with_widths(), rule, self._rows)
        normed = rms_norm(out, w.norm.astype(h.dtype), self._call.weights.norm_eps).reshape(tokens, -1)
        return swiglu(linear(h, w.gate), normed)

    def _mamba(self, w: Mamba, h: np.ndarray, state: np.ndarray, kept: np.ndarray) -> np.ndarray:
        s, tokens = w.sizes(), len(h)
        width = s.key_heads * s.rows
        gate, read, dt = np.split(linear(h, w.input), [s.width, s.width + s.channels], axis=1)
        x, b, c = np.split(self._convolve(w, read, kept, w.convolution_bias, silu=True), [s.width, s.width + width], axis=1)
        decay, skip, step_bias = (vector.astype(h.dtype) for vector in (w.decay, w.skip, w.step_bias))
        of_groups = (tokens, s.key_heads, s.rows)
        x, b, c = x.reshape(tokens, s.heads, s.columns), b.reshape(of_groups), c.reshape(of_groups)
        y = update(of_update.Arrays(x, dt, decay, b, c, skip, step_bias, state), self._rows)
        gated = swiglu(gate, y.reshape(tokens, -1)).reshape(tokens, s.key_heads, -1)
        plain = rms_norm(gated, np.ones(gated.shape[-1], h.dtype), self._call.weights.norm_eps)
        return plain.reshape(tokens, -1) * w.norm


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
