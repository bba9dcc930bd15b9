"""How a checkpoint says that it is sampled: what is read of it, where it is used, and what of it a caller keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import decodestep as ds
from decodestep import ModelError, SamplingParams
from decodestep.files.gguf_file import GgufFile
from decodestep.models.sampling_defaults import default_params, with_defaults

PLACE = Path("model")


def test_five_fields_are_read_and_no_other():
    given = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.05}
    others = {"max_new_tokens": 5, "max_length": 20, "num_beams": 4, "typical_p": 0.5, "do_sample": True, "eos_token_id": 3}
    assert default_params(PLACE, {**given, **others}) == SamplingParams(**given)
    assert default_params(PLACE, {}) == SamplingParams()
    assert default_params(PLACE, dict.fromkeys(given)) == SamplingParams()


def test_a_temperature_of_0_is_greedy_by_do_sample():
    """So that a request which asks for a filter samples, as of every model that is greedy by its own word."""
    assert default_params(PLACE, {"temperature": 0, "top_k": 4}) == SamplingParams(do_sample=False, top_k=4)


@pytest.mark.parametrize(("do_sample", "greedy"), [(False, True), (True, False), (None, False)])
def test_greedy_only_where_it_is_said(do_sample, greedy):
    assert default_params(PLACE, {"do_sample": do_sample, "temperature": 0.7}).greedy == greedy


def test_a_value_outside_its_rule_is_told_with_the_file():
    with pytest.raises(ModelError, match="^model: the model's own sampling defaults: SamplingParams: top_p must be"):
        default_params(PLACE, {"top_p": 3})


def test_the_keys_of_a_file_are_read_as_the_decimals_that_were_written(tiny_file):
    keys = {"temp": 0.6, "top_k": 20, "top_p": 0.949999988079071, "min_p": 0.05, "penalty_repeat": 1.1, "typical": 3.0}
    path = tiny_file(**{f"general.sampling.{name}": value for name, value in keys.items()})
    given = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}
    assert GgufFile(path).sampling_defaults == given
    assert ds.load(path).default_params == SamplingParams(**given)
    assert ds.load(tiny_file()).default_params == SamplingParams()


def test_a_model_with_a_wrong_value_loads_and_runs_where_params_are_given(tiny_file):
    model = ds.load(tiny_file(**{"general.sampling.temp": -1.0}))
    assert ds.generate(model, [[1, 2]], SamplingParams(max_new_tokens=2, ignore_eos=True))[0].finish_reason == "length"
    with pytest.raises(ModelError, match="temperature must be"):
        ds.generate(model, [[1, 2]])


def test_params_that_are_given_replace_all_of_the_models(tiny_file):
    model = ds.load(tiny_file(**{"general.sampling.temp": 0.0}))
    greedy = [ds.generate(model, [[1, 2, 3]])[0].token_ids for _ in range(2)]
    assert greedy[0] == greedy[1] == ds.generate(model, [[1, 2, 3]], SamplingParams(temperature=0))[0].token_ids
    assert ds.generate(model, [[1, 2, 3]], SamplingParams(seed=5))[0].seed == 5
    assert ds.generate(model, [[1, 2, 3]], SamplingParams())[0].seed is not None
    with ds.stream(model, [1, 2, 3]) as stream:
        next(stream)
    assert stream.completion.seed is None


def test_what_a_request_leaves_out_keeps_the_models():
    model = SamplingParams(temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.1)
    left = with_defaults(SamplingParams(max_new_tokens=7, top_p=0.5), {"max_new_tokens", "top_p"}, model)
    assert left == replace(model, max_new_tokens=7, top_p=0.5)
    assert with_defaults(SamplingParams(temperature=1.0), {"temperature"}, model).temperature == 1.0  # its default, but given


@pytest.mark.parametrize(("given", "greedy"), [({}, True), ({"temperature": 0.7}, False), ({"top_p": 0.9}, False)])
def test_who_asks_for_a_filter_of_a_greedy_model_samples(given, greedy):
    assert with_defaults(SamplingParams(**given), given, SamplingParams(do_sample=False)).greedy == greedy


def test_samplers_leave_out_the_models_filters_that_they_do_not_name():
    asked = SamplingParams(samplers=["top_k"], top_k=5)
    found = with_defaults(asked, {"samplers", "top_k"}, SamplingParams(temperature=0.6, top_p=0.9, repetition_penalty=1.2))
    assert found == replace(asked, repetition_penalty=1.2)
