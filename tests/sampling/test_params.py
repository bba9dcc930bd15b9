"""SamplingParams: every field is checked, and the message names the legal interval."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import re
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
import torch

from decodestep import SamplingParams, random
from decodestep.sampling.field_aliases import ALIASES
from decodestep.sampling.params import DEFAULTS
from decodestep.sampling.rules import RULES
from support.project import ROOT

SYNTHID = {"keys": (1,), "ngram_len": 3, "sampling_table_size": 64, "sampling_table_seed": 0, "context_history_size": 8}

NOT_A_BOOL = [None, 1, "yes"]
NOT_A_COUNT = [-1, 1.5, True, "3", None, 2**31]
NOT_A_SHARE = [-0.1, 1.7, math.nan, None]
NOT_IDS = [(-1,), (0.5,), 5, "ab", (True,), {1: 2}]
BAD = {
    "max_new_tokens": [0, -1, 1.5, True, "3", 2**31],
    "max_length": [0, -1, 1.5, True, "3", 2**31],
    "min_length": NOT_A_COUNT,
    "min_new_tokens": NOT_A_COUNT,
    "min_tokens": NOT_A_COUNT,
    "eos_token_id": [-1, (), (0.5,), "ab", True],
    "ignore_eos": NOT_A_BOOL,
    "stop_token_ids": NOT_IDS,
    "stop_strings": [("",), (1,), ["a", ""], "", 5, {"a": "b"}],
    "max_time": [0, -1, math.nan, math.inf, 10**400],
    "repetition_penalty": [0, -1.0, math.inf, None, 10**400],
    "repetition_range": NOT_A_COUNT,
    "presence_penalty": [math.nan, math.inf, None],
    "frequency_penalty": [math.nan, math.inf, None],
    "no_repeat_ngram_size": NOT_A_COUNT,
    "dry_multiplier": [-1, math.nan],
    "dry_base": [0.5, math.inf],
    "dry_allowed_length": [0, 1.5],
    "dry_range": NOT_A_COUNT,
    "dry_sequence_breakers": [5, (-1,), ("",), (1.5,), "", {1: 2}],
    "sequence_bias": [{(): 1.0}, {(-1,): 1.0}, {(1,): math.nan}, {(1,): math.inf}, {1: 1.0}, [1]],
    "logit_bias": [{-1: 1.0}, {1: math.inf}, {1: math.nan}, {1: 10**400}, {"1": 1.0}, [1]],
    "bad_words_ids": [((),), ((-1,),), (1,), 5, {(1,): 1}],
    "bad_words": ["", (5,), 5, ("a", "")],
    "suppress_tokens": NOT_IDS,
    "begin_suppress_tokens": NOT_IDS,
    "allowed_token_ids": [(), *NOT_IDS],
    "forced_bos_token_id": [-1, 1.5, (1,)],
    "forced_eos_token_id": [-1, (), (0.5,)],
    "exponential_decay_length_penalty": [(1,), (-1, 1.0), (1.5, 1.0), (1, 0.0), (1, math.inf), (1, 2.0, 3.0), 5],
    "temperature": [-0.1, math.nan, math.inf, "1", None],
    "top_k": [-2, *NOT_A_COUNT[1:]],
    "top_p": NOT_A_SHARE,
    "min_p": NOT_A_SHARE,
    "top_h": [0, *NOT_A_SHARE],
    "typical_p": [0, *NOT_A_SHARE],
    "epsilon_cutoff": [1, *NOT_A_SHARE],
    "eta_cutoff": [1, *NOT_A_SHARE],
    "top_n_sigma": [-1, math.nan],
    "xtc_probability": NOT_A_SHARE,
    "xtc_threshold": NOT_A_SHARE,
    "xtc_special_tokens": NOT_IDS,
    "samplers": [("top_k", "top_k"), ("beam",), ({},), "top_kk", 5],
    "remove_invalid_values": NOT_A_BOOL,
    "renormalize_logits": NOT_A_BOOL,
    "watermarking_config": [
        5,
        "x",
        {"keys": [1]},
        {"keys": 1},
        {**SYNTHID, "keys": []},
        {**SYNTHID, "keys": [2**63]},
        {**SYNTHID, "keys": [-(2**63)]},
        {**SYNTHID, "sampling_table_seed": 2**63},
        {**SYNTHID, "ngram_len": 0},
        {**SYNTHID, "sampling_table_size": 0},
        {**SYNTHID, "context_history_size": -1},
        {**SYNTHID, "debug_mode": 1},
        {**SYNTHID, "bias": 1.0},
        {"ngram_len": 5},
        {"greenlist_ratio": 0},
        {"greenlist_ratio": 1},
        {"hashing_key": -1},
        {"hashing_key": 2**63},
        {"seeding_scheme": "hash"},
        {"context_width": 0},
        {"bias": math.nan},
        {"bias": 10**400},
    ],
    "do_sample": NOT_A_BOOL,
    "seed": [-1, 2**64, 0.5, True],
    "logprobs": [-1, 1.5, True],
    "prompt_logprobs": [-1, 1.5, True],
    "num_beams": [0, 1.5],
    "num_beam_groups": [0, 2],
    "diversity_penalty": [-1, math.nan],
    "length_penalty": [math.nan, None],
    "early_stopping": [1, "always", None, np.array([1, 2])],
    "num_return_sequences": [0, 1.5],
    "json_schema": [1, "", ["a"]],
    "regex": [1, ""],
    "grammar": [b"start: a", ""],
    "thinking_budget_tokens": [-2, 1.5, 2**31],
    "thinking_budget_message": [5, ["a"], b"a", "\ud800"],
    "choice": [5, "", "a", (), ("a", ""), (5,)],
    "json_property_order": ["", "all", None, True],
    "disable_additional_properties": [*NOT_A_BOOL, None],
    "prediction": [5, ["a"], b"a", "\ud800"],
    "draft": [*NOT_A_BOOL, 4, "auto", None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_refuses(name, value):
    with pytest.raises(ValueError, match=rf"^SamplingParams: .*\b{name} (must|has no) "):
        SamplingParams(**{name: value})


def test_every_field_has_refusals():
    assert set(BAD) == set(SamplingParams.__dataclass_fields__)


LEAST, MOST, LARGE = 5e-324, 2**31 - 1, 1.7976931348623157e308
COUNTS, POSITIVE_COUNTS = [0, MOST], [1, MOST]
IDS, SHARES = [(), (0,), (2**40, 0)], [0, 1, np.float32(0.5)]
BELOW_1 = math.nextafter(1, 0)
GROUPS = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "do_sample": False}
GOOD = {
    "max_new_tokens": [*POSITIVE_COUNTS, None],
    "max_length": [*POSITIVE_COUNTS, None],
    "min_length": COUNTS,
    "min_new_tokens": COUNTS,
    "min_tokens": COUNTS,
    "eos_token_id": [0, (0,), (0, 1), None],
    "ignore_eos": [True],
    "stop_token_ids": IDS,
    "stop_strings": [(), ("a", " ")],
    "max_time": [LEAST, LARGE, None],
    "repetition_penalty": [LEAST, LARGE, 2],
    "repetition_range": COUNTS,
    "presence_penalty": [-LARGE, LARGE, -2],
    "frequency_penalty": [-LARGE, LARGE],
    "no_repeat_ngram_size": COUNTS,
    "dry_multiplier": [0, LARGE],
    "dry_base": [1, LARGE],
    "dry_allowed_length": POSITIVE_COUNTS,
    "dry_range": COUNTS,
    "dry_sequence_breakers": [None, *IDS, ("a", 1)],
    "sequence_bias": [{(0,): -LARGE, (1, 0): 2}, {(1,): -math.inf}, None],
    "logit_bias": [{0: -math.inf, 1: LARGE}, None],
    "bad_words_ids": [(), ((0,), (1, 0))],
    "bad_words": [("a",), ("a", " b")],
    "suppress_tokens": IDS,
    "begin_suppress_tokens": IDS,
    "allowed_token_ids": [(0,), None],
    "forced_bos_token_id": [0, None],
    "forced_eos_token_id": [0, (0,), (0, 1), None],
    "exponential_decay_length_penalty": [(0, LEAST), (2**40, 2), None],
    "temperature": [0, LEAST, LARGE],
    "top_k": COUNTS,
    "top_p": SHARES,
    "min_p": SHARES,
    "top_h": [LEAST, 1],
    "typical_p": [LEAST, 1],
    "epsilon_cutoff": [0, BELOW_1],
    "eta_cutoff": [0, BELOW_1],
    "top_n_sigma": [0, LARGE],
    "xtc_probability": SHARES,
    "xtc_threshold": SHARES,
    "xtc_special_tokens": IDS,
    "samplers": [(), ("top_p", "top_k"), None],
    "remove_invalid_values": [True],
    "renormalize_logits": [True],
    "watermarking_config": [
        {"greenlist_ratio": LEAST, "bias": -LARGE, "hashing_key": 0, "seeding_scheme": "selfhash", "context_width": MOST},
        {"greenlist_ratio": BELOW_1, "hashing_key": 2**63 - 1, "seeding_scheme": "lefthash", "context_width": 1, "bias": None},
        SYNTHID | {"keys": (1 - 2**63, 2**63 - 1), "sampling_table_seed": 2**63 - 1, "context_history_size": 0},
        SYNTHID | {"ngram_len": 1, "sampling_table_size": 1, "skip_first_ngram_calls": True, "debug_mode": False},
        {},
        None,
    ],
    "do_sample": [False],
    "seed": [0, 2**64 - 1, np.uint64(7), None],
    "logprobs": [*COUNTS, None],
    "prompt_logprobs": [*COUNTS, None],
    "num_beams": POSITIVE_COUNTS,
    "num_beam_groups": [1, 4],
    "diversity_penalty": [LEAST, LARGE],
    "length_penalty": [-LARGE, 0, LARGE],
    "early_stopping": [True, False, "never"],
    "num_return_sequences": [1, 4],
    "json_schema": ["{}", None],
    "regex": ["a", None],
    "grammar": ["a", None],
    "thinking_budget_tokens": [-1, 0, 5, None],
    "thinking_budget_message": ["", "a", None],
    "choice": [("a",), ("a", "b"), None],
    "json_property_order": ["any"],
    "disable_additional_properties": [False],
    "prediction": ["", "a", None],
    "draft": [False],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values])
def test_takes_the_ends_of_each_interval(name, value):
    beside = {
        "num_beam_groups": GROUPS if value != 1 else {},
        "diversity_penalty": GROUPS,
        "num_return_sequences": {"num_beams": 4},
    }
    assert getattr(SamplingParams(**{**beside.get(name, {}), name: value}), name) == value


def test_every_field_has_values_at_its_ends():
    assert set(GOOD) == set(SamplingParams.__dataclass_fields__)


def described():
    """What the docstring says of each argument."""
    arguments = (inspect.getdoc(SamplingParams) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def test_what_turns_a_field_off_is_its_default():
    off = {name: re.search(r"; (\S+)(?: and \S+)? (?:is|are) off", text) for name, text in described().items()}
    said = {name: None if match[1] == "None" else float(match[1]) for name, match in off.items() if match}
    assert len(said) > 25
    assert {name: getattr(SamplingParams(), name) for name in said} == said


def test_stop_strings_come_as_one_string_or_several():
    assert SamplingParams(stop_strings="ab").stop_strings == ("ab",)
    assert SamplingParams(stop_strings=["a", "b"]).stop_strings == ("a", "b")


@pytest.mark.parametrize(
    "ids",
    [[5, 7], (5, 7), range(5, 8, 2), {5: 0, 7: 0}.keys(), iter([5, 7]), np.array([5, 7], np.int32), torch.tensor([5, 7])],
    ids=lambda ids: type(ids).__name__,
)
def test_any_iterable_of_items_becomes_a_tuple(ids):
    assert SamplingParams(stop_token_ids=ids) == SamplingParams(stop_token_ids=(5, 7))


def test_sets_nested_iterables_and_arrays_of_one_number_are_taken():
    assert set(SamplingParams(stop_token_ids=frozenset({5, 7})).stop_token_ids) == {5, 7}
    assert SamplingParams(bad_words_ids=(range(i, 3) for i in (1, 2))).bad_words_ids == ((1, 2), (2,))
    assert SamplingParams(forced_eos_token_id=np.array(3)).forced_eos_token_id == 3


@pytest.mark.parametrize("ids", [b"ab", {5: 7}, "ab"])
def test_strings_and_mappings_are_no_lists_of_ids(ids):
    with pytest.raises(ValueError, match="^SamplingParams: stop_token_ids must be token ids"):
        SamplingParams(stop_token_ids=ids)


def test_signature_docstring_page_and_rules_say_the_same():
    page = (ROOT / "docs/sampling.md").read_text()
    parameters = dict(list(inspect.signature(SamplingParams).parameters.items()))
    assert list(parameters) == list(described()) == [*DEFAULTS, *ALIASES]
    assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert list(RULES) == list(DEFAULTS) == [field.name for field in fields(SamplingParams)]
    for name, default in DEFAULTS.items():
        rule, text = RULES[name].text, described()[name]
        assert text.startswith(f"{rule}. ") and text.endswith("."), name
        words = text.removeprefix(f"{rule}. ").removesuffix(".").replace("|", "\\|")
        words = words if page.count(f"| {words} |") else words[0].lower() + words[1:]
        row = f"| `{name}` | `{default!r}` | {rule} | {words} |"
        assert row in page, f"docs/sampling.md lacks the line\n{row}"


def test_a_synonym_is_typed_and_explained_as_its_field():
    parameters = inspect.signature(SamplingParams).parameters
    for name, field in ALIASES.items():
        assert (parameters[name].default, parameters[name].annotation) == (DEFAULTS[field], parameters[field].annotation)
        assert described()[name].startswith(f"{field} by the name")


def test_defaults_are_legal_and_held_as_they_are():
    """So that they are not checked again for each object."""
    for name, default in DEFAULTS.items():
        assert RULES[name].take("SamplingParams", name, default, None) == default == getattr(SamplingParams(), name)
        assert getattr(SamplingParams, name) == default


def test_only_what_differs_from_the_defaults_is_shown():
    assert repr(SamplingParams()) == "SamplingParams()"
    shown = repr(SamplingParams(max_tokens=5, stop="a", temperature=1.0, logit_bias={3: -1.5}))
    assert shown == "SamplingParams(max_new_tokens=5, stop_strings=('a',), logit_bias={3: -1.5})"
    assert eval(shown) == SamplingParams(max_new_tokens=5, stop_strings="a", logit_bias={3: -1.5})


def test_objects_are_immutable():
    with pytest.raises(FrozenInstanceError):
        SamplingParams().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("change", [SamplingParams.replace, replace], ids=["the method", "dataclasses.replace"])
def test_a_change_counts_by_any_name_of_its_field(change):
    params = SamplingParams(max_new_tokens=10, stop_strings="a", top_k=3)
    assert change(SamplingParams(), max_tokens=5) == SamplingParams(max_new_tokens=5)
    assert change(params, max_tokens=5, stop=None) == SamplingParams(max_new_tokens=5, top_k=3)
    assert change(params, max_new_tokens=5) == change(params, max_completion_tokens=5)
    with pytest.raises(ValueError, match="given once"):
        change(params, max_tokens=5, max_completion_tokens=6)
    with pytest.raises(ValueError, match="there is no field top: did you mean"):
        change(params, top=5)


def test_positional_arguments_are_deprecated():
    with pytest.warns(DeprecationWarning, match="positional arguments are deprecated") as warned:
        assert SamplingParams(16, 20, top_k=3) == SamplingParams(max_new_tokens=16, max_length=20, top_k=3)
    assert warned[0].filename == __file__


@pytest.mark.filterwarnings("ignore:SamplingParams:DeprecationWarning")
def test_positional_arguments_that_cannot_be_meant_are_refused():
    for twice in ({"max_new_tokens": 5}, {"max_tokens": 5}):
        with pytest.raises(ValueError, match="max_new_tokens must be given once"):
            SamplingParams(16, **twice)
    with pytest.raises(ValueError, match="the positional arguments must be at most"):
        SamplingParams(*[None] * 80)


def test_none_stands_for_no_items():
    """As in requests of OpenAI's clients, and in vLLM and transformers."""
    empty = [name for name, default in DEFAULTS.items() if default == ()]
    assert SamplingParams(stop=None, **dict.fromkeys(set(empty) - {"stop_strings"})) == SamplingParams()
    assert {"stop_strings", "stop_token_ids", "bad_words_ids", "suppress_tokens"} <= set(empty)


