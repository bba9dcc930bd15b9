"""How long drafts are: expected tokens against measured times."""

from __future__ import annotations

import numpy as np
import pytest

from decodestep.generation.drafts import Outlook
from decodestep.generation.drafts.experience import Experience
from decodestep.generation.drafts.lengths import choose_lengths
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
    experience, chances = Experience(), []
    for _ in range(10):
        chances.append(experience.chance(0.9))
        experience.learn(0.9, 0, 1)
    assert chances == sorted(chances, reverse=True) and chances[0] == 0.9 and chances[-1] < 0.3
    for _ in range(2000):
        experience.rest()
    assert experience.chance(0.9) == pytest.approx(0.9, abs=0.01)
    for _ in range(10):
        experience.learn(0.5, 4, 4)
    assert experience.chance(0.5) > 0.8


def share_of_a_wrong_drafter(claimed, tokens, verify, drafting):
    """The tokens per second with a drafter whose tokens are always wrong, over those without, once it is known.

    Of a pass of one second; verify: of each further token. drafting: the seconds of making one.
    """
    experience, spent, passes = Experience(), 0.0, 2000
    for turn in range(200 + passes):
        offer = Outlook(tokens, experience.chance(claimed), drafting if turn else 0.0)
        [length] = choose_lengths([offer], 1, lambda drafted: 1 + verify * drafted)
        if length:
            experience.learn(claimed, 0, 1)
        else:
            experience.rest()
        spent += (1 + (verify + drafting) * length) * (turn >= 200)
    return passes / spent


@pytest.mark.parametrize("claimed", [0.05, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("tokens", [1, 4, 32])
def test_a_drafter_that_is_always_wrong_takes_hardly_any_time(claimed, tokens):
    for verify in (0.0, 0.01, 0.03, 0.1, 0.3, 1.0):
        for drafting in (0.0, 0.01, 0.1, 0.5, 2.0):
            assert share_of_a_wrong_drafter(claimed, tokens, verify, drafting) > 0.97, (verify, drafting)


def test_a_drafter_that_was_wrong_for_long_comes_to_draft_again():
    """Ever longer ones, once its tokens have become right."""
    experience, lengths = Experience(), []
    for turn in range(4000):
        right = turn > 3500
        [length] = choose_lengths([Outlook(8, experience.chance(0.8))], 1, lambda drafted: 1 + 0.05 * drafted)
        if length:
            experience.learn(0.8, length * right, length if right else 1)
        else:
            experience.rest()
        lengths.append(length)
    assert 0 < sum(lengths[1000:3500]) * 0.05 < 0.02 * 2500
    first = next(turn for turn in range(3501, 4000) if lengths[turn])
    assert first < 3600 and min(lengths[first + 60 :]) == 8


def test_the_time_of_a_drafted_token_has_its_share_of_what_is_read_first():
    experience = Experience()
    assert experience.seconds() == 0
    experience.time(4.0, 1, 40)
    experience.time(2.0, 2, 2)
    assert experience.seconds() == 1 and experience.seconds(40, 100) == 1 + 0.1 * 40 / 100


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
