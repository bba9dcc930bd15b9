"""HostRow in serving engines with drafts: of a draft that is refused nothing stays, in no field and no processor."""

from __future__ import annotations

import numpy as np
import pytest

from decodestep import SamplingParams, processors
from decodestep.integrations.host_row import HostRow
from support import host_engine_rows

VOCAB = 40
PARAMS = [
    SamplingParams(do_sample=False, no_repeat_ngram_size=2),
    SamplingParams(seed=1, temperature=0.8, top_k=12),
    SamplingParams(seed=2, repetition_penalty=1.5, presence_penalty=0.6, frequency_penalty=0.4),
    SamplingParams(seed=3, dry_multiplier=0.9, dry_allowed_length=1, xtc_probability=0.5, xtc_threshold=0.05),
    SamplingParams(seed=4, bad_words_ids=[[1, 2], [2, 2, 1]], sequence_bias={(3, 4): 4.0}, min_new_tokens=5),
]


def logits_of(output: list[int]) -> np.ndarray:
    return host_engine_rows.logits_of(VOCAB, [1, 2, 1], output)[None]


class Passes:
    """The passes of an engine, whose rows have logits after their last token and after each token of a draft.

    The engine has them drawn before it knows which drafts are right, and keeps what was drawn up to the first that is not.
    """

    def __init__(self, row: HostRow, wanted: list[int], rng: np.random.Generator) -> None:
        self.row, self.wanted, self.rng = row, wanted, rng
        self.output: list[int] = []
        self.seen: list[list[int]] = []  # the tokens before each draw
        self.refused = 0

    def draft(self) -> list[int]:
        """Tokens of which some of the first are right."""
        right = self.wanted[len(self.output) :][: self.rng.integers(0, 4)]
        return [*right, *self.rng.integers(0, VOCAB, self.rng.integers(0, 3)).tolist()]

    def run(self) -> None:
        draft, drawn = self.draft(), []
        for place in range(len(draft) + 1):
            before = [*self.output, *draft[:place]]
            self.row.follow(before)
            self.seen.append([1, 2, 1, *before])
            drawn.append(self.row.draw(logits_of(before)))
        kept = next((i for i, token in enumerate(draft) if token != drawn[i]), len(draft))
        self.refused += len(draft) - kept
        self.output += drawn[: kept + 1]


@pytest.mark.parametrize("params", PARAMS, ids=lambda params: str(params.seed))
def test_a_text_is_the_same_with_drafts_right_and_wrong(params, rng):
    wanted = host_engine_rows.alone(VOCAB, params, [1, 2, 1], 60)
    passes = Passes(HostRow(params, vocab_size=VOCAB, prompt_ids=[1, 2, 1]), wanted, rng)
    while len(passes.output) < 50:
        passes.run()
        passes.row.follow(passes.output)
        assert passes.row.tokens == [1, 2, 1, *passes.output]
    assert passes.output == wanted[: len(passes.output)]
    assert passes.refused > 5


@pytest.mark.parametrize("stateful", [False, True])
def test_processors_of_the_callers_own_are_given_what_their_row_follows(rng, stateful):
    """Without a token of a draft that was refused; one with state begins anew after such a draft."""
    calls: list[list[int]] = []

    class Notes(processors.LogitsProcessor):
        def __init__(self):
            self.read: list[int] = []

        def __call__(self, input_ids, scores):
            ids = input_ids[0].tolist()
            assert not stateful or ids[: len(self.read)] == self.read, "a processor with state cannot go back"
            self.read = ids
            calls.append(ids)
            return scores

    Notes.stateful = stateful
    params = SamplingParams(seed=6)
    wanted = host_engine_rows.alone(VOCAB, params, [1, 2, 1], 60)
    row = HostRow(params, vocab_size=VOCAB, prompt_ids=[1, 2, 1], processors=lambda number: [Notes()])
    passes = Passes(row, wanted, rng)
    while len(passes.output) < 40:
        passes.run()
    assert calls == passes.seen
    assert passes.output == wanted[: len(passes.output)]
