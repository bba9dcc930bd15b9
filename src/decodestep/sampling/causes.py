"""The spans of the history that caused a penalty, a bias or a ban on a token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from decodestep import processors as p
from decodestep.processors.extra import DRY_LONGEST

Span = tuple[int, int]  # tokens [start, stop) of the history
Spans = tuple[Span, ...]
_Found = dict[int, list[Span]]  # by token


def causes(processor: object, history: Sequence[int], tokens: Sequence[int]) -> Mapping[int, Spans]:
    """For the `tokens` on which the processor acted because of the history: the spans that caused it, latest last.

    Empty for processors that do not read the history.
    """
    rule = _RULES.get(type(processor))
    if rule is None or not tokens or not history:
        return {}
    spans = rule(processor, history, frozenset(tokens))
    return {token: tuple(found) for token, found in spans.items() if found}


def _occurrences(history: Sequence[int], tokens: frozenset[int], skipped: int) -> _Found:
    found: _Found = {}
    for place in range(skipped, len(history)):
        if history[place] in tokens:
            found.setdefault(history[place], []).append((place, place + 1))
    return found


def _repetition(processor: p.RepetitionPenaltyLogitsProcessor, history: Sequence[int], tokens: frozenset[int]) -> _Found:
    return _occurrences(history, tokens, int(processor.prompt_ignore_length or 0))


def _recent_repetition(
    processor: p.RecentRepetitionPenaltyLogitsProcessor, history: Sequence[int], tokens: frozenset[int]
) -> _Found:
    return _occurrences(history, tokens, max(0, len(history) - processor.range) if processor.range else 0)


def _occurrences_generated(
    processor: p.PresenceFrequencyPenaltyLogitsProcessor, history: Sequence[int], tokens: frozenset[int]
) -> _Found:
    return _occurrences(history, tokens, int(processor.prompt_length))


def _ngrams(processor: p.NoRepeatNGramLogitsProcessor, history: Sequence[int], tokens: frozenset[int]) -> _Found:
    """The earlier n-grams that the token would repeat."""
    n, found = int(processor.ngram_size), _Found()
    prefix = tuple(history[len(history) - n + 1 :]) if n > 1 else ()
    for start in range(len(history) - n + 1):
        token = history[start + n - 1]
        if token in tokens and tuple(history[start : start + n - 1]) == prefix:
            found.setdefault(token, []).append((start, start + n))
    return found


def _sequences(processor: p.SequenceBiasLogitsProcessor, history: Sequence[int], tokens: frozenset[int]) -> _Found:
    """The end of the row that is the prefix of a biased or forbidden sequence; single tokens have no cause in the history."""
    found: _Found = {}
    for ids in processor.sequence_bias:
        length = len(ids) - 1
        if length > 0 and ids[-1] in tokens and tuple(history[-length:]) == tuple(ids[:-1]):
            found.setdefault(ids[-1], []).append((len(history) - length, len(history)))
    return found


def _dry(processor: p.DRYLogitsProcessor, history: Sequence[int], tokens: frozenset[int]) -> _Found:
    """The longest earlier match of the row's end, with the token that followed it."""
    first = max(0, len(history) - processor.range) if processor.range else 0
    longest: dict[int, Span] = {}
    for place in range(first + 1, len(history)):
        token, length = history[place], 0
        while (
            length < min(place - first, DRY_LONGEST)
            and history[place - 1 - length] == history[-1 - length]
            and history[-1 - length] not in processor.breakers
        ):
            length += 1
        best = longest.get(token)
        if token in tokens and length and (best is None or length >= best[1] - best[0] - 1):
            longest[token] = (place - length, place + 1)
    return {token: [span] for token, span in longest.items()}


_RULES: dict[type, Callable[[Any, Sequence[int], frozenset[int]], _Found]] = {
    p.RepetitionPenaltyLogitsProcessor: _repetition,
    p.RecentRepetitionPenaltyLogitsProcessor: _recent_repetition,
    p.PresenceFrequencyPenaltyLogitsProcessor: _occurrences_generated,
    p.NoRepeatNGramLogitsProcessor: _ngrams,
    p.SequenceBiasLogitsProcessor: _sequences,
    p.NoBadWordsLogitsProcessor: _sequences,
    p.DRYLogitsProcessor: _dry,
}
