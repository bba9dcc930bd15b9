"""What params do to scores, against the fusion of the processors that define it; and what each step must have."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep.cli import options
from decodestep.explain.descriptions import DESCRIPTIONS
from decodestep.integrations import host_params
from decodestep.ops.decode_step import arguments, reference
from decodestep.ops.decode_step import steps as s
from decodestep.sampling import thresholds
from decodestep.sampling.fusion_rules import RULES
from decodestep.sampling.param_steps import BEFORE_OWN, LAST, SAMPLER_STEPS, Setting
from decodestep.sampling.params import DEFAULTS, SAMPLERS
from decodestep.sampling.parts import build_steps
from decodestep.sampling.token_history import TokenHistory

VOCAB = 16
ALL = (*BEFORE_OWN, *SAMPLER_STEPS.values(), *LAST)
some_ids = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4).map(tuple)
# For each step a strategy of the fields that set it.
FIELDS = {
    "sequence_bias": st.dictionaries(some_ids, st.floats(-2, 2) | st.integers(-2, 2), min_size=1, max_size=5),
    "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-2, 2) | st.just(-np.inf), min_size=1, max_size=5),
    "repetition_penalty": st.floats(0.5, 2) | st.just(2),
    "repetition_range": st.integers(0, 9),
    "presence_penalty": st.floats(-1, 1) | st.just(1),
    "frequency_penalty": st.floats(-1, 1),
    "dry_multiplier": st.floats(0, 2) | st.just(1),
    "dry_base": st.floats(1, 1e30),
    "dry_allowed_length": st.integers(1, 3) | st.sampled_from([50, 51]),
    "dry_sequence_breakers": some_ids,
    "dry_range": st.integers(0, 9),
    "no_repeat_ngram_size": st.integers(0, 4),
    "bad_words_ids": st.lists(some_ids, max_size=4),
    "min_length": st.integers(0, 12),
    "min_new_tokens": st.integers(0, 8),
    "min_tokens": st.integers(0, 8),
    "stop_token_ids": some_ids,
    "forced_bos_token_id": st.integers(0, VOCAB - 1),
    "forced_eos_token_id": st.integers(0, VOCAB - 1) | some_ids,
    "max_new_tokens": st.integers(1, 8) | st.none(),
    "exponential_decay_length_penalty": st.tuples(st.integers(0, 4), st.floats(0.5, 9.5) | st.just(1e300)),
    "suppress_tokens": some_ids,
    "begin_suppress_tokens": some_ids,
    "allowed_token_ids": st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=VOCAB),
    "temperature": st.floats(0.1, 3) | st.just(2),
    "top_n_sigma": st.floats(0, 3) | st.just(1),
    "top_h": st.floats(0.1, 1),
    "top_k": st.integers(0, 20),
    "top_p": st.floats(0, 1),
    "min_p": st.floats(0, 1),
    "typical_p": st.floats(0.1, 1),
    "epsilon_cutoff": st.floats(0, 0.9),
    "eta_cutoff": st.floats(0, 0.9),
    "xtc_probability": st.floats(0, 1) | st.just(1),
    "xtc_threshold": st.floats(0, 1),
    "xtc_special_tokens": some_ids,
    "seed": st.integers(0, 2**64 - 1),
    "renormalize_logits": st.booleans(),
}
UNFUSED = {"remove_invalid_values", "watermarking_config"}


def plain(steps):
    """Steps as values that can be compared: their types, and arrays as what they hold."""
    return [
        (type(step), [(v.dtype.str, v.tolist()) if isinstance(v, np.ndarray) else (type(v), v) for v in step]) for step in steps
    ]


def test_every_step_of_params_is_compared():
    assert {name for step in ALL for name in step.fields} == FIELDS.keys() | UNFUSED


@pytest.mark.slow
@settings(max_examples=400)
@given(
    st.fixed_dictionaries({"seed": FIELDS["seed"]}, optional={name: each for name, each in FIELDS.items() if name != "seed"}),
    st.lists(st.integers(0, 3), max_size=14),
    st.integers(0, 4),
    st.sets(st.integers(0, VOCAB - 1), max_size=2),
    st.sampled_from([1, 3]),
)
def test_the_part_of_a_step_is_that_of_its_processor(fields, tokens, prompt, ends, keep):
    """The same steps, to the bit, at every length of the history."""
    params = ds.SamplingParams(**fields)
    prompt = min(prompt, len(tokens))
    row = Setting(params, prompt, VOCAB, sorted(ends), keep)
    applying = [step for step in (*BEFORE_OWN, *LAST) if step.applies(row)]
    applying += [SAMPLER_STEPS[name] for name in params.active_samplers]
    for step in applying:
        stage = step.stage(row)
        rule = RULES[type(stage.processor)]
        assert (stage.name, stage.kind) == (type(stage.processor).__name__, rule.kind)
        fused = rule.make_part(stage.processor, VOCAB)
        history = TokenHistory(tokens[:prompt])
        for token in [*tokens[prompt:], 0]:
            want, got = build_steps(fused, history, VOCAB), build_steps(stage.part, history, VOCAB)
            assert plain(got) == plain(want)
            history.append(token)


# What a step must have. A step of `decodestep.steps` is a kind of change; a step of params is what a field of SamplingParams
# makes of it. CONTRIBUTING.md lists where each of these stands.

KINDS = typing.get_args(s.Step)
# Kinds of which no number decides what they keep.
WITHOUT_THRESHOLD = {
    s.Temperature: "keeps all tokens",
    s.Normalise: "keeps all tokens",
    **dict.fromkeys(s.PATCHES, "names its tokens"),
}
# Fields without an option of the command line: they name tokens by their ids, or belong to a field that has one.
WITHOUT_OPTION = {
    "sequence_bias", "logit_bias", "bad_words_ids", "stop_token_ids", "forced_bos_token_id", "forced_eos_token_id",
    "suppress_tokens", "begin_suppress_tokens", "allowed_token_ids", "exponential_decay_length_penalty",
    "dry_sequence_breakers", "dry_base", "dry_allowed_length", "dry_range", "repetition_range", "min_length", "min_tokens",
    "remove_invalid_values", "watermarking_config", "renormalize_logits", "xtc_special_tokens",
}  # fmt: skip
# Fields that serving engines have themselves or decide, or that name tokens (see `host_params.FIELDS`).
OF_HOSTS = {
    "temperature", "top_k", "top_p", "min_p", "seed", "max_new_tokens", "min_length", "min_new_tokens", "min_tokens",
    "remove_invalid_values", "watermarking_config", "renormalize_logits", "exponential_decay_length_penalty",
    *(name for name in WITHOUT_OPTION if name.endswith(("_ids", "_id", "_bias", "suppress_tokens"))),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_kind_of_step_has_all_that_it_must_have(kind):
    assert (kind in s.PATCHES) != (kind in s.FILTERS), "steps.py: PATCHES or FILTERS"
    assert kind in reference._RULES, "reference.py: what it does"
    assert kind in arguments._RULES, "arguments.py: the rules of its fields"
    assert (kind in thresholds._RULES) != (kind in WITHOUT_THRESHOLD), (
        "thresholds.py: what decides its cut, or here why nothing"
    )


def test_every_kind_of_step_runs_in_every_kernel(rng):
    """To the bits of the reference in the core; the GPU kernel has a case for it (its bits: test_decode_step_triton.py)."""
    made = {
        s.Penalise: s.Penalise(np.array([1]), 1.5), s.Add: s.Add(np.array([1]), np.array([2.0])),
        s.Lift: s.Lift(np.array([1]), 0.5), s.Ban: s.Ban(np.array([1])), s.Allow: s.Allow(np.array([1, 2])),
        s.Force: s.Force(np.array([1, 3])), s.Temperature: s.Temperature(0.7), s.TopK: s.TopK(4), s.TopP: s.TopP(0.8),
        s.MinP: s.MinP(0.1), s.Typical: s.Typical(0.8), s.Epsilon: s.Epsilon(0.05), s.Eta: s.Eta(0.05), s.TopH: s.TopH(0.5),
        s.TopNSigma: s.TopNSigma(1.0), s.AllowBits: s.AllowBits(np.array([0b111011], np.int32)),
        s.Xtc: s.Xtc(0.05, 1.0, 7, (1, VOCAB)), s.Normalise: s.Normalise(),
    }  # fmt: skip
    assert made.keys() == set(KINDS)
    logits = rng.standard_normal((len(made), VOCAB)).astype(np.float32)
    steps = [[step] for step in made.values()]
    got, want = (ds.decode_step(logits, steps, seed=3, need_processed=True, backend=name) for name in ("cpu", "reference"))
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_array_equal(got.processed, want.processed)
    kernel = (Path(reference.__file__).parent / "triton" / "step_kernel.py").read_text()
    names = {kind: re.sub("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind.__name__).upper() for kind in s.FILTERS}
    assert [kind for kind, name in names.items() if f"if _{name} & KINDS" not in kernel] == []


@pytest.mark.parametrize("step", ALL, ids=lambda step: step.fields[0])
def test_a_step_of_params_has_all_that_it_must_have(step):
    assert all(name in DEFAULTS for name in step.fields), "params.py: its fields"
    assert (step.fields[0] in SAMPLER_STEPS) == (step.fields[0] in SAMPLERS), "params.py: its place among the filters"
    assert (step.part is None) == (step.fields[0] in UNFUSED), "param_steps.py: its part"
    if step.part is not None:
        assert RULES[step.processor].make_part, "fusion_rules.py: the rule for lists of processors"
        assert step.processor.__name__ in DESCRIPTIONS, "explain/descriptions.py: what it does, in words"
        assert step.processor.__doc__, "processors: its class, the oracle"
    for name in step.fields:
        shown = name in options._NUMBERS or name == "seed"
        assert shown != (name in WITHOUT_OPTION), "cli/options.py: an option, or here that it has none"
        assert (name in host_params.FIELDS) != (name in OF_HOSTS), "host_params.py: a field for hosts, or here that it is none"


def test_the_filters_are_those_that_have_an_order():
    assert tuple(SAMPLER_STEPS) == SAMPLERS
