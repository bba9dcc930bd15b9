"""linear on F32, Q4_1 and Q8_0 rows, against torch's float32 product.

    python benchmarks/bench_linear.py [--rounds 15] [--threads 1]

With panels of Q4_1 and Q8_0 the activations are quantised too. torch multiplies by the widened weight, in the (N, K) order
that torch.nn.Linear keeps; its floor would be the F32 one.
"""

from __future__ import annotations

import numpy as np

import decodestep as ds
from decodestep.ops.linear import Format, LinearPanels, PackedWeight, reference
from measuring.harness import Call, Report, options, run_main, torch

K, OUTPUTS, TOKENS = 576, (1536, 49152), (1, 8, 128)
BLOCK_BYTES = {Format.Q4_1: 20, Format.Q8_0: 34}
rng = np.random.default_rng(0)


def weight(form: Format, outputs: int) -> PackedWeight:
    if form == Format.F32:
        return PackedWeight.from_array(rng.standard_normal((K, outputs), np.float32))
    blocks = rng.integers(0, 256, (outputs, K // 32, BLOCK_BYTES[form]), np.uint8)
    blocks[..., :2] = np.array([0.01], np.float16).view(np.uint8)
    if form == Format.Q4_1:
        blocks[..., 2:4] = np.array([-0.08], np.float16).view(np.uint8)
    return PackedWeight(blocks.reshape(outputs, -1), form, K)


def verify(x: np.ndarray, dense: np.ndarray, made: dict[str, Call]) -> None:
    """Against float64, the error measured by the terms of each sum; a few hundred outputs stand for all."""
    part = dense[:, :: max(1, dense.shape[1] // 512)].astype(np.float64)
    expected, terms = x @ part, np.abs(x) @ np.abs(part)
    for name, call in made.items():
        result = np.asarray(call())[:, :: max(1, dense.shape[1] // 512)]
        assert (np.abs(result - expected) <= 2e-6 * terms).all(), name


def main() -> None:
    chosen = options(__doc__)
    report = Report("linear", chosen.threads)
    for outputs in OUTPUTS:
        for form in (Format.F32, Format.Q4_1, Format.Q8_0):
            w = weight(form, outputs)
            dense, panels = w.dense(), LinearPanels.pack(w)
            for tokens in TOKENS:
                x = rng.standard_normal((tokens, K), np.float32)
                calls: dict[str, Call] = {"ours": lambda x=x, w=w: ds.linear(x, w)}
                if torch is not None:
                    t, m = torch.from_numpy(x), torch.from_numpy(np.ascontiguousarray(dense.T))
                    calls["torch float32"] = lambda t=t, m=m: torch.nn.functional.linear(t, m)
                verify(x, dense, calls)
                calls["ours, in panels"] = lambda x=x, panels=panels: ds.linear(x, panels)
                seen = reference.quantise(x) if panels.quantises_activations else x
                verify(seen, dense, {"in panels": calls["ours, in panels"]})
                report.case(f"{form.name} N={outputs} T={tokens}", calls, chosen.rounds, w.rows.nbytes)
    report.save()


if __name__ == "__main__":
    run_main(main)
