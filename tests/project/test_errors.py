"""The tree of errors: one base, the built-in classes that they have always been, and the paths by which they are known."""

from __future__ import annotations

import copy
import pickle
from importlib import import_module

import pytest

import decodestep as ds
from decodestep import errors

BUILT_IN = {
    "RequestError": ValueError,
    "UnknownFieldError": TypeError,
    "ModelError": RuntimeError,
    "TemplateProcessError": RuntimeError,
    "CacheFileError": RuntimeError,
    "CacheFullError": RuntimeError,
    "ConstraintError": RuntimeError,
    "QueueFullError": RuntimeError,
    "EngineClosedError": RuntimeError,
    "MissingExtraError": ModuleNotFoundError,
}
MADE = [
    errors.RequestError("linear", "x", "a matrix", "5", "code"),
    errors.UnknownFieldError("SamplingParams", "top", "a field", "5", "unknown_field", "there is no field top"),
    errors.ConstraintError("no text", "regex"),
    errors.QueueFullError(3, 5),
    errors.ModelError("file: broken"),
    errors.MissingExtraError("torch is not installed", name="torch"),
]


def test_all_have_one_base_and_stay_what_they_were():
    for name, base in BUILT_IN.items():
        assert issubclass(getattr(errors, name), (base, errors.DecodestepError)), name
        assert issubclass(getattr(errors, name), base), name
    assert errors.RequestError in errors.UnknownFieldError.__bases__
    assert {name for name in vars(errors) if name.endswith("Error")} == {*BUILT_IN, "DecodestepError"}
    for name in (*BUILT_IN, "DecodestepError"):
        assert getattr(ds, name) is getattr(errors, name)


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_errors_are_copied_and_pickled_whole(error):
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("_base.checks", "RequestError"),
        ("_base.extras", "MissingExtraError"),
        ("models", "ModelError"),
        ("decoding.page_pool", "CacheFullError"),
        ("constraints.processor", "ConstraintError"),
        ("sampling.field_aliases", "UnknownFieldError"),
        ("generation.engine", "QueueFullError"),
        ("generation.engine", "EngineClosedError"),
    ],
)
def test_the_places_where_they_were_still_have_them(module, name):
    assert getattr(import_module(f"decodestep.{module}"), name) is getattr(errors, name)


def test_an_error_says_what_must_be_or_a_sentence_where_that_reads_badly():
    assert str(MADE[0]) == "linear: x must be a matrix; got 5"
    assert str(MADE[1]) == "SamplingParams: there is no field top"
    assert str(errors.RequestError("a", "b", "c", "d" * 600)).endswith("d...")
