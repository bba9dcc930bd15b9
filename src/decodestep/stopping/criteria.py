"""Criteria of length, time, end tokens and confidence, and the list that joins criteria."""

from __future__ import annotations

import copy
import functools
import logging
import time
import warnings
from typing import Any

from array_api_compat import array_namespace, device

from decodestep._base.array_api import softmax
from decodestep._base.arrays import Array, token_ids
from decodestep._base.checks import refuse


class StoppingCriteria:
    """A function (input_ids, scores, **kwargs) -> done: ids [batch, length] to bools [batch], both NumPy or both torch.

    scores: the scores of the steps so far, or None; only a criterion that says so looks at them.
    """

    def __call__(self, input_ids: Array, scores: Array | None, **kwargs: Any) -> Array:
        raise NotImplementedError(f"{type(self).__name__}: a subclass must define __call__")


class MaxLengthCriteria(StoppingCriteria):
    """Stops a sequence that is long enough, prompt included.

        done = length >= max_length

    Args:
        max_length: an int.
        max_position_embeddings: the longest sequence that the model was made for, or None. A longer sequence is logged once per
            process.

    Source:
        transformers 5.23's class of this name.
    """

    def __init__(self, max_length: int, max_position_embeddings: int | None = None) -> None:
        self.max_length = max_length
        self.max_position_embeddings = max_position_embeddings

    def __call__(self, input_ids: Array, scores: Array | None, **kwargs: object) -> Array:
        length, limit = input_ids.shape[1], self.max_position_embeddings
        if limit is not None and limit < length < self.max_length:
            _warn_of_length(limit)
        return _all_rows(input_ids, length >= self.max_length)


class MaxNewTokensCriteria(StoppingCriteria):
    """Stops a sequence with enough new tokens.

        done = length >= start_length + max_new_tokens

    Args:
        start_length: the length of the prompt, an int.
        max_new_tokens: an int.

    Source:
        transformers 4.41's class of this name, which 5.23 no longer has.
    """

    def __init__(self, start_length: int, max_new_tokens: int) -> None:
        self.start_length = start_length
        self.max_new_tokens = max_new_tokens
        self.max_length = start_length + max_new_tokens

    def __call__(self, input_ids: Array, scores: Array | None, **kwargs: object) -> Array:
        return _all_rows(input_ids, input_ids.shape[-1] >= self.max_length)


class MaxTimeCriteria(StoppingCriteria):
    """Stops every sequence once the time is up.

        done = time.time() - initial_timestamp > max_time

    Args:
        max_time: seconds.
        initial_timestamp: the start, as time.time(); None for the time at which the criterion is built.

    Source:
        transformers 5.23's class of this name.
    """

    def __init__(self, max_time: float, initial_timestamp: float | None = None) -> None:
        self.max_time = max_time
        self.initial_timestamp = time.time() if initial_timestamp is None else initial_timestamp

    def __call__(self, input_ids: Array, scores: Array | None, **kwargs: object) -> Array:
        return _all_rows(input_ids, time.time() - self.initial_timestamp > self.max_time)


class EosTokenCriteria(StoppingCriteria):
    """Stops a sequence at an end token.

        done = any of input_ids[-new_token_length:] is in eos_token_id

    new_token_length, an argument of the call: how many ids the step added, 1 by default; 0 looks at the whole sequence.

    Args:
        eos_token_id: an id, a list or an array of ids.

    Source:
        transformers 5.23's class of this name.
    """

    def __init__(self, eos_token_id: object) -> None:
        self.eos_token_id = token_ids("EosTokenCriteria", "eos_token_id", eos_token_id)

    def __call__(self, input_ids: Array, scores: Array | None, new_token_length: int = 1, **kwargs: object) -> Array:
        xp = array_namespace(input_ids)
        newest = xp.astype(input_ids[:, -new_token_length:], xp.int64)  # torch would round an end token to a narrower dtype
        done = xp.any(newest != newest, axis=-1)  # all False: (batch,), or with one more axis for codebooks
        for token in self.eos_token_id:
            done = done | xp.any(newest == token, axis=-1)
        return done


class ConfidenceCriteria(StoppingCriteria):
    """Stops an assistant model whose newest token was not likely enough.

        done = softmax(scores[-1])[0, input_ids[0, -1]] < assistant_confidence_threshold       # one bool, of the first row

    Looks at scores, the last of which is [batch, vocab].

    Args:
        assistant_confidence_threshold: a number.

    Source:
        transformers 5.23's class of this name.
    """

    def __init__(self, assistant_confidence_threshold: float) -> None:
        self.assistant_confidence_threshold = assistant_confidence_threshold

    def __call__(self, input_ids: Array, scores: Any, **kwargs: object) -> bool:
        p = softmax(array_namespace(scores[-1]), scores[-1])
        return bool(float(p[0, int(input_ids[0, -1])]) < self.assistant_confidence_threshold)


class StoppingCriteriaList(list[Any]):
    """A list of criteria that is itself called like one: a sequence is done where any of them says so.

    Every criterion is given every keyword argument. `max_length` is that of the first MaxLengthCriteria or
    MaxNewTokensCriteria, or None.

    Source:
        transformers 5.23's class of this name; MaxNewTokensCriteria as in 4.41.
    """

    def __call__(self, input_ids: Array, scores: Array | None, **kwargs: object) -> Array:
        done = _all_rows(input_ids, False)
        for criterion in self:
            done = done | criterion(input_ids, scores, **kwargs)
        return done

    @property
    def max_length(self) -> int | None:
        limits = (c.max_length for c in self if isinstance(c, (MaxLengthCriteria, MaxNewTokensCriteria)))
        return next(limits, None)


def validate_stopping_criteria(stopping_criteria: StoppingCriteriaList, max_length: int) -> StoppingCriteriaList:
    """A deep copy of the list that has a maximum length: its own, or else `max_length`; a UserWarning where they differ.

    Args:
        stopping_criteria: the list, which does not change.
        max_length: the length of the whole sequence, an int.

    Source:
        transformers 5.23's function of this name.
    """
    if not isinstance(stopping_criteria, StoppingCriteriaList):
        refuse("validate_stopping_criteria", "stopping_criteria", "a StoppingCriteriaList", stopping_criteria)
    criteria = copy.deepcopy(stopping_criteria)
    if criteria.max_length is None:
        criteria.append(MaxLengthCriteria(max_length))
    elif criteria.max_length != max_length:
        rule = f"max_length is {criteria.max_length} in stopping_criteria, but {max_length} beside it"
        warnings.warn(rule, UserWarning, stacklevel=2)
    return criteria


def _all_rows(input_ids: Array, done: bool) -> Array:
    xp = array_namespace(input_ids)
    return xp.full((input_ids.shape[0],), done, dtype=xp.bool, device=device(input_ids))


@functools.cache
def _warn_of_length(limit: int) -> None:
    logging.getLogger(__name__).warning("the sequence is longer than the model's max_position_embeddings = %d", limit)
