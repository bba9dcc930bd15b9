"""Other people's requests: transformers' GenerationConfig and OpenAI's bodies."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from decodestep import SamplingParams


def test_generation_config_follows_transformers():
    from transformers import GenerationConfig

    assert SamplingParams.from_generation_config(GenerationConfig()) == SamplingParams(do_sample=False)
    sampled = SamplingParams.from_generation_config(GenerationConfig(do_sample=True, top_p=0.9, max_new_tokens=5))
    assert sampled == SamplingParams(top_k=50, top_p=0.9, max_new_tokens=5)
    assert SamplingParams.from_generation_config(GenerationConfig(do_sample=True, top_k=0), seed=3) == SamplingParams(seed=3)
    beams = GenerationConfig(num_beams=4, early_stopping=True, length_penalty=0.5, stop_strings="x")
    assert SamplingParams.from_generation_config(beams).num_beams == 4


def test_what_ends_a_text_is_not_dropped():
    read = SamplingParams.from_generation_config
    assert read({"eos_token_id": [1, 2]}) == SamplingParams(do_sample=False, eos_token_id=(1, 2))
    assert read({"eos_token_id": 2}) == SamplingParams(do_sample=False, eos_token_id=2)
    assert read({"max_length": 30}) == SamplingParams(do_sample=False, max_length=30, max_new_tokens=None)
    assert read({"max_length": 30, "max_new_tokens": 5}) == SamplingParams(do_sample=False, max_new_tokens=5)
    assert read({"min_length": 30}) == SamplingParams(do_sample=False, min_length=30)
    assert read({"min_length": 30, "min_new_tokens": 5}) == SamplingParams(do_sample=False, min_new_tokens=5)
    for field in ("is_assistant", "assistant_early_exit"):
        with pytest.raises(ValueError, match=f"the field {field} is not supported"):
            read({field: 3 if "early" in field else True})
    for fields in ({"is_assistant": False, "pad_token_id": 0, "bos_token_id": 1}, {"prompt_lookup_num_tokens": 3}):
        assert read(fields) == SamplingParams(do_sample=False)


def test_changes_replace_fields_before_a_configuration_is_read():
    read = SamplingParams.from_generation_config
    assert read({"top_p": 0.9}, do_sample=True) == SamplingParams(top_k=50, top_p=0.9)
    assert read({}, do_sample=True, top_k=0) == read({"top_k": 20}, do_sample=True, top_k=0) == SamplingParams()
    assert read({"do_sample": True, "top_p": 0.9}, do_sample=False) == SamplingParams(do_sample=False, top_p=0.9)
    assert read({"max_length": 30}, max_new_tokens=50) == SamplingParams(do_sample=False, max_new_tokens=50)
    assert read({"max_length": 30}, max_new_tokens=None) == read({}, max_length=30) == read({"max_length": 30})
    assert read({}, max_new_tokens=None) == SamplingParams(do_sample=False, max_new_tokens=None)
    assert read({"min_length": 30}, min_new_tokens=5) == SamplingParams(do_sample=False, min_new_tokens=5)
    assert read({"do_sample": True, "top_h": 1.0}, top_h=0.5) == SamplingParams(top_k=50, top_h=0.5)


def test_changes_have_the_synonyms_of_fields():
    expected = SamplingParams(max_new_tokens=5, stop_strings="x")
    assert SamplingParams.from_openai({"max_tokens": 3, "stop": ["y"]}, max_tokens=5, stop="x") == expected
    assert (
        SamplingParams.from_generation_config({"max_new_tokens": 3, "do_sample": True, "top_k": 0}, max_tokens=5, stop="x")
        == expected
    )


def test_arrays_are_fields_of_a_body():
    assert SamplingParams.from_openai({"stop_token_ids": np.array([1, 2])}).stop_token_ids == (1, 2)


def test_the_top_h_that_keeps_a_hundred_tokens_is_an_error():
    with pytest.raises(ValueError, match="top_h must be below 1"):
        SamplingParams.from_generation_config({"do_sample": True, "top_h": 1.0})
    assert SamplingParams.from_generation_config({"top_h": 1.0}) == SamplingParams(do_sample=False)


@pytest.mark.parametrize("read", [SamplingParams.from_openai, SamplingParams.from_generation_config])
def test_biases_of_sequences_are_pairs_where_json_has_no_other_form(read):
    expected = {(5,): 1.0, (6, 7): -2.0}
    assert read({"sequence_bias": [[[5], 1], [[6, 7], -2.0]]}).sequence_bias == expected
    assert read({"sequence_bias": expected}).sequence_bias == expected
    for wrong in ([[5, 1.0]], [[[5]]], [[[[5]], 1.0]], [[[True], 1.0]], [5], [[[], 1.0]], [[[5], "1"]], 5, "x"):
        with pytest.raises(ValueError, match="sequence_bias must be a mapping of tuples of ids to .*numbers"):
            read({"sequence_bias": wrong})


@pytest.mark.parametrize("config", [None, 3, "x", SimpleNamespace, type("Config", (), {"to_dict": dict})])
def test_what_is_no_configuration_is_an_error(config):
    with pytest.raises(ValueError, match="config must be a GenerationConfig or a mapping"):
        SamplingParams.from_generation_config(config)


@pytest.mark.parametrize(
    "field",
    [{"penalty_alpha": 0.6}, {"guidance_scale": 2.0}, {"constraints": [1]}, {"dola_layers": "high"}, {"nonsense": 1}, {1: 2}],
)
def test_generation_config_fields_that_are_not_done_are_errors(field):
    with pytest.raises(ValueError, match=f"the field {next(iter(field))} is not supported"):
        SamplingParams.from_generation_config({"do_sample": True, **field})


def test_openai_bodies():
    body = {
        "model": "m",
        "messages": [],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_completion_tokens": 7,
        "stop": ["a", "b"],
        "n": 1,
        "logit_bias": {"5": -100, "7": 2.5},
        "seed": 9,
        "presence_penalty": -2,
        "logprobs": True,
        "top_logprobs": 4,
        "user": "u",
        "top_k": 40,
    }
    assert SamplingParams.from_openai(body) == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        max_new_tokens=7,
        stop_strings=("a", "b"),
        logit_bias={5: -100.0, 7: 2.5},
        seed=9,
        presence_penalty=-2,
        logprobs=4,
        top_k=40,
    )
    assert SamplingParams.from_openai({"logprobs": 2, "max_tokens": 3}) == SamplingParams(logprobs=2, max_new_tokens=3)
    assert SamplingParams.from_openai({"logprobs": True}).logprobs == 0
    for of_which in ({}, {"best_of": 3}):
        assert SamplingParams.from_openai({"n": 3, **of_which}) == SamplingParams(num_return_sequences=3)
    assert SamplingParams.from_openai({"seed": -1}).seed == 2**64 - 1
    nothing = {"best_of": 1, "echo": False, "response_format": {"type": "text"}, "prompt_cache_key": "k", "suffix": ""}
    nothing |= {"prompt_cache_options": {"ttl": "30m"}, "prediction": None}
    nothing |= {"use_beam_search": False, "skip_special_tokens": True, "include_stop_str_in_output": False}  # as vLLM's clients
    assert SamplingParams.from_openai(nothing) == SamplingParams()
    assert SamplingParams.from_openai({"max_tokens": 5, "max_completion_tokens": 5}).max_new_tokens == 5
    assert SamplingParams.from_openai({"logprobs": False, "stop": None}) == SamplingParams()


def test_a_response_format_is_a_schema():
    read, schema = SamplingParams.from_openai, {"type": "array"}
    assert read({"response_format": {"type": "json_object"}}) == SamplingParams(json_schema={"type": "object"})
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}
    assert read({"response_format": form}) == SamplingParams(json_schema=schema)
    assert read({"response_format": {"type": "text"}, "json_schema": schema}) == SamplingParams(json_schema=schema)
    for kind in ("json_object", "json_schema"):  # as llama.cpp and Together take it
        direct = {"type": kind, "schema": schema}
        assert read({"response_format": direct}) == read({"response_format": {**direct, "json_schema": None}})
        assert read({"response_format": direct}) == SamplingParams(json_schema=schema)
    assert read({"response_format": {"type": "json_object", "schema": None}}) == SamplingParams(json_schema={"type": "object"})


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_a_number_of_tokens_of_minus_one_is_no_number(name):
    assert SamplingParams.from_openai({name: -1}).max_new_tokens is None
    assert SamplingParams.from_openai({name: 7}).max_new_tokens == 7
    with pytest.raises(ValueError, match="max_new_tokens must be"):
        SamplingParams.from_openai({name: -2})


def test_the_fields_of_other_servers_are_taken_where_they_change_nothing():
    """As clients of llama.cpp, vLLM and SGLang send them, with all their samplers off."""
    given = {
        "cache_prompt": True,
        "id_slot": -1,
        "n_keep": 0,
        "priority": 3,
        "timings_per_token": False,
        "return_progress": False,
        "parse_tool_calls": True,
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "typical_p": 1,
        "tfs_z": 1.0,
        "repeat_penalty": 1.0,
        "repeat_last_n": 64,
        "dynatemp_range": 0,
        "dynatemp_exponent": 1,
        "n_probs": 0,
        "lora": [],
        "skip_special_tokens": True,
        "include_stop_str_in_output": False,
        "top_logprobs": 0,
        "xtc_probability": 0,
        "dry_multiplier": 0,
        "min_p": 0,
        "top_k": 0,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "detokenize": True,
        "no_stop_trim": False,
        "bad_words": [],
        "return_tokens": False,
        "image_data": [],
    }
    assert SamplingParams.from_openai(given) == SamplingParams()


def test_no_breakers_of_dry_are_not_the_usual_ones():
    for given, held in ((None, None), ([], ()), ("a", ("a",)), (["\n", 3], ("\n", 3))):
        assert SamplingParams.from_openai({"dry_sequence_breakers": given}).dry_sequence_breakers == held


@pytest.mark.parametrize(
    ("field", "rule"),
    [
        ({"mirostat": 2}, "mirostat must be 0; got 2"),
        ({"tfs_z": 0.9}, "tfs_z must be 1; got 0.9"),
        ({"timings_per_token": True}, "timings_per_token must be False; got True"),
        ({"n_probs": 5}, "n_probs must be 0; got 5"),
        ({"lora": [{"id": 0}]}, r"lora must be \[\]; got"),
        ({"repeat_penalty": 1.1}, "repeat_penalty must be 1, or beside repeat_last_n -1: .* looks at all tokens; got 1.1"),
        ({"repeat_penalty": 1.1, "repeat_last_n": 64}, "repeat_penalty must be 1"),
        ({"repeat_penalty": "1.1"}, "repeat_penalty must be a number; got '1.1'"),
        ({"repeat_last_n": 64, "presence_penalty": 0.5}, "repeat_last_n must be -1, or an integer >= 0 without penalties"),
        ({"repeat_last_n": 0, "frequency_penalty": 0.5}, "repeat_last_n must be -1"),
        ({"repeat_last_n": -2}, "repeat_last_n must be -1"),
        ({"repeat_last_n": "all"}, "repeat_last_n must be -1"),
        ({"repeat_penalty": 1.2, "repeat_last_n": -1, "repetition_penalty": 1.3}, "as another field says"),
    ],
)
def test_a_sampler_of_another_server_is_not_ignored(field, rule):
    with pytest.raises(ValueError, match=f"^from_openai: .*{rule}"):
        SamplingParams.from_openai(field)


def test_a_penalty_of_all_tokens_is_llama_cpps_too():
    read = SamplingParams.from_openai
    assert read({"repeat_penalty": 1.2, "repeat_last_n": -1}) == SamplingParams(repetition_penalty=1.2)
    assert read({"repeat_last_n": 0, "repeat_penalty": 1.2}) == SamplingParams()
    assert read({"repeat_last_n": -1, "presence_penalty": 0.5}) == SamplingParams(presence_penalty=0.5)


def test_a_prediction_is_its_text():
    read, part = SamplingParams.from_openai, {"type": "text", "text": "a"}
    for content in ("aa", [part, part]):
        assert read({"prediction": {"type": "content", "content": content}}) == SamplingParams(prediction="aa")


def test_drafts_are_a_field_beside_those_of_openai():
    assert SamplingParams.from_openai({"draft": False}) == SamplingParams(draft=False)
    assert SamplingParams.from_openai({"draft": None}) == SamplingParams()
    with pytest.raises(ValueError, match="draft must be a bool; got 4$"):
        SamplingParams.from_openai({"draft": 4})


@pytest.mark.parametrize(
    "body",
    [
        {"best_of": 2},
        {"response_format": "json"},
        {"response_format": {"type": "yaml"}},
        {"response_format": {"type": "text", "schema": {}}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "shape": 1}}},
        {"response_format": {"type": "json_object"}, "json_schema": {}},
        {"json_schema": {}, "response_format": {"type": "json_object"}},
        {"prediction": "a"},
        {"prediction": {"type": "text", "content": "a"}},
        {"prediction": {"type": "content"}},
        {"prediction": {"type": "content", "content": [{"type": "image"}]}},
        {"best_of": 3, "n": 2},
        {"best_of": 1, "n": 2},
        {"response_format": {}},
        {"echo": True},
        {"skip_special_tokens": False},
        {"max_tokens": 5, "max_completion_tokens": 6},
        {"max_tokens": 5, "max_new_tokens": 6},
        {"num_return_sequences": 2, "n": 3},
        {"logit_bias": {"٣": 1}},
        [],
        None,
        {"temperature": 2.1},
        {"temperature": -0.1},
        {"temperature": "1"},
        {"top_p": 1.1},
        {"top_p": -0.1},
        {"presence_penalty": -2.5},
        {"presence_penalty": 2.5},
        {"frequency_penalty": -2.5},
        {"frequency_penalty": 2.5},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"5": 101}},
        {"logit_bias": {"5": -101}},
        {"logit_bias": {"-5": 1}},
        {"logit_bias": {"9" * 5000: 1}},
        {"logit_bias": [1]},
        {"top_logprobs": 3},
        {"logprobs": False, "top_logprobs": 3},
        {"logprobs": True, "top_logprobs": "0"},
        {"response_format": {"type": "json_object", "schema": "x"}},
        {"response_format": {"type": "json_schema", "schema": {}, "json_schema": {"schema": {}}}},
        {"logprobs": True, "top_logprobs": -1},
        {"logprobs": -1},
        {"logprobs": True, "top_logprobs": 21},
        {"logprobs": "yes"},
        {"tools": []},
    ],
)
def test_openai_bodies_that_are_not_understood_are_errors(body):
    with pytest.raises(ValueError, match="^from_openai: .*; got .*"):
        SamplingParams.from_openai(body)


def test_the_ends_of_the_intervals_of_openai():
    ends = {"temperature": (0, 2), "top_p": (0, 1), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2)}
    for name, values in ends.items():
        assert [getattr(SamplingParams.from_openai({name: value}), name) for value in values] == list(values)
    assert SamplingParams.from_openai({"logit_bias": {"0": -100, "1": 100}}).logit_bias == {0: -100, 1: 100}
    assert [SamplingParams.from_openai({"logprobs": True, "top_logprobs": n}).logprobs for n in (0, 20)] == [0, 20]
    for without in ({}, {"logprobs": None}, {"logprobs": False}):
        assert SamplingParams.from_openai({"top_logprobs": 0, **without}).logprobs is None
    assert SamplingParams.from_openai({"top_logprobs": 0, "logprobs": 3}).logprobs == 3
    assert [SamplingParams.from_openai({"seed": seed}).seed for seed in (-(2**63), 2**64 - 1)] == [2**63, 2**64 - 1]


@pytest.mark.parametrize("seed", ["1", 1.5, True, -(2**63) - 1, 2**64])
def test_a_wrong_seed_is_refused_as_everywhere(seed):
    with pytest.raises(ValueError, match=r"^SamplingParams: seed must be an integer in \[0, 2\^64\) or None; got"):
        SamplingParams.from_openai({"seed": seed})
