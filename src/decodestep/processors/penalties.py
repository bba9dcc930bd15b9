"""Penalties and biases: scores of some tokens move, none is forbidden outright."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from array_api_compat import device

from decodestep._base import arrays
from decodestep._base.array_api import Namespace, copy, divide, namespace, narrow, quiet, repeat_rows, times, widen
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import Phrase, is_int, refuse, require
from decodestep.processors.base import LogitsProcessor, rows_of_encoder

_REPETITION = "RepetitionPenaltyLogitsProcessor"


class RepetitionPenaltyLogitsProcessor(LogitsProcessor):
    """Makes every token that occurs in the input less likely, once, however often it occurs.

        for each distinct id t of the row:  s[t] = s[t] * penalty where s[t] < 0, else s[t] / penalty

    Ids past the vocabulary are ignored. Scores of rank 3 [batch, length, vocab] are processed at the last position; where
    `logits_indices` and `cu_seq_lens_q` have been set, at those positions of the packed sequences of scores[0].

    Args:
        penalty: a float > 0 (an int is refused); below 1 it rewards.
        prompt_ignore_length: how many leading ids do not count: None, an int >= 0, or a [batch] array, one for each row.

    Raises:
        ValueError: for a negative id and for a prompt_ignore_length whose batch is not that of the ids.

    Source:
        Keskar et al., "CTRL: a conditional transformer language model for controllable generation", 2019.
        Deviations from transformers 5.23: scores of rank 3 are copied, not written to; there a negative id is a RuntimeError.
    """

    supports_continuous_batching = False

    def __init__(self, penalty: float, prompt_ignore_length: int | Array | None = None) -> None:
        self.penalty = _check_penalty(_REPETITION, penalty)
        if is_int(prompt_ignore_length):
            require(prompt_ignore_length >= 0, _REPETITION, "prompt_ignore_length", "an int >= 0", prompt_ignore_length)
            prompt_ignore_length = int(prompt_ignore_length)
        elif arrays.is_array(prompt_ignore_length):
            is_column = prompt_ignore_length.ndim == 1
            require(is_column, _REPETITION, "prompt_ignore_length", "of rank 1", prompt_ignore_length)
        self.prompt_ignore_length = prompt_ignore_length
        self.logits_indices: Array | None = None
        self.cu_seq_lens_q: Array | None = None

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        counted = None
        if isinstance(self.prompt_ignore_length, int):
            input_ids = input_ids[:, self.prompt_ignore_length :]
        elif arrays.is_array(self.prompt_ignore_length):
            counted = self._mask_of_counted(xp, input_ids)
        if len(scores.shape) == 2:
            ids = input_ids if len(input_ids.shape) == 2 else input_ids[:, None]
            return _penalise(xp, scores, ids, self.penalty, counted)
        result = copy(xp, scores)
        if self.logits_indices is not None and self.cu_seq_lens_q is not None:
            flat, places = xp.reshape(input_ids, (-1,)), [int(i) for i in self.logits_indices]
            for place, (a, b) in zip(places, pairwise(int(i) for i in self.cu_seq_lens_q), strict=True):
                result[:1, place] = _penalise(xp, scores[:1, place], flat[None, a:b], self.penalty)
        else:
            ids = input_ids if len(input_ids.shape) == 2 else input_ids[None, :]
            result[:, -1, :] = _penalise(xp, scores[:, -1, :], ids, self.penalty, counted)
        return result

    def _mask_of_counted(self, xp: Namespace, input_ids: ArrayT) -> ArrayT:
        skipped = xp.asarray(self.prompt_ignore_length, device=device(input_ids))
        batch = input_ids.shape[0]
        require(skipped.shape[0] == batch, _REPETITION, "prompt_ignore_length", f"of batch size {batch}", skipped)
        return xp.arange(input_ids.shape[1], device=device(input_ids))[None, :] >= skipped[:, None]


class EncoderRepetitionPenaltyLogitsProcessor(LogitsProcessor):
    """Makes every token of the encoder's input more likely: the repetition penalty of 1 / penalty over those ids.

        for each distinct id t of the row's encoder ids:  s[t] = s[t] / penalty where s[t] < 0, else s[t] * penalty

    Args:
        penalty: a float > 0 (an int is refused); below 1 it makes them less likely.
        encoder_input_ids: [rows, length] within the vocabulary; each row serves batch // rows rows of scores, such as beams.

    Raises:
        ValueError: for an id outside the vocabulary, and for scores whose rows are no multiple of the encoder's.

    Source:
        transformers 5.23's class of this name, where an id outside the vocabulary is a RuntimeError and rows beyond the
        multiple are left alone.
    """

    supports_continuous_batching = False

    def __init__(self, penalty: float, encoder_input_ids: Array) -> None:
        self.penalty = 1 / _check_penalty("EncoderRepetitionPenaltyLogitsProcessor", penalty)
        self.encoder_input_ids = encoder_input_ids

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        ids = rows_of_encoder(type(self).__name__, self.encoder_input_ids, scores)
        if math.prod(ids.shape):
            ends = int(xp.min(ids)), int(xp.max(ids))
            ok = ends[0] >= 0 and ends[1] < scores.shape[-1]
            require(
                ok, type(self).__name__, "encoder_input_ids", f"in [0, {scores.shape[-1]})", Phrase(f"{ends[0]} to {ends[1]}")
            )
        return _penalise(xp, scores, ids, self.penalty)


class SequenceBiasLogitsProcessor(LogitsProcessor):
    """Adds a bias to the last token of each given sequence, wherever the input ends with the rest of that sequence.

        for each (sequence, bias):  where input_ids[-(n - 1):] == sequence[:-1], n = len(sequence):  s[sequence[-1]] += bias

    A sequence of one token always counts; several that end in the same token add up, the one token first and then the lengths
    as they first occur. A bias is held in float32 and rounded to the dtype of the scores.

    Args:
        sequence_bias: a non-empty dict {tuple of ids: float} or list [[list of ids, float], ...]; ids >= 0; an int bias is
            refused.

    Raises:
        ValueError: at the first call for an id past the vocabulary.

    Source:
        transformers 5.23's class of this name.
    """

    def __init__(self, sequence_bias: object) -> None:
        self.sequence_bias: dict[tuple[int, ...], float] = _check_biases(sequence_bias)
        self._placed: tuple[Any, list[Any]] | None = None

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        bias = xp.zeros_like(scores)
        with quiet():
            for prefixes, last, values in self._layers(xp, scores):
                length = prefixes.shape[1]
                if length > input_ids.shape[1]:
                    continue
                match = xp.all(input_ids[:, None, input_ids.shape[1] - length :] == prefixes[None], axis=-1)
                bias[:, last] = bias[:, last] + xp.where(match, values, xp.zeros_like(values))
            return scores + bias

    def _layers(self, xp: Namespace, scores: Array) -> list[tuple[Array, Array, Array]]:
        """The sequences as arrays on the scores' device, in layers of one length and of distinct last tokens."""
        key = (xp.__name__, str(device(scores)), str(scores.dtype), scores.shape[-1])
        if self._placed is None or self._placed[0] != key:
            beyond = [t for sequence in self.sequence_bias for t in sequence if t >= scores.shape[-1]]
            require(not beyond, type(self).__name__, "sequence_bias", f"about tokens below {scores.shape[-1]}", beyond)
            where: dict[str, Any] = {"device": device(scores)}
            layers = []
            for group in _by_length_and_distinct_last(self.sequence_bias):
                prefixes = xp.asarray([token for s in group for token in s[:-1]], dtype=xp.int64, **where)
                last = xp.asarray([s[-1] for s in group], dtype=xp.int64, **where)
                values = xp.asarray([self.sequence_bias[s] for s in group], dtype=xp.float32, **where)
                shape = (len(group), len(group[0]) - 1)
                layers.append((xp.reshape(prefixes, shape), last, narrow(xp, values, scores)))
            self._placed = (key, layers)
        return self._placed[1]


