"""Processors for lengths and forced tokens: minimum lengths, first and last tokens, the exponential length penalty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from array_api_compat import device

from decodestep._base.array_api import columns, copy, fill, force_tokens, namespace, times
from decodestep._base.arrays import Array, ArrayT, TokenIds, some_token_ids, token_ids
from decodestep._base.checks import require
from decodestep.processors.base import LogitsProcessor

_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


class MinLengthLogitsProcessor(LogitsProcessor):
    """Forbids the end while the whole sequence, prompt included, is shorter than a minimum.

        s[eos] = -inf where len(input_ids) < min_length

    Args:
        min_length: an int >= 0.
        eos_token_id: an id, a list or an array of ids; those outside the vocabulary are ignored.
        device: accepted as transformers does, without effect: the work is done on the device of the scores.

    Source:
        transformers 5.23's class of this name.
    """

    supports_continuous_batching = False

    def __init__(self, min_length: int, eos_token_id: TokenIds | None, device: object = "cpu") -> None:
        _require_length("MinLengthLogitsProcessor", "min_length", min_length)
        self.min_length = min_length
        self.eos_token_id = token_ids("MinLengthLogitsProcessor", "eos_token_id", eos_token_id)

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        return _without(self.eos_token_id, scores, input_ids.shape[-1] < self.min_length)


class MinNewTokensLengthLogitsProcessor(LogitsProcessor):
    """Forbids the end while fewer than a minimum of new tokens follow the prompt.

        s[eos] = -inf where len(input_ids) - prompt_length_to_skip < min_new_tokens

    Args:
        prompt_length_to_skip: an int >= 0.
        min_new_tokens: an int >= 0.
        eos_token_id: as in MinLengthLogitsProcessor.
        device: as in MinLengthLogitsProcessor.

    Source:
        transformers 5.23's class of this name.
    """

    supports_continuous_batching = False

    def __init__(
        self, prompt_length_to_skip: int, min_new_tokens: int, eos_token_id: TokenIds | None, device: object = "cpu"
    ) -> None:
        op = "MinNewTokensLengthLogitsProcessor"
        _require_length(op, "prompt_length_to_skip", prompt_length_to_skip)
        _require_length(op, "min_new_tokens", min_new_tokens)
        self.prompt_length_to_skip = prompt_length_to_skip
        self.min_new_tokens = min_new_tokens
        self.eos_token_id = token_ids(op, "eos_token_id", eos_token_id)

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        new = input_ids.shape[-1] - self.prompt_length_to_skip
        return _without(self.eos_token_id, scores, new < self.min_new_tokens)


class ForcedBOSTokenLogitsProcessor(LogitsProcessor):
    """Forces the first generated token of a decoder that starts from one token.

        where len(input_ids) == 1:  s = -inf, but s[bos_token_id] = 0

    Args:
        bos_token_id: an id of the vocabulary; negative ids count from its end.

    Raises:
        IndexError: at the call for others.

    Source:
        transformers 5.23's class of this name.
    """

    def __init__(self, bos_token_id: int) -> None:
        self.bos_token_id = bos_token_id

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        return force_tokens(namespace(scores), scores, self.bos_token_id) if input_ids.shape[-1] == 1 else scores


class ForcedEOSTokenLogitsProcessor(LogitsProcessor):
    """Forces the last token within max_length to be an end token.

        where len(input_ids) == max_length - 1:  s = -inf, but s[eos] = 0

    Args:
        max_length: the length of the whole sequence, an int.
        eos_token_id: an id, a list or an array of ids >= 0.
        device: as in MinLengthLogitsProcessor.

    Raises:
        IndexError: at the call for one past the vocabulary.

    Source:
        transformers 5.23's class of this name.
    """

    def __init__(self, max_length: int, eos_token_id: TokenIds | None, device: object = "cpu") -> None:
        self.max_length = max_length
        self.eos_token_id = some_token_ids("ForcedEOSTokenLogitsProcessor", "eos_token_id", eos_token_id)

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        last = input_ids.shape[-1] == self.max_length - 1
        return force_tokens(namespace(scores), scores, self.eos_token_id) if last else scores


class ForceTokensLogitsProcessor(LogitsProcessor):
    """Forces given tokens at given positions.

        where len(input_ids) == i for a pair (i, t) of force_token_map:  s = -inf, but s[t] = 0

    Args:
        force_token_map: a list of [position, id], or a dict {position: id}; an id of None forces nothing.
        _has_warned: accepted as transformers did, without effect: nothing is deprecated here.

    Raises:
        IndexError: at the call for an id outside the vocabulary; negative ids count from its end.

    Source:
        transformers 4.41's class of this name, which 5.23 no longer has.
    """

    def __init__(
        self, force_token_map: Mapping[int, int | None] | Iterable[tuple[int, int | None]], _has_warned: bool | None = False
    ) -> None:
        self.force_token_map: dict[int, int | None] = dict(force_token_map)

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        token = self.force_token_map.get(input_ids.shape[-1])
        return scores if token is None else force_tokens(namespace(scores), scores, token)


class ExponentialDecayLengthPenalty(LogitsProcessor):
    """Makes the end more likely with every token past a point.

        where n = len(input_ids) - start - input_ids_seq_length > 0:  s[eos] = s[eos] + |s[eos]| * (factor ** n - 1)

    An eos score that is not finite is not changed.

    Args:
        exponential_decay_length_penalty: the pair (start, factor): an int and a float.
        eos_token_id: an id, a list or an array of ids >= 0.
        input_ids_seq_length: the length of the prompt.

    Raises:
        IndexError: at the call for one past the vocabulary.

    Source:
        transformers 5.23's class of this name.
    """

    def __init__(
        self, exponential_decay_length_penalty: tuple[int, float], eos_token_id: TokenIds | None, input_ids_seq_length: int
    ) -> None:
        self.regulation_start = exponential_decay_length_penalty[0] + input_ids_seq_length
        self.regulation_factor = exponential_decay_length_penalty[1]
        self.eos_token_id = some_token_ids("ExponentialDecayLengthPenalty", "eos_token_id", eos_token_id)

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        past = input_ids.shape[-1] - self.regulation_start
        if past <= 0:
            return scores
        xp = namespace(scores)
        ids = xp.asarray(self.eos_token_id, dtype=xp.int64, device=device(scores))
        eos = scores[:, ids]
        finite = xp.where(xp.isfinite(eos), eos, xp.zeros_like(eos))
        penalty = times(xp, xp.abs(finite), self.growth(past) - 1)
        result = copy(xp, scores)
        result[:, ids] = eos + penalty
        return result

    def growth(self, past: int) -> float:
        """See `decay_growth`."""
        return decay_growth(self.regulation_factor, past)


def decay_growth(factor: float, past: int) -> float:
    """factor ** past, at most the largest float32: beyond it, a score of 0 would become 0 * inf = NaN."""
    try:
        return min(factor**past, _LARGEST_FLOAT32)
    except OverflowError:
        return _LARGEST_FLOAT32


def _require_length(op: str, arg: str, value: object) -> None:
    require(isinstance(value, int) and value >= 0, op, arg, "an int >= 0", value)


def _without(ids: list[int], scores: ArrayT, forbidden: bool) -> ArrayT:
    xp = namespace(scores)
    return fill(xp, scores, columns(xp, ids, scores)) if forbidden else copy(xp, scores)
