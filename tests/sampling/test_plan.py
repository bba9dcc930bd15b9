"""The plan of a list of processors equals the list, in any order that it accepts; other orders are refused."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodestep import processors as p
from decodestep.constraints.processor import ConstraintLogitsProcessor
from decodestep.ops.decode_step import decode_step
from decodestep.sampling.fusion_rules import RULES
from decodestep.sampling.plan import plan
from decodestep.sampling.thinking_budget import ThinkingBudget
from decodestep.sampling.token_history import TokenHistory
from support.tolerances import assert_same_chain

VOCAB = 60


class Shift(p.LogitsProcessor):
    """A user's own: it moves every second token."""

    def __call__(self, input_ids, scores):
        return scores + np.where(np.arange(scores.shape[-1]) % 2, 0.25, 0.0).astype(scores.dtype)


def random_processor(rng, name, length, prompt):
    """One processor of the class, with arguments that matter for a history of this length."""
    some = lambda n: rng.choice(VOCAB, n, replace=False).tolist()  # noqa: E731
    keep = int(rng.integers(1, 4))
    return {
        "Sequence": lambda: p.SequenceBiasLogitsProcessor({(a,): 1.5 for a in some(2)} | {tuple(some(2)): -2.0}),
        "Bias": lambda: p.LogitBiasLogitsProcessor({a: float(rng.normal()) for a in some(3)}),
        "Repetition": lambda: p.RepetitionPenaltyLogitsProcessor(float(rng.choice([0.7, 1.4])), int(rng.integers(0, 3))),
        "Encoder": lambda: p.EncoderRepetitionPenaltyLogitsProcessor(1.3, np.array([some(4)])),
        "Counted": lambda: p.PresenceFrequencyPenaltyLogitsProcessor(0.4, 0.3, prompt),
        "DRY": lambda: p.DRYLogitsProcessor(0.8, 1.75, 2, some(1), int(rng.choice([0, 6]))),
        "NGram": lambda: p.NoRepeatNGramLogitsProcessor(int(rng.integers(1, 4))),
        "BadWords": lambda: p.NoBadWordsLogitsProcessor([some(1), some(2)]),
        "MinLength": lambda: p.MinLengthLogitsProcessor(length + int(rng.integers(-1, 2)), some(2)),
        "MinNew": lambda: p.MinNewTokensLengthLogitsProcessor(prompt, int(rng.integers(0, 9)), some(1)),
        "BOS": lambda: p.ForcedBOSTokenLogitsProcessor(some(1)[0]),
        "EOS": lambda: p.ForcedEOSTokenLogitsProcessor(length + 1 + int(rng.integers(0, 2)), some(2)),
        "Decay": lambda: p.ExponentialDecayLengthPenalty((1, 1.2), some(2), prompt),
        "Suppress": lambda: p.SuppressTokensLogitsProcessor(some(int(rng.choice([3, 50])))),
        "Begin": lambda: p.SuppressTokensAtBeginLogitsProcessor(some(3), length),
        "Allowed": lambda: p.AllowedTokenIdsLogitsProcessor(some(int(rng.choice([20, 40, VOCAB])))),
        "Repair": p.InfNanRemoveLogitsProcessor,
        "Prefix": lambda: p.PrefixConstrainedLogitsProcessor(lambda b, ids: [1, 5, 9, 20, 33], 1),
        "Own": Shift,
        "Temperature": lambda: p.TemperatureLogitsWarper(float(rng.choice([0.5, 1.3]))),
        "Sigma": lambda: p.TopNSigmaLogitsWarper(1.5),
        "TopH": lambda: p.TopHLogitsWarper(0.7),
        "TopK": lambda: p.TopKLogitsWarper(int(rng.integers(1, 40)), min_tokens_to_keep=keep),
        "TopP": lambda: p.TopPLogitsWarper(float(rng.choice([0.3, 0.9])), min_tokens_to_keep=keep),
        "MinP": lambda: p.MinPLogitsWarper(0.05, min_tokens_to_keep=keep),
        "Typical": lambda: p.TypicalLogitsWarper(0.8, min_tokens_to_keep=keep),
        "Epsilon": lambda: p.EpsilonLogitsWarper(0.01, min_tokens_to_keep=keep),
        "Eta": lambda: p.EtaLogitsWarper(0.02, min_tokens_to_keep=keep),
        "XTC": lambda: p.XTCLogitsWarper(0.5, 0.05, seed=int(rng.integers(0, 9)), special_tokens=[0, 5]),
        "Normalise": p.LogitNormalization,
    }[name]()


