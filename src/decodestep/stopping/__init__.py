"""The stopping criteria of transformers 5.23, under the same names.

They work on NumPy arrays, and on torch tensors on their device. Each is called as criterion(input_ids, scores) and can be given
to `model.generate(stopping_criteria=[...])`. The docstring of a class is its contract.
"""

from decodestep.stopping.criteria import (
    ConfidenceCriteria,
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxNewTokensCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    validate_stopping_criteria,
)
from decodestep.stopping.stop_strings import StopStringCriteria
from decodestep.stopping.token_text import TokenText

__all__ = [
    "ConfidenceCriteria",
    "EosTokenCriteria",
    "MaxLengthCriteria",
    "MaxNewTokensCriteria",
    "MaxTimeCriteria",
    "StopStringCriteria",
    "StoppingCriteria",
    "StoppingCriteriaList",
    "TokenText",
    "validate_stopping_criteria",
]
