"""random: one row of noise for a vocabulary of 128256, against generators with a hidden state.

    python benchmarks/bench_random.py [--rounds 15]

The peers draw from a stream, so their noise of a token depends on what was drawn before; they show what that costs less.
"""

from __future__ import annotations

import numpy as np

import decodestep as ds
from measuring.harness import Call, Report, options, run_main, torch

try:
    import mmh3
except ImportError:
    mmh3 = None

VOCABULARY = 128256
TOKENS = np.arange(VOCABULARY, dtype=np.uint32)


def verify() -> None:
    for name in ("noise_bits", "uniform", "exponential", "gumbel"):
        draw = getattr(ds.random, name)
        assert np.array_equal(draw(7, 8, TOKENS, backend="cpu"), draw(7, 8, TOKENS, backend="reference")), name
    if mmh3 is not None:
        record = np.array([7, 0, 8, 99], "<u4").tobytes()
        assert ds.random.noise_bits(7, 8, 99) == mmh3.hash(record, 0, signed=False)


def main() -> None:
    chosen = options(__doc__)
    verify()
    report = Report("random", chosen.threads)
    stream = np.random.default_rng(0)
    row = torch.empty(VOCABULARY) if torch is not None else None
    for name, numpy_peer, torch_peer in (
        ("noise_bits", lambda: stream.integers(0, 2**32, VOCABULARY, np.uint32), None),
        ("uniform", lambda: stream.random(VOCABULARY, np.float32), lambda: row.uniform_()),
        ("exponential", lambda: stream.standard_exponential(VOCABULARY, np.float32), lambda: row.exponential_()),
        ("gumbel", lambda: stream.gumbel(size=VOCABULARY), lambda: row.exponential_().log_().neg_()),
    ):
        draw = getattr(ds.random, name)
        calls: dict[str, Call] = {
            "ours": lambda draw=draw: draw(7, 8, TOKENS),
            "reference": lambda draw=draw: draw(7, 8, TOKENS, backend="reference"),
            "NumPy stream": numpy_peer,
        }
        if torch is not None and torch_peer is not None:
            calls["torch stream"] = torch_peer
        report.case(name, calls, chosen.rounds, 4 * VOCABULARY)
    report.case("noise_bits of one token", {"ours": lambda: ds.random.noise_bits(7, 8, 9)}, chosen.rounds)
    report.save()


if __name__ == "__main__":
    run_main(main)