NAMES = [
    "Sequence",
    "Bias",
    "Repetition",
    "Encoder",
    "Counted",
    "DRY",
    "NGram",
    "BadWords",
    "MinLength",
    "MinNew",
    "BOS",
    "EOS",
    "Decay",
    "Suppress",
    "Begin",
    "Allowed",
    "Repair",
    "Prefix",
    "Own",
    "Temperature",
    "Sigma",
    "TopH",
    "TopK",
    "TopP",
    "MinP",
    "Typical",
    "Epsilon",
    "Eta",
    "XTC",
    "Normalise",
]


def run(processors, logits, tokens):
    """The oracle: each class in turn; None once the scores leave the type, where the plan still has a draw to make.

    That is at a score of +inf, of which the classes make NaN, where a temperature takes the largest to -inf, and where the
    largest has no digits left for a logarithm: the classes that take an entropy subtract one from it. Repair makes such scores.
    """
    ids = np.array([tokens], np.int64)
    scores = logits[None]
    for processor in processors:
        dead = np.isneginf(scores).all()
        if isinstance(processor, (p.EtaLogitsWarper, p.TopHLogitsWarper)) and not dead and abs(scores.max()) > 2.0**52:
            return None
        with np.errstate(over="ignore"):  # repair and decay together reach the ends of the type
            scores = processor(ids, scores)
        left = isinstance(processor, p.TemperatureLogitsWarper) and np.isneginf(scores).all() and not dead
        if left or np.isposinf(scores).any():
            return None
    return scores[0]


def fused(processors, logits, tokens, prompt, seed=0):
    made = plan(processors, VOCAB)
    history = TokenHistory(tokens[:prompt])
    for token in tokens[prompt:]:
        history.append(token)
    row, steps = made.apply_unfused(logits, history), made.tail.steps(history)
    return decode_step(row[None], [steps], seed=seed, position=len(tokens), need_processed=True)


REPAIRS_AND_FORCES = {"Repair", "Prefix", "BOS", "EOS"}
FILTERS = {"Sigma", "TopH", "TopK", "TopP", "MinP", "Typical", "Epsilon", "Eta", "XTC"}


def legal_order(names):
    """The names in their order, but repairs and forced tokens before the first filter, and one normalisation at the end."""
    first = next((i for i, name in enumerate(names) if name in FILTERS), len(names))
    late = [name for name in names[first:] if name in REPAIRS_AND_FORCES]
    rest = [name for name in names[first:] if name not in REPAIRS_AND_FORCES]
    ordered = [name for name in (*names[:first], *late, *rest) if name != "Normalise"]
    return ordered + ["Normalise"] * ("Normalise" in names)