def test_a_prediction_is_kept():
    assert SamplingParams(prediction="the same text").prediction == "the same text"
    assert SamplingParams(prediction="a") != SamplingParams()


def test_greedy_is_no_sampling_or_temperature_0():
    assert SamplingParams(do_sample=False).greedy
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams().greedy


def test_samplers_must_name_what_is_set():
    assert SamplingParams(top_k=3, samplers=["top_k", "temperature"]).active_samplers == ("top_k",)
    with pytest.raises(ValueError, match="samplers must name top_p too"):
        SamplingParams(top_k=3, top_p=0.5, samplers=["top_k"])
    assert SamplingParams(top_k=3, temperature=0.5).active_samplers == ("temperature", "top_k")
    assert SamplingParams(top_k=3, do_sample=False).active_samplers == ()


def test_beam_groups_need_a_penalty_and_no_draw():
    groups = SamplingParams(
        num_beams=4, num_beam_groups=2, diversity_penalty=0.5, num_return_sequences=3, top_k=5, do_sample=False
    )
    assert groups.without_beams() == SamplingParams(top_k=5, do_sample=False)
    with pytest.raises(ValueError, match="diversity_penalty must be > 0"):
        SamplingParams(num_beams=4, num_beam_groups=2, do_sample=False)
    with pytest.raises(ValueError, match="diversity_penalty must be 0 without"):
        SamplingParams(num_beams=4, diversity_penalty=0.5)
    with pytest.raises(ValueError, match="do_sample must be False"):
        SamplingParams(num_beams=4, num_beam_groups=2, diversity_penalty=0.5)


