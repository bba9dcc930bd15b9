"""What holds for every processor: lists, empty arrays, copies, the page, and that NumPy is enough."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
import transformers.generation.logits_process as hf

from decodestep import processors as ds
from decodestep import stopping
from support import late_annotations, processes
from support.processor_cases import agree, call, in_numpy, same_error
from support.project import ROOT

PAGE = ROOT / "docs/processors.md"
# One object of each class that needs nothing but ids and scores.
EVERY: list[tuple[str, tuple[Any, ...]]] = [
    ("TemperatureLogitsWarper", (0.5,)),
    ("TopKLogitsWarper", (2,)),
    ("TopPLogitsWarper", (0.7,)),
    ("MinPLogitsWarper", (0.2, -1.0, 2)),
    ("TypicalLogitsWarper", (0.5,)),
    ("EpsilonLogitsWarper", (0.2,)),
    ("RepetitionPenaltyLogitsProcessor", (1.5,)),
    ("NoRepeatNGramLogitsProcessor", (1,)),
    ("NoRepeatNGramLogitsProcessor", (2,)),
    ("LogitNormalization", ()),
    ("SequenceBiasLogitsProcessor", ({(1, 2): 1.0, (3,): 1.0},)),
    ("MinLengthLogitsProcessor", (5, 1)),
    ("SuppressTokensLogitsProcessor", ([1],)),
    ("ForcedBOSTokenLogitsProcessor", (1,)),
    ("InfNanRemoveLogitsProcessor", ()),
    ("ExponentialDecayLengthPenalty", ((0, 1.5), 1, 0)),
    ("ForcedEOSTokenLogitsProcessor", (3, 1)),
    ("EncoderNoRepeatNGramLogitsProcessor", (1, torch.tensor([[1, 2]]))),
    ("NoBadWordsLogitsProcessor", ([[1], [2, 1]],)),
]


@pytest.mark.parametrize(("name", "arguments"), EVERY, ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, 3)], ids=str)
def test_empty_arrays_and_narrow_ids(name, arguments, shape):
    if name.startswith("Encoder") and shape[0] == 0:
        return  # transformers divides by the rows of the batch
    ids = (torch.arange(shape[0] * shape[1]).reshape(shape) % 4).to(torch.int64)
    scores = torch.linspace(-2, 2, shape[0] * 5).reshape(shape[0], 5)
    expected = getattr(hf, name)(*arguments)(ids, scores)
    agree(call(getattr(ds, name)(*arguments), ids, scores), expected)
    agree(call(getattr(ds, name)(*arguments), in_numpy(ids).astype(np.int32), in_numpy(scores)), expected)


def test_a_list_runs_in_its_own_order_and_passes_arguments_by_name():
    scores, ids = np.array([[1.0, 2.0, 3.0]]), np.array([[0]])
    divide, bias = ds.TemperatureLogitsWarper(0.5), ds.SequenceBiasLogitsProcessor({(0,): 1.0})
    assert ds.LogitsProcessorList([divide, bias])(ids, scores).tolist() == [[3, 4, 6]]
    assert ds.LogitsProcessorList([bias, divide])(ids, scores).tolist() == [[4, 4, 6]]
    assert ds.LogitsProcessorList()(ids, scores) is scores

    class Shift(ds.LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any, by: float) -> Any:  # type: ignore[override]
            return scores + by

    plain = ds.LogitsProcessorList([Shift(), lambda ids, scores: scores * 2])
    theirs = hf.LogitsProcessorList(plain)
    assert plain(ids, scores, by=1.0).tolist() == theirs(ids, scores, by=1.0).tolist() == [[4, 6, 8]]
    late = "class made:\n    def __call__(self, ids: Unknown, scores: Unknown, by: Unknown): return scores + by"
    assert ds.LogitsProcessorList([late_annotations.define(late)()])(ids, scores, by=1.0).tolist() == [[2, 3, 4]]
    same_error(lambda: plain(ids, scores), lambda: theirs(ids, scores))
    same_error(lambda: plain(ids, scores, by=1.0, other=2), lambda: theirs(ids, scores, by=1.0, other=2))


def test_a_used_processor_can_be_copied():
    ids, scores = np.array([[1, 2]]), np.zeros((1, 4))
    for processor in (ds.SequenceBiasLogitsProcessor({(2, 3): 1.0}), ds.NoBadWordsLogitsProcessor([[3]])):
        expected = processor(ids, scores)
        assert copy.deepcopy(processor)(ids, scores).tolist() == expected.tolist()


def test_one_bias_serves_several_vocabularies_and_kinds():
    processor = ds.SequenceBiasLogitsProcessor({(1,): 0.5})
    for scores in (np.zeros((1, 3)), np.zeros((1, 5), np.float32), torch.zeros((1, 4)), np.zeros((1, 3))):
        ids = np.array([[0]]) if isinstance(scores, np.ndarray) else torch.tensor([[0]])
        assert call(processor, ids, scores)[0, 1] == 0.5


def test_numpy_is_enough():
    code = """
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "tokenizers")))
import numpy as np, decodestep as ds
p, ids, scores = ds.processors, np.array([[1, 2]]), np.array([[1.0, 2.0, 3.0, 0.0]])
given = [p.RepetitionPenaltyLogitsProcessor(2.0), p.NoRepeatNGramLogitsProcessor(1), p.TopPLogitsWarper(0.5)]
chain = p.LogitsProcessorList(given)
print(chain(ids, scores).tolist(), ds.stopping.MaxLengthCriteria(2)(ids, None).tolist())
"""
    run = processes.run([sys.executable, "-c", code], check=True)
    assert run.stdout.strip() == "[[1.0, -inf, -inf, -inf]] [True]"


def test_every_class_states_its_contract():
    """Each class has a docstring of its own that names every argument, followed by a colon, and its source."""
    without_source = {"LogitsProcessor", "StoppingCriteria", "TokenText"}
    for home in (ds, stopping):
        assert sorted(home.__all__) == home.__all__
        for name in home.__all__:
            value = getattr(home, name)
            own = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
            contract = " ".join((own or "").split())
            assert contract and not contract.startswith(f"{name}("), f"{name} has no docstring, or the one that dataclass makes"
            if dataclasses.is_dataclass(value) or not isinstance(value, type):
                continue
            assert "Source: " in contract or name in without_source, f"{name} does not name its source"
            described = {word for part in re.findall(r"((?:\w+, )*\w+):", contract) for word in part.split(", ")}
            arguments = set(inspect.signature(value).parameters) - {"args", "kwargs", "iterable"}
            assert arguments <= described, f"{name} does not describe {arguments - described}"


def test_the_names_of_transformers_are_all_there():
    theirs = {name for name, value in vars(hf).items() if isinstance(value, type) and value.__module__ == hf.__name__}
    assert theirs <= set(ds.__all__)


def test_the_page_names_every_class():
    helpers = {"LogitsProcessor", "WatermarkDetectorOutput", "SynthIDTextWatermarkState", "StoppingCriteria"}
    for name in {*ds.__all__, *stopping.__all__} - helpers - {"validate_stopping_criteria"}:
        assert f"`{name}`" in PAGE.read_text() or f".{name}(" in PAGE.read_text(), name
