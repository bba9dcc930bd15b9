"""decode_step on one row and on a batch, against transformers' chain of processors and torch.multinomial.

    python benchmarks/bench_decode_step.py [--rounds 15] [--threads 1] [--vocab 128256]

Logits are normal * 2.5 with five peaks near the maximum. Only the reference exists: it is what a native kernel has to beat.
"""

from __future__ import annotations

import numpy as np

import decodestep as ds
from decodestep.ops.decode_step import steps as s
from harness import Call, Report, options, torch

CASES = {
    "greedy": [],
    "temperature": [s.Temperature(0.8)],
    "top-k": [s.Temperature(0.8), s.TopK(50)],
    "top-p": [s.Temperature(0.8), s.TopP(0.9)],
    "full": [s.Temperature(0.8), s.TopK(50), s.TopP(0.9), s.MinP(0.05)],
}


def transformers_chain(steps, logits):
    from transformers import generation as hf

    make = {
        s.Temperature: lambda o: hf.TemperatureLogitsWarper(o.temperature),
        s.TopK: lambda o: hf.TopKLogitsWarper(o.k),
        s.TopP: lambda o: hf.TopPLogitsWarper(o.p),
        s.MinP: lambda o: hf.MinPLogitsWarper(o.p),
    }
    chain, scores = [make[type(step)](step) for step in steps], torch.from_numpy(logits)

    def processed():
        out = scores
        for processor in chain:
            out = processor(None, out)
        return out

    def run():
        return torch.multinomial(processed().softmax(-1), 1) if chain else scores.argmax(-1)

    return processed, run


def main() -> None:
    chosen = options(__doc__, vocab=128256)
    report = Report("decode_step", chosen.threads)
    rng = np.random.default_rng(0)
    for batch in (1, 8):
        logits = (rng.standard_normal((batch, chosen.vocab)) * 2.5).astype(np.float32)
        logits[:, rng.integers(0, chosen.vocab, 5)] += 8
        for name, steps in CASES.items():
            each, greedy = [steps] * batch, not steps
            calls: dict[str, Call] = {
                "ours, reference": lambda each=each, x=logits, g=greedy: ds.decode_step(x, each, greedy=g)
            }
            if torch is not None:
                processed, run = transformers_chain(steps, logits)
                mine = ds.decode_step(logits, each, need_processed=True).processed
                np.testing.assert_array_equal(np.isfinite(mine), np.isfinite(processed().numpy()))
                calls["transformers"] = run
            report.case(f"{name} B={batch} V={chosen.vocab}", calls, chosen.rounds, logits.nbytes)
    report.save()


if __name__ == "__main__":
    main()
