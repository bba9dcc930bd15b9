"""Processors that forbid tokens (n-grams, bad words, prefixes, suppression), replace NaN and infinities, or normalise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from decodestep._base.array_api import (
    NEGATIVE_INFINITY,
    columns,
    constant,
    copy,
    fill,
    full,
    largest,
    log_softmax,
    namespace,
    occurring,
    quiet,
    repeat_rows,
)
from decodestep._base.arrays import Array, ArrayT, TokenIds, token_ids
from decodestep._base.checks import Phrase, refuse, require
from decodestep.processors.base import LogitsProcessor, rows_of_encoder
from decodestep.processors.penalties import SequenceBiasLogitsProcessor, are_ids


class NoRepeatNGramLogitsProcessor(LogitsProcessor):
    """Forbids every token that would complete an n-gram that is already in the row.

        s[w] = -inf where (input_ids[-(n - 1):], w) occurs in input_ids, n = ngram_size

    Ids past the vocabulary are ignored. Scores are returned unchanged while the input is shorter than n.

    Args:
        ngram_size: an int >= 1; 1 forbids every id of the row.

    Raises:
        ValueError: if a negative id would be forbidden.

    Source:
        Paulus, Xiong, Socher, "A deep reinforced model for abstractive summarization", 2017; as in transformers 5.23,
        which raises RuntimeError for the negative id.
    """

    def __init__(self, ngram_size: int) -> None:
        _require_ngram_size("NoRepeatNGramLogitsProcessor", "ngram_size", ngram_size)
        self.ngram_size = ngram_size

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        if input_ids.shape[-1] < self.ngram_size:
            return scores
        xp = namespace(scores)
        match, last = _completions(input_ids, input_ids, self.ngram_size)
        return fill(xp, scores, occurring(xp, type(self).__name__, last, scores, match))


class EncoderNoRepeatNGramLogitsProcessor(LogitsProcessor):
    """Forbids every token that would complete an n-gram of the encoder's input.

        s[w] = -inf where (input_ids[-(n - 1):], w) occurs in the row's encoder ids, n = encoder_ngram_size

    Args:
        encoder_ngram_size: an int >= 1.
        encoder_input_ids: [rows, length] or [length]; each row serves batch // rows rows of scores, such as beams.

    Raises:
        IndexError: for a forbidden id outside the vocabulary; negative ids count from its end.

    Source:
        transformers 5.23's class of this name.
    """

    def __init__(self, encoder_ngram_size: int, encoder_input_ids: Array) -> None:
        _require_ngram_size("EncoderNoRepeatNGramLogitsProcessor", "encoder_ngram_size", encoder_ngram_size)
        self.ngram_size = encoder_ngram_size
        self.encoder_input_ids = encoder_input_ids if len(encoder_input_ids.shape) == 2 else encoder_input_ids[None]
        self.batch_size = self.encoder_input_ids.shape[0]

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        result = copy(xp, scores)
        encoder = rows_of_encoder(type(self).__name__, self.encoder_input_ids, scores)
        if input_ids.shape[-1] < self.ngram_size - 1 or self.encoder_input_ids.shape[-1] < self.ngram_size:
            return result
        match, last = _completions(encoder, input_ids, self.ngram_size)
        rows, places = xp.nonzero(match)
        result[rows, xp.astype(last[rows, places], xp.int64)] = NEGATIVE_INFINITY  # to torch, uint8 is a mask
        return result


class NoBadWordsLogitsProcessor(SequenceBiasLogitsProcessor):
    """Forbids the last token of each given sequence if the input ends with the rest of it.

        SequenceBias with a bias of -inf for each sequence

    If all bad words are end tokens, nothing is forbidden.

    Args:
        bad_words_ids: a non-empty list of lists of ids >= 0.
        eos_token_id: an id, a list or an array of ids, or None; a bad word that is a single end token is not forbidden.

    Raises:
        ValueError: at the first call for an id past the vocabulary.

    Source:
        transformers 5.23's class of this name.
    """

    def __init__(self, bad_words_ids: list[list[int]], eos_token_id: TokenIds | None = None) -> None:
        op, arg = "NoBadWordsLogitsProcessor", "bad_words_ids"
        require(isinstance(bad_words_ids, list) and len(bad_words_ids) > 0, op, arg, "a non-empty list", bad_words_ids)
        for word in bad_words_ids:
            require(isinstance(word, list) and are_ids(word), op, arg, "a list of lists of ids >= 0", word)
        self.bad_word_ids = bad_words_ids
        spared = [] if eos_token_id is None else token_ids(op, "eos_token_id", eos_token_id)
        self.sequence_bias = {tuple(word): NEGATIVE_INFINITY for word in bad_words_ids if word not in [[t] for t in spared]}
        self._placed = None


class PrefixConstrainedLogitsProcessor(LogitsProcessor):
    """Forbids every token except those that a function of the row so far allows.

        s[t] = -inf for t not in prefix_allowed_tokens_fn(batch index, ids of the row)

    If all allowed tokens of all beams of a batch item are already -inf, they become 0 in its rows.

    Args:
        prefix_allowed_tokens_fn: called with (int, [length] ids) for every beam; returns the allowed ids, at least one.
        num_beams: rows of one batch item; None for all rows of a call.

    Raises:
        ValueError: if the function returns no token.
        IndexError: for an id outside the vocabulary.

    Source:
        De Cao et al., "Autoregressive entity retrieval", 2020; as in transformers 5.23.
    """

    def __init__(self, prefix_allowed_tokens_fn: Callable[[int, Array], Sequence[int]], num_beams: int | None) -> None:
        self._prefix_allowed_tokens_fn = prefix_allowed_tokens_fn
        self._num_beams = num_beams

    def of_item(self, item: int) -> PrefixConstrainedLogitsProcessor:
        """For calls whose rows are all beams of one item of a larger batch: the function is given the index `item`."""
        allowed = self._prefix_allowed_tokens_fn
        return PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(item, ids), None)

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        mask = full(xp, scores, NEGATIVE_INFINITY)
        beams = self._num_beams or input_ids.shape[0]
        items = input_ids.shape[0] // beams
        for row in range(items * beams):
            allowed = self._prefix_allowed_tokens_fn(row // beams, input_ids[row])
            if len(allowed) == 0:
                refuse(
                    "PrefixConstrainedLogitsProcessor",
                    "prefix_allowed_tokens_fn",
                    "a function that allows at least one token",
                    Phrase(f"an empty list for batch item {row // beams}"),
                )
            mask[row, allowed] = 0.0
        with quiet():
            result = scores + mask
        dead = xp.reshape(xp.max(result, axis=-1) == NEGATIVE_INFINITY, (items, beams))
        return xp.where(repeat_rows(xp, xp.all(dead, axis=-1), beams)[:, None], mask, result)


class SuppressTokensLogitsProcessor(LogitsProcessor):
    """Forbids the given tokens.

        s[t] = -inf for t in suppress_tokens

    Args:
        suppress_tokens: ids; those outside the vocabulary are ignored.
        device: accepted as transformers does, without effect: the work is done on the device of the scores.

    Source:
        Radford et al., "Robust speech recognition via large-scale weak supervision" (Whisper), 2022; as in
        transformers 5.23.
    """

    def __init__(self, suppress_tokens: Iterable[int], device: object = "cpu") -> None:
        self.suppress_tokens = token_ids("SuppressTokensLogitsProcessor", "suppress_tokens", list(suppress_tokens))

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        return fill(xp, scores, columns(xp, self.suppress_tokens, scores))


class SuppressTokensAtBeginLogitsProcessor(LogitsProcessor):
    """Forbids the given tokens at one position.

        s[t] = -inf for t in begin_suppress_tokens, where len(input_ids) == begin_index

    Args:
        begin_suppress_tokens: ids; those outside the vocabulary are ignored.
        begin_index: the length of the input at which they are forbidden; `set_begin_index` changes it.
        device: as in SuppressTokensLogitsProcessor.

    Source:
        Radford et al., 2022; as in transformers 5.23.
    """

    def __init__(self, begin_suppress_tokens: Iterable[int], begin_index: int, device: object = "cpu") -> None:
        op, arg = "SuppressTokensAtBeginLogitsProcessor", "begin_suppress_tokens"
        self.begin_suppress_tokens = token_ids(op, arg, list(begin_suppress_tokens))
        self.begin_index = begin_index

    def set_begin_index(self, begin_index: int) -> None:
        self.begin_index = begin_index

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        if input_ids.shape[-1] != self.begin_index:
            return scores
        xp = namespace(scores)
        return fill(xp, scores, columns(xp, self.begin_suppress_tokens, scores))


class InfNanRemoveLogitsProcessor(LogitsProcessor):
    """Replaces NaN and infinities by finite scores.

        s = 0 where s is NaN, the largest finite number of the dtype where s is inf, minus that where s is -inf

    It undoes filters: a token that an earlier processor has forbidden becomes merely very unlikely.

    Source:
        transformers 5.23's class of this name.
    """

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        limit = constant(xp, largest(xp, scores), scores)
        finite = xp.where(xp.isnan(scores), constant(xp, 0.0, scores), scores)
        return xp.where(xp.isinf(finite), xp.where(finite > 0, limit, -limit), finite)


class LogitNormalization(LogitsProcessor):
    """Converts scores to log-probabilities, s = log softmax(s); a row with NaN, or of nothing but -inf, becomes NaN.

    Source:
        transformers 5.23's class of this name.
    """

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        return log_softmax(namespace(scores), scores)


def _require_ngram_size(op: str, arg: str, value: object) -> None:
    require(isinstance(value, int) and value > 0, op, arg, "an int >= 1", value)


def _completions(source: Array, ids: Array, n: int) -> tuple[Array, Array]:
    """Which n-grams of `source` begin with the last n - 1 of `ids`, and the last id of each n-gram."""
    count, length = source.shape[-1] - n + 1, ids.shape[-1]
    last = source[:, n - 1 :]
    match = last == last  # all True
    for j in range(n - 1):
        match = match & (source[:, j : j + count] == ids[:, length - n + 1 + j : length - n + 2 + j])
    return match, last