def test_a_search_returns_no_more_than_its_beams():
    assert SamplingParams(num_beams=2, num_return_sequences=2).num_return_sequences == 2
    with pytest.raises(ValueError, match="^SamplingParams: num_return_sequences must be at most num_beams 2; got 3$"):
        SamplingParams(num_beams=2, num_return_sequences=3)


def test_the_spellings_of_others():
    assert SamplingParams(max_tokens=5, stop="x", n=2) == SamplingParams(
        max_new_tokens=5, stop_strings=("x",), num_return_sequences=2
    )
    assert SamplingParams(max_completion_tokens=5).max_new_tokens == 5
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)
    assert SamplingParams(logit_bias={5: -math.inf}).logit_bias == {5: -math.inf}
    with pytest.raises(ValueError, match="^SamplingParams: max_new_tokens must be given once; got max_tokens too"):
        SamplingParams(max_tokens=5, max_new_tokens=5)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("repeat_penalty", "repetition_penalty"),
        ("temp", "temperature"),
        ("num_predict", "max_new_tokens"),
        ("best_of", "num_return_sequences"),
        ("temprature", "temperature"),
        ("top_K", "top_k"),
        ("logits_processor", "processors"),
    ],
)
def test_a_name_that_is_no_field_is_answered(name, meant):
    for error in (ValueError, TypeError):
        with pytest.raises(error, match=rf"^SamplingParams: there is no field {name}: did you mean {meant}"):
            SamplingParams(**{name: 1})
    with pytest.raises(TypeError, match="^SamplingParams: there is no field zzz$"):
        SamplingParams(zzz=1)


