"""How long drafts are: expected tokens against measured times."""

from __future__ import annotations

import numpy as np
import pytest

from decodestep.generation.drafts import Outlook
from decodestep.generation.drafts.lengths import Acceptance, choose_lengths
from decodestep.generation.forward_cost import ForwardCost, Work


def test_lengths_are_those_with_the_most_expected_tokens_per_second():
    rng = np.random.default_rng(0)

    def rate(outlooks, lengths, times):
        expected = len(outlooks) + sum(
            sum(one.chance**j for j in range(1, n + 1)) for one, n in zip(outlooks, lengths, strict=True)
        )
        return expected / times[sum(lengths)]

    for _ in range(200):
        outlooks = [Outlook(int(rng.integers(0, 5)), float(rng.uniform(0, 1))) for _ in range(rng.integers(1, 5))]
        times = np.cumsum(rng.uniform(0, 1, 21)) + 1
        lengths = choose_lengths(outlooks, len(outlooks), times.__getitem__)
        every = np.ndindex(*(one.tokens + 1 for one in outlooks))
        best = max(rate(outlooks, some, times) for some in every)
        none = rate(outlooks, [0] * len(outlooks), times)
        assert rate(outlooks, lengths, times) == pytest.approx(best if best > 1.03 * none else none)


def test_nothing_is_drafted_where_a_token_takes_as_long_as_a_pass():
    assert choose_lengths([Outlook(8, 0.95)], 1, lambda drafted: 1.0 + drafted) == [0]
    assert choose_lengths([Outlook(8, 0.95)], 1, lambda drafted: 1.0) == [8]
    assert choose_lengths([Outlook(8, 0.95)], 64, lambda drafted: 64.0 + drafted) == [0]


def test_a_drafter_that_is_wrong_is_asked_less_and_found_again_after_a_pause():
    acceptance, chances = Acceptance(), []
    for length in range(10):
        chances.append(acceptance.chance(0.9, length))
        acceptance.learn(0.9, 0, 1, length)
    assert chances == sorted(chances, reverse=True) and chances[0] == 0.9 and chances[-1] < 0.4
    assert acceptance.chance(0.9, 1000) == 0.9
    for length in range(1000, 1010):
        acceptance.learn(0.5, 4, 4, length)
    assert acceptance.chance(0.5, 1010) > 0.8


def test_times_of_passes_with_drafts_are_learnt():
    """12 ms for a pass, and 2 ms for each token after the fourth."""
    cost = ForwardCost()
    cost.learn(Work(0, 0, 1, 256, 0), 0.5)
    for turn in range(300):
        drafted = (0, 0, 0, 3, 7)[turn % 5]
        cost.learn(Work(1, 0, 0, drafted=drafted), 0.012 + 0.002 * max(0, drafted - 3))
    at = [cost.decoding(Work(1, 0, 0, drafted=drafted)) for drafted in range(8)]
    assert at == pytest.approx([0.012, 0.012, 0.012, 0.012, 0.014, 0.016, 0.018, 0.020], rel=0.01)
    assert cost.decoding(Work(1, 0, 0, drafted=9)) > at[-1]