class HammingDiversityLogitsProcessor(LogitsProcessor):
    """Makes the tokens that earlier groups of beams took at this step less likely for a group.

        for each batch item:  s[t] = s[t] - diversity_penalty * #{beams of earlier groups whose current token is t}

    Called with two more arguments: current_tokens, [batch * num_beams], the tokens picked so far at this step; and
    beam_group_idx, the group whose scores, [batch * num_beams // num_beam_groups, vocab], these are. The first group's
    scores are returned as they are. The penalty is held in float32; beyond that it forbids the tokens, where transformers makes
    all others NaN.

    Args:
        diversity_penalty: a float > 0.
        num_beams: an int >= 2.
        num_beam_groups: an int in [2, num_beams].

    Source:
        Vijayakumar et al., "Diverse beam search", 2016; transformers 4.41, which 5.23 no longer has.
    """

    def __init__(self, diversity_penalty: float, num_beams: int, num_beam_groups: int) -> None:
        op = "HammingDiversityLogitsProcessor"
        ok = isinstance(diversity_penalty, float) and diversity_penalty > 0
        require(ok, op, "diversity_penalty", "a float > 0", diversity_penalty)
        require(isinstance(num_beams, int) and num_beams >= 2, op, "num_beams", "an int >= 2", num_beams)
        ok = isinstance(num_beam_groups, int) and 2 <= num_beam_groups <= num_beams
        require(ok, op, "num_beam_groups", f"an int in [2, num_beams = {num_beams}]", num_beam_groups)
        self._diversity_penalty = diversity_penalty
        self._num_beams = num_beams
        self._num_sub_beams = num_beams // num_beam_groups

    def __call__(  # type: ignore[override]  # a list gives the two more arguments by name
        self, input_ids: Array, scores: Array, current_tokens: Array, beam_group_idx: int
    ) -> Array:
        xp = namespace(scores)
        first = beam_group_idx * self._num_sub_beams
        size = min(first + self._num_sub_beams, self._num_beams) - first
        if first == 0:
            return scores
        tokens = xp.astype(current_tokens, xp.int64)
        earlier = xp.reshape(tokens[: len(tokens) // self._num_beams * self._num_beams], (-1, self._num_beams))
        counts = xp.zeros((earlier.shape[0], scores.shape[-1]), dtype=xp.int64, device=device(scores))
        rows = xp.arange(earlier.shape[0], device=device(scores))
        for beam in range(first):
            counts[rows, earlier[:, beam]] += 1
        times_taken, result = xp.astype(counts, xp.float32), copy(xp, scores)
        with quiet():  # a penalty beyond float32 is infinite: it forbids, and 0 times it is 0
            each = xp.where(counts > 0, times_taken * self._diversity_penalty, times_taken)
            penalty = repeat_rows(xp, each, size)
            result[: penalty.shape[0]] = narrow(xp, widen(xp, scores[: penalty.shape[0]]) - penalty, scores)
        return result


def are_ids(sequence: Sequence[Any]) -> bool:
    """Whether all items are ids >= 0."""
    if {int}.issuperset(map(type, sequence)):  # asked first, since it takes no loop in Python: there may be a million
        return min(sequence, default=0) >= 0
    return all(isinstance(t, (int, np.integer)) and t >= 0 for t in sequence)


def _check_penalty(op: str, penalty: object) -> float:
    if not (isinstance(penalty, float) and penalty > 0):
        refuse(op, "penalty", "a float > 0", penalty)
    return float(penalty)


def _penalise(xp: Namespace, scores: ArrayT, ids: Array, penalty: float, counted: Array | None = None) -> ArrayT:
    """The scores with a penalty on the ids of each row that are in the vocabulary and in the mask `counted`, if given."""
    result, ids = copy(xp, scores), xp.astype(ids, xp.int64)
    if 0 in ids.shape:
        return result
    counted = ids < scores.shape[-1] if counted is None else counted & (ids < scores.shape[-1])
    lowest = int(xp.min(xp.where(counted, ids, xp.zeros_like(ids))))
    require(lowest >= 0, "RepetitionPenaltyLogitsProcessor", "input_ids", "non-negative", lowest)
    # An id that does not count is replaced by one of its row that does, so that every place is written with one value.
    other = xp.max(xp.where(counted, ids, xp.full_like(ids, -1)), axis=1, keepdims=True)
    ids = xp.where(counted, ids, xp.where(other < 0, xp.zeros_like(other), other))
    rows = xp.arange(ids.shape[0], device=device(scores))[:, None]
    old = scores[rows, ids]
    new = xp.where(old < 0, times(xp, old, penalty), divide(xp, old, penalty))
    result[rows, ids] = xp.where(other < 0, old, new)
    return result


def _check_biases(given: Any) -> dict[tuple[int, ...], float]:
    op, arg = "SequenceBiasLogitsProcessor", "sequence_bias"
    require(isinstance(given, (dict, list)) and len(given) > 0, op, arg, "a non-empty dict or list", given)
    if isinstance(given, dict):
        require(all(isinstance(key, tuple) and key for key in given), op, arg, "a dict whose keys are non-empty tuples", given)
    pairs = list(given.items()) if isinstance(given, dict) else given
    kind = tuple if isinstance(given, dict) else list
    for pair in pairs:
        sequence = pair[0]
        require(isinstance(sequence, kind) and are_ids(sequence), op, arg, f"about {kind.__name__}s of ids >= 0", sequence)
        require(isinstance(pair[1], float), op, arg, "with a float bias for each sequence", pair[1])
    return {tuple(pair[0]): pair[1] for pair in pairs}


def _by_length_and_distinct_last(sequences: Iterable[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Groups whose last tokens differ, so that each can be added at once; a token's biases keep their order."""
    layers: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    nth: dict[tuple[int, int], int] = {}
    for sequence in sequences:
        if sequence:
            end = (len(sequence), sequence[-1])
            nth[end] = nth.get(end, 0) + 1
            layers.setdefault((len(sequence), nth[end]), []).append(sequence)
    single = sorted(key for key in layers if key[0] == 1)
    longer = [key for key in layers if key[0] > 1]
    lengths = list(dict.fromkeys(length for length, _ in longer))
    longer.sort(key=lambda key: (lengths.index(key[0]), key[1]))
    yield from (layers[key] for key in single + longer)