def test_mappings_are_copied_and_objects_hashable():
    biases, watermark = {5: 1.0}, {"greenlist_ratio": 0.5}
    params = SamplingParams(logit_bias=biases, sequence_bias={(1, 2): 0.5}, watermarking_config=watermark)
    biases[5] = watermark["greenlist_ratio"] = -1.0
    assert params.logit_bias == {5: 1.0} and params.watermarking_config == {"greenlist_ratio": 0.5}
    with pytest.raises(TypeError):
        params.logit_bias[5] = 2.0
    same = SamplingParams(logit_bias={5: 1.0}, sequence_bias={(1, 2): 0.5}, watermarking_config={"greenlist_ratio": 0.5})
    assert {params: 1}[same] == 1
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == params


def test_samples_have_a_seed_each():
    one, two, three = SamplingParams(seed=7, top_k=3, num_return_sequences=3).samples()
    assert one == SamplingParams(seed=7, top_k=3)
    assert [two.seed, three.seed] == [random.sample_seed(7, 1), random.sample_seed(7, 2)]
    assert SamplingParams(seed=7).samples() == [SamplingParams(seed=7)]
    drawn = {SamplingParams().samples()[0].seed for _ in range(20)}
    assert len(drawn) == 20 and 2**32 <= max(drawn) < 2**53  # of 53 bits: 20 below 2^32 have a chance of 2^-420
    assert SamplingParams(do_sample=False).samples() == [SamplingParams(do_sample=False)]
    for greedy in (SamplingParams(temperature=0), SamplingParams(do_sample=False, seed=3)):
        assert replace(greedy, num_return_sequences=3).samples() == [greedy] * 3


def test_synthid_is_for_one_beam():
    config = {**SYNTHID, "keys": [1]}
    assert SamplingParams(watermarking_config=config).watermarking_config == SYNTHID
    with pytest.raises(ValueError, match="watermarking_config must be without keys beside several beams"):
        SamplingParams(watermarking_config=config, num_beams=2)
