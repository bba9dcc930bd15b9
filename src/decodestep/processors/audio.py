"""Processors of the audio models: Whisper, Bark and Dia."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from array_api_compat import device

from decodestep._base import arrays
from decodestep._base.array_api import (
    NEGATIVE_INFINITY,
    copy,
    fill,
    full,
    log_softmax,
    log_sum_exp,
    namespace,
    softmax,
)
from decodestep._base.arrays import Array, ArrayT, TokenIds, some_token_ids
from decodestep._base.checks import require
from decodestep._base.signatures import read_signature
from decodestep.processors.base import LogitsProcessor

if TYPE_CHECKING:
    from transformers import GenerationConfig


class WhisperTimeStampLogitsProcessor(LogitsProcessor):
    """Makes Whisper's timestamps come in pairs and never decrease; forces one if together they are likelier than any text.

    With b = no_timestamps_token_id + 1 the first timestamp, and of each row the ids from begin_index on:
        s[no_timestamps_token_id] = -inf
        last id a timestamp:  s[b:] = -inf where the one before it is too, or is missing;  else s[:eos] = -inf
        s[b:t] = -inf, t being the last timestamp, plus 1 unless only the closing one of a pair may follow
        len(input_ids) == begin_index:  s[:b] = -inf, and s[b + max_initial_timestamp_index + 1:] = -inf where that is set
        s[:b] = -inf where log-sum-exp(log p[b:]) > max(log p[:b])     # unless _detect_timestamp_from_logprob is False

    Args:
        generate_config: holds no_timestamps_token_id, eos_token_id or bos_token_id, and may hold max_initial_timestamp_index
            and _detect_timestamp_from_logprob.
        begin_index: the length of the decoder's prompt; `set_begin_index` changes it.
        _detect_timestamp_from_logprob: overrides the configuration's unless None.

    Raises:
        ValueError: for a begin_index of None.

    Source:
        Radford et al., "Robust speech recognition via large-scale weak supervision", 2022; as in transformers 5.23.
    """

    def __init__(
        self, generate_config: GenerationConfig, begin_index: int, _detect_timestamp_from_logprob: bool | None = None
    ) -> None:
        self.no_timestamps_token_id = generate_config.no_timestamps_token_id
        self.timestamp_begin = generate_config.no_timestamps_token_id + 1
        self.eos_token_id = generate_config.eos_token_id or generate_config.bos_token_id
        if _detect_timestamp_from_logprob is None:
            _detect_timestamp_from_logprob = getattr(generate_config, "_detect_timestamp_from_logprob", True)
        self._detect_timestamp_from_logprob = _detect_timestamp_from_logprob
        require(begin_index is not None, "WhisperTimeStampLogitsProcessor", "begin_index", "given", begin_index)
        self.begin_index = begin_index
        self.max_initial_timestamp_index = getattr(generate_config, "max_initial_timestamp_index", None)

    def set_begin_index(self, begin_index: int) -> None:
        self.begin_index = begin_index

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp, first = namespace(scores), self.timestamp_begin
        result = copy(xp, scores)
        result[:, self.no_timestamps_token_id] = NEGATIVE_INFINITY
        for row, ids in enumerate(input_ids.tolist()):
            self._pair(result[row], ids[self.begin_index :])
        if input_ids.shape[1] == self.begin_index:
            result[:, :first] = NEGATIVE_INFINITY
            if self.max_initial_timestamp_index is not None:
                result[:, first + self.max_initial_timestamp_index + 1 :] = NEGATIVE_INFINITY
        if self._detect_timestamp_from_logprob:
            log_p = log_softmax(xp, xp.astype(result, xp.float32))
            likelier = log_sum_exp(xp, log_p[:, first:]) > xp.max(log_p[:, :first], axis=-1, keepdims=True)
            result[:, :first] = fill(xp, result[:, :first], likelier)
        return result

    def _pair(self, row: Array, ids: list[int]) -> None:
        """Applies the rules of one row, writing to it."""
        first = self.timestamp_begin
        closed = len(ids) < 2 or ids[-2] >= first
        after_timestamp = bool(ids) and ids[-1] >= first
        if after_timestamp and closed:
            row[first:] = NEGATIVE_INFINITY
        elif after_timestamp:
            row[: self.eos_token_id] = NEGATIVE_INFINITY
        stamps = [token for token in ids if token >= first]
        if stamps:
            row[first : stamps[-1] + (0 if after_timestamp and not closed else 1)] = NEGATIVE_INFINITY


class WhisperNoSpeechDetection(LogitsProcessor):
    """Records Whisper's probability that there is no speech; returns the scores unchanged.

        where len(input_ids) == begin_index:  no_speech_prob = softmax(s)[no_speech_token]     # exp(s) of log-probabilities

    Keeps state: `no_speech_prob`, [0.0] before the first measurement.

    Args:
        no_speech_token: its id.
        begin_index: the length of the decoder's prompt. Above 1, the logits at the start of the transcript are used instead of
            these scores: the model given to `set_model` is called on the inputs given to `set_inputs`.
        scores_is_logprobs: whether the scores are log-probabilities.

    Source:
        Radford et al., 2022; as in transformers 5.23.
    """

    stateful = True

    def __init__(self, no_speech_token: int, begin_index: int, scores_is_logprobs: bool = False) -> None:
        self.no_speech_token = no_speech_token
        self.start_of_trans_offset = begin_index
        self.begin_index = begin_index
        self.is_scores_logprobs = scores_is_logprobs
        self.model: Any = None
        self.inputs: dict[str, Any] | None = None
        self._no_speech_prob: Any = [0.0]

    @property
    def no_speech_prob(self) -> Any:
        return self._no_speech_prob

    def set_model(self, model: object) -> None:
        self.model = model

    def set_inputs(self, inputs: dict[str, Any]) -> None:
        given = {**self.model.prepare_inputs_for_generation(**inputs), **inputs}
        given["input_features"] = given.pop("inputs")
        if "input_ids" not in read_signature(self.model.forward).parameters:
            given.pop("input_ids", None)
        self.inputs = given

    def set_begin_index(self, begin_index: int) -> None:
        self.begin_index = begin_index

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        if input_ids.shape[1] != self.begin_index:
            return scores
        xp, measured, logarithmic = namespace(scores), scores, self.is_scores_logprobs
        if self.start_of_trans_offset > 1:
            logits = self.model(**(self.inputs or {})).logits
            logits = logits.detach() if arrays.is_torch(logits) else logits
            measured, logarithmic = logits[:, self.begin_index - self.start_of_trans_offset], False
        p = xp.exp(measured) if logarithmic else softmax(xp, xp.astype(measured, xp.float32))
        self._no_speech_prob = p[:, self.no_speech_token]
        return scores


class AlternatingCodebooksLogitsProcessor(LogitsProcessor):
    """Makes ids of Bark's two coarse codebooks alternate.

        an even number of ids since the start:  keep s[semantic : semantic + codebook];  odd:  keep s[semantic + codebook :]

    Args:
        input_start_len: the length of the prompt, an int >= 0.
        semantic_vocab_size: the first id of the codebooks.
        codebook_size: the size of one.

    Source:
        Suno, Bark, 2023; as in transformers 5.23.
    """

    def __init__(self, input_start_len: int, semantic_vocab_size: int, codebook_size: int) -> None:
        ok = isinstance(input_start_len, int) and input_start_len >= 0
        require(ok, "AlternatingCodebooksLogitsProcessor", "input_start_len", "an int >= 0", input_start_len)
        self.input_start_len = input_start_len
        self.semantic_vocab_size = semantic_vocab_size
        self.codebook_size = codebook_size

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        result = copy(namespace(scores), scores)
        second = self.semantic_vocab_size + self.codebook_size
        if (input_ids.shape[-1] - self.input_start_len) % 2 == 0:
            result[:, : self.semantic_vocab_size] = NEGATIVE_INFINITY
            result[:, second:] = NEGATIVE_INFINITY
        else:
            result[:, :second] = NEGATIVE_INFINITY
        return result


class BarkEosPrioritizerLogitsProcessor(LogitsProcessor):
    """Ends a row as soon as its end is likely enough.

        p = softmax(float32(s));  where p[eos] > min_eos_p for some eos:  s = -inf outside the eos ids

    Args:
        eos_token_id: an id, a list or an array of ids >= 0.
        min_eos_p: a number > 0, or None for no effect.
        device: accepted as transformers does, without effect: the work is done on the device of the scores.

    Raises:
        IndexError: at the call for one past the vocabulary.

    Source:
        Suno, Bark, 2023; as in transformers 5.23.
    """

    def __init__(self, eos_token_id: TokenIds | None, min_eos_p: float | None, device: object = "cpu") -> None:
        op = "BarkEosPrioritizerLogitsProcessor"
        self.eos_token_id = some_token_ids(op, "eos_token_id", eos_token_id)
        require(min_eos_p is None or bool(min_eos_p > 0), op, "min_eos_p", "> 0 or None", min_eos_p)
        self.min_eos_p = min_eos_p

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        if not self.min_eos_p:
            return scores
        xp = namespace(scores)
        p = softmax(xp, xp.astype(scores, xp.float32))[:, self.eos_token_id]
        ended = full(xp, scores, NEGATIVE_INFINITY)
        ended[:, self.eos_token_id] = scores[:, self.eos_token_id]
        return xp.where(xp.any(p > self.min_eos_p, axis=1, keepdims=True), ended, scores)


class DiaEOSChannelFilterLogitsProcessor(LogitsProcessor):
    """Lets only Dia's first channel end, and only if the end is its best token.

    Of each [channels, vocab] block of rows:
        s[1:, eos:] = -inf;  s[0, eos + 1:] = -inf
        row's first maximum at eos:  s[:eos] = -inf;  elsewhere:  s[eos] = -inf

    Args:
        num_channels: an int >= 1; the rows of scores are a multiple of it.
        eos_token_id: an int >= 1.

    Raises:
        IndexError: at the call for one past the vocabulary.

    Source:
        Nari Labs, Dia-1.6B, 2025. Deviation from transformers 5.23: the given scores are not written to.
    """

    def __init__(self, num_channels: int, eos_token_id: int) -> None:
        op = "DiaEOSChannelFilterLogitsProcessor"
        require(num_channels >= 1, op, "num_channels", ">= 1", num_channels)
        require(eos_token_id >= 1, op, "eos_token_id", ">= 1", eos_token_id)
        self.num_channels = num_channels
        self.eos_id = eos_token_id

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp, vocab = namespace(scores), scores.shape[-1]
        rows = xp.reshape(copy(xp, scores), (-1, self.num_channels, vocab))
        rows[:, 1:, self.eos_id :] = NEGATIVE_INFINITY
        rows[:, 0, self.eos_id + 1 :] = NEGATIVE_INFINITY
        flat = xp.reshape(rows, (-1, vocab))
        ends = xp.argmax(flat, axis=-1) == self.eos_id
        flat[:, self.eos_id] = fill(xp, flat[:, self.eos_id], ~ends)
        return fill(xp, flat, ends[:, None] & (xp.arange(vocab, device=device(scores)) < self.eos_id)[None, :])


class DiaEOSDelayPatternLogitsProcessor(LogitsProcessor):
    """Ends Dia's channels one after another, each with its own delay after the first.

    A batch item is ending from the step where its first channel's first maximum is eos, or where
    len(input_ids) == max_generation_len - max(delay_pattern) - 1. In each [channels, vocab] block of an ending item:
        s = -inf, but s[eos] = 0, in the channels whose delay is 0;  then every delay falls by 1

    Keeps state: one object serves one generation.

    Args:
        delay_pattern: the delay of each channel in steps.
        eos_token_id: an id of the vocabulary.
        max_generation_len: the length of the whole sequence.
        device: accepted as transformers does, without effect: the state is kept on the device of the scores.

    Source:
        Nari Labs, Dia-1.6B, 2025. Deviation from transformers 5.23: the given scores are not written to.
    """

    stateful = True

    def __init__(self, delay_pattern: list[int], eos_token_id: int, max_generation_len: int, device: object = "cpu") -> None:
        self.num_channels = len(delay_pattern)
        self.active_batches: Any = None
        self.delay_pattern: Any = [int(d) for d in delay_pattern]
        self.eos_token_id = eos_token_id
        self.max_generation_len = max_generation_len - max(delay_pattern) - 1

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp, vocab = namespace(scores), scores.shape[-1]
        rows = xp.reshape(scores, (-1, self.num_channels, vocab))
        if self.active_batches is None:
            here = device(scores)
            self.delay_pattern = xp.asarray([self.delay_pattern] * rows.shape[0], dtype=xp.int32, device=here)
            self.active_batches = xp.zeros((rows.shape[0],), dtype=xp.bool, device=here)
        ends = xp.argmax(rows[:, 0], axis=-1) == self.eos_token_id
        self.active_batches = self.active_batches | ends | (input_ids.shape[1] == self.max_generation_len)
        ending = self.active_batches[:, None] & (self.delay_pattern == 0)
        end = full(xp, rows[:1, :1], NEGATIVE_INFINITY)
        end[..., self.eos_token_id] = 0.0
        self.delay_pattern = self.delay_pattern - xp.astype(self.active_batches[:, None], xp.int32)
        return xp.reshape(xp.where(ending[..., None], end, rows), (-1, vocab))