def example(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    length = data.draw(st.integers(1, 14))
    prompt = data.draw(st.integers(0, length))
    tokens = rng.integers(0, 12, length).tolist()
    names = legal_order(data.draw(st.lists(st.sampled_from(NAMES), max_size=7)))
    processors = [random_processor(rng, name, length, prompt) for name in names]
    logits = rng.standard_normal(VOCAB) * 3
    if data.draw(st.booleans()):
        logits = np.round(logits)  # ties
    if data.draw(st.booleans()):
        logits[rng.integers(0, VOCAB, 10)] = -np.inf
    return processors, logits, tokens, prompt


@pytest.mark.slow
@settings(max_examples=1500)
@given(st.data())
def test_a_plan_equals_its_processors(data):
    processors, logits, tokens, prompt = example(data)
    plan(processors, VOCAB)
    try:
        want = run(processors, logits, tokens)
    except ValueError:  # eta and top-h refuse a row without a candidate; the plan has a token for that: -1
        assert fused(processors, logits, tokens, prompt).tokens[0] == -1
        return
    if want is None:
        fused(processors, logits, tokens, prompt)
        return
    result = fused(processors, logits, tokens, prompt)
    want = np.where(np.isnan(want), -np.inf, want)  # log softmax of nothing
    np.testing.assert_array_equal(np.isfinite(result.processed[0]), np.isfinite(want))
    assert_same_chain(result.processed[0], want)
    # And in float32, where the classes themselves do not stand on a knife edge.
    narrow = run(processors, logits.astype(np.float32), tokens)
    narrow = np.full(VOCAB, np.nan) if narrow is None else np.where(np.isnan(narrow), -np.inf, narrow)
    if np.array_equal(np.isfinite(narrow), np.isfinite(want)):
        mine = fused(processors, logits.astype(np.float32), tokens, prompt)
        np.testing.assert_array_equal(np.isfinite(mine.processed[0]), np.isfinite(narrow))
        assert_same_chain(mine.processed[0], narrow)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_repair_finds_the_nan_that_no_step_before_it_has_forbidden(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    # Without BadWords: to transformers, NaN less infinity is still NaN; to a plan it is forbidden.
    usable = [*(name for name in NAMES[: NAMES.index("Repair")] if name != "BadWords"), "Own"]
    names = data.draw(st.lists(st.sampled_from(usable), max_size=5))
    processors = [random_processor(rng, name, 6, 3) for name in [*names, "Repair", "Bias"]]
    logits, tokens = rng.standard_normal(VOCAB).astype(np.float32), rng.integers(0, 12, 6).tolist()
    logits[rng.integers(0, VOCAB, 20)] = rng.choice([np.nan, -np.inf], 20)
    result = fused(processors, logits, tokens, 3)
    assert_same_chain(result.processed[0], run(processors, logits, tokens))
    assert plan(processors, VOCAB).trace(logits, tokens).scores.tobytes() == result.processed[0].tobytes()


def test_a_temperature_that_would_leave_the_type_leaves_a_draw():
    processors = [p.InfNanRemoveLogitsProcessor(), p.TemperatureLogitsWarper(0.5)]
    assert run(processors, np.full(VOCAB, -np.inf), [1]) is None
    assert 0 <= fused(processors, np.full(VOCAB, -np.inf, np.float32), [1], 0).tokens[0] < VOCAB


def test_a_prefix_beside_infinity_is_silent():
    logits = np.zeros(VOCAB, np.float32)
    logits[[2, 9]] = np.inf  # 9 is allowed, 2 is not
    processors = [p.PrefixConstrainedLogitsProcessor(lambda b, ids: [1, 9], 1)]
    assert fused(processors, logits, [1], 0).tokens[0] == 9


P = p
BAD_ORDERS = [
    ([P.TopKLogitsWarper(3), P.InfNanRemoveLogitsProcessor()], "bring back what was filtered"),
    ([P.EtaLogitsWarper(0.2), P.TemperatureLogitsWarper(0.5), P.InfNanRemoveLogitsProcessor()], "bring back"),
    ([P.TopPLogitsWarper(0.5), P.ForcedBOSTokenLogitsProcessor(1)], "bring back what was filtered"),
    ([P.MinPLogitsWarper(0.5), P.PrefixConstrainedLogitsProcessor(lambda b, i: [1], 1)], "bring back what was filtered"),
    ([P.LogitNormalization(), P.TemperatureLogitsWarper(0.5)], "log-probabilities are final"),
    ([P.LogitNormalization(), P.LogitNormalization()], "log-probabilities are final"),
    ([P.TemperatureLogitsWarper(0.5), P.ClassifierFreeGuidanceLogitsProcessor(2.0)], "comes first"),
]


@pytest.mark.parametrize(("processors", "reason"), BAD_ORDERS)
def test_refuses_an_order_and_names_both_neighbours(processors, reason):
    with pytest.raises(ValueError, match=reason) as error:
        plan(processors, VOCAB)
    assert type(processors[-1]).__name__ in str(error.value)
    assert any(type(other).__name__ in str(error.value) for other in processors[:-1])
    if len({*map(type, processors)}) > 1:
        plan(processors[::-1], VOCAB)


def test_a_random_order_is_refused_exactly_where_it_is_not_legal():
    rng, refused = np.random.default_rng(5), 0
    for _ in range(500):
        names = rng.choice(NAMES, rng.integers(0, 8)).tolist()
        processors = [random_processor(rng, name, 5, 2) for name in names]
        if names == legal_order(names):
            plan(processors, VOCAB)
        else:
            refused += 1
            with pytest.raises(ValueError, match="^plan: processors must be in a legal order"):
                plan(processors, VOCAB)
    assert 50 < refused < 450


def test_refuses_what_cannot_be_called():
    with pytest.raises(ValueError, match="^plan: processors must be callables"):
        plan(["top_k"], VOCAB)


def test_what_cannot_be_fused_runs_step_by_step_and_is_listed():
    filled = p.TopKLogitsWarper(3, filter_value=-99.0)
    given = [p.TemperatureLogitsWarper(0.5), Shift(), filled, p.TopKLogitsWarper(9), lambda ids, scores: scores]
    made = plan(given, VOCAB)
    given.clear()
    lines = made.explain().splitlines()
    assert [int(line.split(".")[0]) for line in lines] == [1, 2, 3, 4, 5]
    assert [("fused" in line, "step by step" in line) for line in lines] == [
        (True, False),
        (False, True),
        (False, True),
        (True, False),
        (False, True),
    ]
    assert "TemperatureLogitsWarper(temperature=0.5)" in lines[0]


def test_a_trace_draws_with_seed_0_unless_another_is_given():
    token, *of_seeds = (plan([], VOCAB).trace(np.zeros(VOCAB), [1], **seed).token for seed in ({}, {"seed": 0}, {"seed": 1}))
    assert token == of_seeds[0] != of_seeds[1]


@pytest.mark.parametrize(
    "processor",
    [
        p.XTCLogitsWarper(0.5, 0.05, seed=3, padding=1),
        p.XTCLogitsWarper(0.5, 0.05, seed=3, padding=np.array([1])),
        p.XTCLogitsWarper(0.5, 0.05, seed=np.array([3], np.uint64)),
        p.RepetitionPenaltyLogitsProcessor(1.4, np.array([2])),
    ],
)
def test_padding_and_a_value_for_each_row_run_step_by_step(processor):
    logits, tokens = np.linspace(-2, 2, VOCAB), [0, 5, 7, 5]
    assert "step by step" in plan([processor], VOCAB).explain()
    np.testing.assert_allclose(fused([processor], logits, tokens, 2).processed[0], run([processor], logits, tokens))


@pytest.mark.parametrize(
    "processor",
    [
        p.AllowedTokenIdsLogitsProcessor([5, 7, 5]),
        p.SuppressTokensLogitsProcessor([5, 7, 5]),
        p.SuppressTokensAtBeginLogitsProcessor([5, 7, 5], 2),
        p.MinLengthLogitsProcessor(9, [5, 7, 5]),
        p.SuppressTokensLogitsProcessor([-1, 5, VOCAB]),
        p.MinLengthLogitsProcessor(9, [-1, VOCAB]),
        p.ForcedEOSTokenLogitsProcessor(3, [5, 7, 5]),
        p.ExponentialDecayLengthPenalty((0, 1.3), [5, 7, 5], 1),
    ],
)
def test_an_id_may_be_given_twice_or_be_none_of_the_vocabulary(processor):
    logits = np.linspace(-2, 2, VOCAB)
    np.testing.assert_allclose(fused([processor], logits, [3, 5], 1).processed[0], run([processor], logits, [3, 5]))


@pytest.mark.parametrize("count", [0, 2, 3, 5])
def test_a_repetition_is_one_of_the_last_tokens_only(count):
    logits, tokens = np.zeros(VOCAB), [1, 2, 3, 1, 2]
    processor = p.DRYLogitsProcessor(1.0, allowed_length=1, range=count)
    scores = fused([processor], logits, tokens, 1).processed[0]
    assert scores[3] == run([processor], logits, tokens)[3] == (-1.75 if count in (0, 5) else 0)


def test_the_ids_of_an_encoder_are_one_row():
    with pytest.raises(
        ValueError, match="^plan: encoder_input_ids must be one row: those of the row that the processor serves"
    ):
        plan([p.EncoderRepetitionPenaltyLogitsProcessor(1.3, np.array([[1, 2], [3, 4]]))], VOCAB)


def test_a_callable_that_returns_another_shape_is_refused():
    with pytest.raises(ValueError, match="^plan: .* must be a function to scores of shape 1x60"):
        fused([lambda ids, scores: scores[:, :5]], np.zeros(VOCAB), [1], 1)


@pytest.mark.parametrize("other", [np.bool_, np.complex64, np.str_, np.object_])
def test_a_callable_that_returns_no_numbers_is_refused(other):
    with pytest.raises(ValueError, match="^plan: .* must be a function to scores of shape 1x60; got "):
        fused([lambda ids, scores: scores.astype(other)], np.zeros(VOCAB), [1], 1)


@pytest.mark.parametrize("other", [np.int64, np.float16, ml_dtypes.bfloat16])
def test_a_callable_may_return_numbers_of_another_type(other):
    made = plan([lambda ids, scores: scores.astype(other)], VOCAB)
    np.testing.assert_array_equal(made.apply_unfused(np.arange(VOCAB, dtype=np.float32), TokenHistory([1])), np.arange(VOCAB))


def test_every_class_that_a_row_can_use_has_a_rule():
    beams = {"HammingDiversityLogitsProcessor"}
    dense = {
        "WatermarkLogitsProcessor",
        "SynthIDTextWatermarkLogitsProcessor",
        "EncoderNoRepeatNGramLogitsProcessor",
        "ForceTokensLogitsProcessor",
        "LogitsProcessor",
        "LogitsProcessorList",
    }
    audio = {name for name in p.__all__ if name.startswith(("Alternating", "Bark", "Dia", "Whisper"))}
    detectors = {name for name in p.__all__ if "Detector" in name or name.endswith("State")}
    # They need the tokens' bytes, so `processors` has them not.
    from_params = {ConstraintLogitsProcessor.__name__, ThinkingBudget.__name__}
    assert set(p.__all__) - beams - dense - audio - detectors | from_params == {cls.__name__ for cls in RULES}


@settings(max_examples=300)
@given(
    st.lists(st.integers(0, 4) | st.integers(0, 99), min_size=1, max_size=60),
    st.integers(0, 60),
    st.sets(st.integers(0, 60), min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_a_growing_history_equals_a_new_one(tokens, prompt, skips, n):
    prompt = min(prompt, len(tokens))
    grown = TokenHistory(tokens[:prompt])
    for length in range(prompt, len(tokens) + 1):
        so_far = tokens[:length]
        if length > prompt:
            grown.append(tokens[length - 1])
        assert (grown.tokens, len(grown) - grown.prompt_length) == (so_far, length - prompt)
        assert grown.highest == max(so_far, default=-1)
        for skipped in skips:
            tally, counts = grown.tally(skipped), Counter(so_far[skipped:])
            assert tally.ids.tolist() == list(counts)
            assert tally.counts.tolist() == list(counts.values())
        beginning = so_far[length - n + 1 :] if length >= n - 1 else None
        grams = [so_far[i : i + n] for i in range(length - n + 1)]
        assert sorted(grown.followers(n).tolist()) == sorted({gram[-1] for gram in grams if gram[:-1] == beginning})


def test_a_plan_follows_a_growing_history():
    rng = np.random.default_rng(0)
    chain = [random_processor(rng, name, 9, 3) for name in NAMES if name not in ("Prefix", "Own", "BOS", "EOS", "Normalise")]
    tokens = rng.integers(0, 9, 40).tolist()
    made, history = plan(chain[:-1], VOCAB), TokenHistory(tokens[:3])
    logits = rng.standard_normal(VOCAB).astype(np.float32)
    for length, token in enumerate(tokens[3:], 3):
        mine, want = (
            decode_step(each.apply_unfused(logits, past)[None], [each.tail.steps(past)], position=length, need_processed=True)
            for each, past in ((made, history), (plan(chain[:-1], VOCAB), TokenHistory(tokens[:length])))
        )
        np.testing.assert_array_equal(mine.processed, want.processed)
        history.append(token)


@pytest.mark.parametrize(
    "processor",
    [
        p.MinLengthLogitsProcessor(1, [5, 7]),
        p.MinNewTokensLengthLogitsProcessor(0, 1, [5, 7]),
        p.SuppressTokensAtBeginLogitsProcessor([5, 7], 0),
    ],
)
def test_the_first_token_of_a_row_without_a_prompt_is_masked_too(processor):
    logits = np.linspace(-2, 2, VOCAB)
    scores = fused([processor], logits, [], 0).processed[0]
    assert np.isneginf(scores).nonzero()[0].tolist() == [5, 7]
    np.testing.assert_array_equal(scores, run([processor], logits, []))


@pytest.mark.parametrize(
    "biases",
    [
        {(5, 7): 1e17, (3, 5, 7): -1e17, (7,): 1.0},
        {(9, 8): 2.0, (3, 5, 7): 1e17, (2, 3, 5, 7): -1e17, (5, 7): 1.0},
    ],
)
def test_biases_of_a_token_add_up_in_the_order_of_the_class(biases):
    """The one that comes first is lost beside the others."""
    processor = p.SequenceBiasLogitsProcessor(biases)
    scores = fused([processor], np.zeros(VOCAB), [2, 3, 5], 1).processed[0]
    assert scores[7] == run([processor], np.zeros(VOCAB), [2, 3, 5])[7] == 0.0


@pytest.mark.parametrize("name", ["Repetition", "Counted", "NGram"])
def test_tokens_past_the_vocabulary_are_ignored(name):
    processor = random_processor(np.random.default_rng(1), name, 8, 0)
    tokens = [5, VOCAB + 3, 5, VOCAB + 3, 7, 5, 7, 5]
    logits = np.linspace(-2, 2, VOCAB)
    np.testing.assert_allclose(fused([processor], logits, tokens, 2).processed[0], run([processor], logits, tokens))


@pytest.mark.parametrize(
    "processor",
    [
        p.SequenceBiasLogitsProcessor([[[], 1.0]]),
        p.SequenceBiasLogitsProcessor([[[5, 7], -3.0], [[], 1.0]]),
        p.NoBadWordsLogitsProcessor([[]]),
        p.NoBadWordsLogitsProcessor([[5, 7], []]),
    ],
)
def test_an_empty_sequence_ends_in_no_token(processor):
    """As transformers takes one in a list."""
    logits = np.linspace(-2, 2, VOCAB)
    want = run([processor], logits, [3, 5])
    np.testing.assert_allclose(fused([processor], logits, [3, 5], 1).processed[0], want)
    np.testing.assert_allclose(plan([processor], VOCAB).trace(logits, [3, 5]).scores, want)
