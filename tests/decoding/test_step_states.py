"""The native step on models with states: as near the float32 form as its rounding, the same bits for every cut and batch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import decodestep as ds
from decodestep.decoding.decoder import TokenBatch
from support import family_models

LENGTH, ROWS = 40, 6
WIDE = {"hidden_size": 64, "intermediate_size": 96}
EXPERTS = {"moe_latent_size": 32, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 64}
MODELS = [
    ("qwen3_5_text", 0, WIDE),
    ("qwen3_5_text", 1, WIDE),
    ("qwen3_next", 0, WIDE | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}),
    ("qwen3_5_moe_text", 0, WIDE),
    ("lfm2", 0, {}),
    ("lfm2", 1, WIDE),
    ("lfm2_moe", 0, WIDE),
    ("granitemoehybrid", 1, {}),
    ("nemotron_h", 0, WIDE),
    ("nemotron_h", 1, WIDE | EXPERTS),
    ("nemotron_h", 2, WIDE | EXPERTS),
]


@pytest.fixture(params=MODELS, ids=lambda model: f"{model[0]}-{model[1]}")
def path(request, tmp_path):
    family, size, changes = request.param
    return family_models.save(family_models.build_model(family, size, **changes), tmp_path)


class Sequences:
    """Sequences of one decoder, of the same length, with pages and rows of states of their own."""

    def __init__(self, decoder, ids):
        self.decoder, self.ids, self.pages = decoder, ids, decoder.new_storage(3 * len(ids), ROWS)
        self.slots = np.zeros(len(ids), np.int64)  # row 0 is the beginning

    def run(self, parts, into=None):
        """Runs tokens [first, end) of each sequence, none where both are equal; returns their logits, one after another."""
        rows = [i for i, (first, end) in enumerate(parts) if first < end]
        into = np.arange(1, len(self.ids) + 1) if into is None else np.array(into)
        tokens = np.concatenate([self.ids[i][slice(*parts[i])] for i in rows])
        sequence = np.repeat(np.arange(len(rows)), [parts[i][1] - parts[i][0] for i in rows])
        positions = np.concatenate([np.arange(*parts[i]) for i in rows])
        table = np.arange(3 * len(self.ids)).reshape(-1, 3)[rows]
        wanted = np.arange(len(tokens))
        batch = TokenBatch(tokens, sequence, positions, table, wanted, None, self.slots[rows], into[rows])
        self.slots[rows] = into[rows]
        return self.decoder.logits(batch, self.pages)


def test_the_native_step_is_as_near_as_its_rounding(path, rng):
    ids = [rng.integers(0, 290, LENGTH)]
    decoder = ds.load(path).decoder
    assert decoder.description == "one native call a step"
    exact = Sequences(ds.load(path, dtype="float32").decoder, ids).run([(0, LENGTH)])
    apart = np.abs(Sequences(decoder, ids).run([(0, LENGTH)]) - exact).max(axis=1) / np.abs(exact).max(axis=1)
    assert np.median(apart) < 0.005  # float16 keys


@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_cuts_and_batches_change_no_bit(path, dtype, rng):
    ids = [rng.integers(0, 290, LENGTH) for _ in range(2)]
    decoder = ds.load(path, dtype=dtype).decoder
    first, second = (Sequences(decoder, [own]).run([(0, LENGTH)]) for own in ids)
    cut = Sequences(decoder, ids[:1])
    ends = [0, 1, 4, 20, 39, LENGTH]
    rows = [cut.run([part], into=[1 + i % 2]) for i, part in enumerate(pairwise(ends))]
    assert np.array_equal(np.concatenate(rows), first)
    both = Sequences(decoder, ids)
    rows = [both.run(parts) for parts in ([(0, 7), (0, 0)], [(7, 8), (0, 17)], [(8, LENGTH), (17, LENGTH)])]
    assert np.array_equal(np.concatenate([rows[0], rows[1][:1], rows[2][:32]]), first)
    assert np.array_equal(np.concatenate([rows[1][1:], rows[2][32:]]), second)


def test_a_state_that_is_left_elsewhere_stays(path, rng):
    """A draft is run beside the state before it, which the tokens in its place then begin with."""
    ids = rng.integers(0, 290, LENGTH)
    decoder = ds.load(path).decoder
    expected = Sequences(decoder, [ids]).run([(0, LENGTH)])
    ours = Sequences(decoder, [ids.copy()])
    ours.run([(0, 20)], into=[1])
    ours.ids[0][20:24] = (ids[20:24] + 1) % 290
    ours.run([(20, 24)], into=[2])
    ours.ids[0][20:24] = ids[20:24]
    ours.slots[0] = 1
    assert np.array_equal(ours.run([(20, LENGTH)], into=[2]), expected[20:])
    assert (ours.pages.states[0] == 0).all()
