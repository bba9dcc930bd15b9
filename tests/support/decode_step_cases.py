"""Rows and steps at random, the awkward ones often: what the native core and the reference must agree on."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from decodestep.ops.decode_step import steps as s

VOCABULARIES = (1, 2, 15, 16, 17, 100, 511, 512, 513, 1000, 4999, 17011)


def logits(rng, vocab):
    x = rng.normal(0, rng.choice([0.1, 1, 2.5, 8]), vocab)
    kind = rng.integers(14)
    if kind == 0:
        x[:] = rng.choice([0.0, -3.5, 1e30, -1e-40])
    elif kind == 1:
        x = rng.choice([0.0, 1.0], vocab)
    elif kind == 2:
        x = np.sort(x)[:: rng.choice([-1, 1])]
    elif kind == 3:
        x = x * 10.0 ** rng.integers(0, 38)
    elif kind == 4:
        x[:] = -np.inf
        x[rng.integers(vocab)] = 1.5
    elif kind == 5:
        x[rng.random(vocab) < 0.7] = -np.inf
    elif kind == 6:
        x = np.round(x)
    elif kind == 7:
        x = x * 1e-41
    elif kind == 8:
        x[rng.integers(vocab, size=3)] = rng.choice([np.nan, np.inf, -np.inf, 40.0])
    elif kind == 9:
        x[rng.integers(vocab, size=5)] = x.max() - rng.random(5)
    elif kind == 10:
        x[:] = -np.inf
    elif kind == 11:  # what a sample of every 16th strip of 128 sees is not what the others hold
        x[np.arange(vocab) // 128 % 16 == 8] += rng.choice([-9.0, 9.0])
    elif kind == 12:  # where short floats, as thresholds may be, lie far apart
        x -= 100
    return x


def batch_of_logits(rng, batch, vocab):
    """Rows that lie apart in memory, of any of the three types."""
    wide = np.stack([logits(rng, vocab + 3) for _ in range(batch)])
    with np.errstate(over="ignore"):
        wide = wide.astype(rng.choice([np.float32, np.float32, np.float16, ml_dtypes.bfloat16]))
    return wide[:, 1 : vocab + 1]


def _ids(rng, vocab, most=40):
    """Some tokens; now and then one is named again."""
    return rng.choice(vocab, size=int(rng.integers(0, min(vocab, most) + 1)), replace=rng.random() < 0.2).astype(np.int64)


def _bits(rng, vocab):
    """A packed mask of some density; the bits after the vocabulary are any."""
    allowed = rng.random(-(-vocab // 32) * 32) < rng.choice([0.0, 0.01, 0.5, 0.99, 1.0])
    return np.packbits(allowed, bitorder="little").view(np.int32)


def _add(rng, vocab, most):
    ids = _ids(rng, vocab, most)
    return s.Add(ids, (rng.normal(size=len(ids)) * 3).astype(rng.choice([np.float32, np.float64])))


def step(rng, vocab, kind):
    keep = int(rng.choice([1, 1, 1, 2, 3, 50]))
    share = float(rng.choice([0.0, 1.0, 0.9, 0.5, 0.1, rng.random()]))
    inside = float(rng.choice([0.9, 0.5, 0.01, 3e-4, rng.uniform(1e-6, 1 - 1e-6)]))
    most = int(rng.choice([5, 40, 2000]))
    make = {
        s.Penalise: lambda: s.Penalise(_ids(rng, vocab, most), float(rng.choice([1.2, 0.8, 3.0]))),
        s.Add: lambda: _add(rng, vocab, most),
        s.Lift: lambda: s.Lift(_ids(rng, vocab), float(rng.choice([0.1, 2.0, -0.5]))),
        s.Ban: lambda: s.Ban(_ids(rng, vocab, most)),
        s.AllowBits: lambda: s.AllowBits(_bits(rng, vocab)),
        s.Allow: lambda: s.Allow(_ids(rng, vocab)),
        s.Force: lambda: s.Force(_ids(rng, vocab, 3)),
        s.Temperature: lambda: s.Temperature(float(rng.choice([0.8, 0.7, 1.5, 1e-3, 1e-40, 1e30, 5.0]))),
        s.TopK: lambda: s.TopK(int(rng.choice([1, 2, 5, 50, 300, vocab])), keep),
        s.TopP: lambda: s.TopP(share, keep),
        s.MinP: lambda: s.MinP(share, keep),
        s.Typical: lambda: s.Typical(inside, keep),
        s.Epsilon: lambda: s.Epsilon(inside, keep),
        s.Eta: lambda: s.Eta(inside, keep),
        s.TopH: lambda: s.TopH(float(rng.choice([1.0, 0.4, 0.1])), int(rng.choice([1, 3, 100]))),
        s.TopNSigma: lambda: s.TopNSigma(float(rng.choice([0.0, 1.0, 2.5]))),
        s.Xtc: lambda: s.Xtc(
            float(rng.choice([0.0, 0.05, 0.2])),
            float(rng.choice([0.5, 1.0])),
            int(rng.integers(2**63)),
            tuple(rng.integers(vocab + 40, size=rng.choice([0, 0, 1, 3])).tolist()),
        ),
        s.Normalise: lambda: s.Normalise(),
    }
    return make[kind]()


_KINDS = list(s.Step.__args__)
_TAILS = ([s.TopK, s.TopP, s.MinP], [s.TopP], [s.TopP, s.MinP], [s.MinP], [])


def chain(rng, vocab):
    """Any steps in any order, or what users send: patches, a temperature, the usual filters."""
    if rng.random() < 0.2:
        return [step(rng, vocab, _KINDS[rng.integers(len(_KINDS))]) for _ in range(rng.integers(0, 6))]
    head = [step(rng, vocab, _KINDS[rng.integers(5)]) for _ in range(rng.choice([0, 0, 1, 2, 3]))]
    head += [step(rng, vocab, s.Temperature)] if rng.random() < 0.7 else []
    return head + [step(rng, vocab, kind) for kind in _TAILS[rng.integers(len(_TAILS))]]


def call(rng):
    """(logits, steps, options) of one call."""
    vocab, batch = int(rng.choice(VOCABULARIES)), int(rng.integers(1, 5))
    options = {
        "greedy": [bool(g) for g in rng.random(batch) < 0.3],
        "seed": [int(v) for v in rng.integers(2**63, size=batch)],
        "position": [int(v) for v in rng.integers(2**31, size=batch)],
    }
    extra = rng.integers(4)
    if extra == 0:
        options["top_logprobs"] = [None if rng.random() < 0.3 else int(rng.choice([0, 1, 5, 200])) for _ in range(batch)]
    elif extra == 1:
        options["need_processed"] = True
    return batch_of_logits(rng, batch, vocab), [chain(rng, vocab) for _ in range(batch)], options
