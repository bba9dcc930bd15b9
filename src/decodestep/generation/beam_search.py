"""Beam search: the most likely continuations of a prompt, several at a time; diverse groups of beams; sampled beams."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from decodestep._base.array_api import quiet
from decodestep._base.checks import (
    is_finite,
    is_int,
    is_scores,
    refuse,
    require,
    require_dtype,
    require_id_set,
    require_ids,
    require_seed,
    require_shape,
    shape_text,
)
from decodestep.errors import RequestError
from decodestep.generation.beam_group import Beam as Beam
from decodestep.generation.beam_group import BeamGroup, BeamRules, Report, highest
from decodestep.ops.decode_step import TokenLogprobs
from decodestep.processors import HammingDiversityLogitsProcessor, LogitsProcessorList
from decodestep.sampling.row_processors import for_item, refuse_state_of_beams

_OP = "beam_search"

NextLogits = Callable[[list[list[int]], list[int]], np.ndarray]


class SearchInterrupt(Exception):  # noqa: N818, which is no error: `next_logits` raises it to end a search
    """Raised by `next_logits` to end the search with the beams found so far."""


class NoBeamError(RequestError):
    """Every token of every live beam was at -inf before any beam was collected."""


def beam_search(
    next_logits: NextLogits,
    prompt: Sequence[int],
    *,
    vocab_size: int,
    max_new_tokens: int,
    num_beams: int,
    eos_token_ids: Collection[int] = (),
    num_beam_groups: int = 1,
    diversity_penalty: float = 0.0,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    num_return_sequences: int = 1,
    processors: Sequence[Any] | None = None,
    do_sample: bool = False,
    seed: int = 0,
    stop: Callable[[list[int]], bool] | None = None,
    top_logprobs: int | None = None,
) -> list[Beam]:
    """Searches for the highest-scoring continuations of a prompt, keeping `num_beams` of them alive.

        a group of n = num_beams / num_beam_groups beams starts from the prompt alone, with sum 0; at each step, for each group:
            p = processors(ids, log_softmax(logits) - diversity_penalty * #{beams of earlier groups that took t at this step})
            candidates = the n * max(2, 1 + number of end tokens) highest sum[beam] + p[beam, t]
            collect those of the first n candidates that end; the collection keeps the n best by
                sum / length ** length_penalty, where length counts the generated tokens, the end token included
            the n best candidates that do not end become the live beams; at step max_new_tokens the first n candidates all end

    Args:
        next_logits: next_logits(sequences, parents) gives logits (len(sequences), V), float32 or float64. `sequences` are the
            token ids of the live beams, prompt included. sequences[i] continues, by one token, sequence parents[i] of the
            previous call. The first call is ([prompt], [0]). If it raises `SearchInterrupt`, the search ends there: the live
            beams are collected as they are, unfinished.
        prompt: integers in [0, V).
        vocab_size: V >= 1.
        max_new_tokens: >= 1.
        num_beams: >= 1.
        eos_token_ids: the tokens that end a beam; integers in [0, V), may be empty.
        num_beam_groups: >= 1, a divisor of num_beams.
        diversity_penalty: finite, >= 0; 0 with one group.
        length_penalty: finite. Sums are negative: a value above 0 favours long beams, below 0 short ones.
        early_stopping: when a group that has collected n beams ends. True: at once. False: when its best live beam, scored at
            its present length, is no better than the worst collected. "never": the same, but if length_penalty > 0 scored at
            length max_new_tokens.
        num_return_sequences: in [1, num_beams].
        processors: called in order, as by `LogitsProcessorList`, with the ids (beams, length) and log-probabilities (beams, V)
            of a group, both NumPy. Temperature and filters are processors too. The function of a
            PrefixConstrainedLogitsProcessor is called with the index 0. With several beams, those with state are refused.
        do_sample: draws the candidates without replacement from the softmax of the sums: they are the highest sum +
            gumbel(seed, length of the sequence, beam * V + t), in this order. With one group only.
        seed: in [0, 2^64).
        stop: stop(generated token ids) -> whether a candidate ends for a reason other than an end token; None for never.
        top_logprobs: how many of the most likely tokens to report for each token of a beam, >= 0; None for no
            log-probabilities. `raw` is log_softmax(logits)[t], in the precision of the logits; `processed` is p[beam, t], so
            that the `processed` of a beam add up to its sum. The lists hold the highest of each in the beam's row.

    Returns:
        The best collected beams of all groups, best first: num_return_sequences of them, or fewer if there are no more; none
        where the first call of next_logits raised SearchInterrupt.

    Raises:
        ValueError: for an argument out of its range, before any work, and for logits of a wrong shape or dtype.
        NoBeamError: a ValueError, if no beam was collected because every token of every live beam is at -inf.

    Notes:
        Ties: the lowest beam first, then the lowest token; of equal scores the one collected first, the earlier group first.
        NaN counts as -inf. A token at -inf is no candidate, so there may be fewer than n live beams. Equal +inf logits share
        the probability.

    Source:
        The beam search of transformers 5.23; with groups, Vijayakumar et al., "Diverse beam search", 2016, as in transformers
        4.41: there the best candidate, ended or not, is compared with the worst collected beam, and a group that ends at step
        max_new_tokens collects no unfinished beam. Deviations: before there are n beams, the missing ones are absent instead of
        copies at -1e9; a group that has ended adds no padding tokens to the penalty; noise is a function of the seed.
    """
    _check_sizes(num_beams, num_beam_groups, num_return_sequences, vocab_size, max_new_tokens)
    start = require_ids(_OP, "prompt", vocab_size, prompt, "integers")
    end_token_ids = require_id_set(_OP, "eos_token_ids", vocab_size, eos_token_ids, "integers")
    process = _check_functions(next_logits, processors, stop, num_beams)
    _check_scoring(num_beam_groups, diversity_penalty, length_penalty, early_stopping)
    _check_draw(num_beam_groups, do_sample, seed, top_logprobs)
    size = num_beams // num_beam_groups
    rules = BeamRules(
        size=size,
        candidates=size * max(2, 1 + len(end_token_ids)),
        end_token_ids=end_token_ids,
        stop=stop,
        max_new_tokens=max_new_tokens,
        length_penalty=float(length_penalty),
        early_stopping=early_stopping,
        diverse=num_beam_groups > 1,
        seed=int(seed) if do_sample else None,
    )
    groups = [BeamGroup(rules) for _ in range(num_beam_groups)]
    sequences, parents, length = [start], [0], 0
    while sequences:  # no more after max_new_tokens steps
        try:
            logits = next_logits(sequences, parents)
        except SearchInterrupt:
            for group in groups:
                group.cut(length)
            break
        length += 1
        log_probs = _log_softmax(logits, len(sequences), vocab_size)
        _advance(groups, log_probs, sequences, length, process, float(diversity_penalty), top_logprobs)
        live = [path for group in groups for path in group.live]
        sequences, parents = [start + path.tokens for path in live], [path.parent for path in live]
        _number_rows(groups)
    else:
        if not any(group.collected for group in groups):
            raise NoBeamError(_OP, "next_logits", "such that some beam can go on", f"no token above -inf at step {length}")
    collected = [beam for group in groups for beam in group.collected]
    return sorted(collected, key=lambda beam: -beam.score)[:num_return_sequences]


def _advance(
    groups: Sequence[BeamGroup],
    log_probs: np.ndarray,
    sequences: list[list[int]],
    length: int,
    process: LogitsProcessorList,
    diversity_penalty: float,
    top_logprobs: int | None,
) -> None:
    """One step of every group that has not ended, in order. log_probs: (len(sequences), V). length: as in BeamGroup.advance."""
    taken: list[int] = []  # the tokens that earlier groups took at this step
    for group in (group for group in groups if group.live):
        ids, scores = np.array([sequences[row] for row in group.rows], np.int64), log_probs[group.rows]
        if taken and diversity_penalty:
            scores = _penalise_repeats(ids, scores, taken, diversity_penalty)
        processed = np.asarray(process(ids, scores))
        rule = f"scores of shape {shape_text(scores.shape)}"
        require(is_scores(processed, scores.shape), _OP, "the processors' result", rule, processed)
        report = None if top_logprobs is None else _reporter(log_probs[group.rows], processed, int(top_logprobs))
        taken += group.advance(processed, length, ids.shape[1], report)


def _number_rows(groups: Sequence[BeamGroup]) -> None:
    """Numbers the live beams of all groups, group by group, as the rows of the next logits."""
    first = 0
    for group in groups:
        group.rows = list(range(first, first + len(group.live)))
        first += len(group.live)


def _reporter(raw: np.ndarray, processed: np.ndarray, count: int) -> Report:
    def top(rows: np.ndarray) -> list[tuple[tuple[int, float], ...]]:
        return [tuple((int(i), float(row[i])) for i in highest(row, count)) for row in rows]

    processed = np.where(np.isnan(processed), -np.inf, processed)
    top_raw, top_processed = top(raw), top(processed)
    return lambda beam, token: TokenLogprobs(
        float(raw[beam, token]), float(processed[beam, token]), top_raw[beam], top_processed[beam]
    )


def _log_softmax(logits: object, beams: int, vocab: int) -> np.ndarray:
    x = np.asarray(logits)
    require_dtype(_OP, "next_logits' result", x, (np.float32, np.float64))
    require_shape(_OP, "next_logits' result", x, (beams, vocab))
    x = np.where(np.isnan(x), x.dtype.type(-np.inf), x)
    top = x.max(axis=1, keepdims=True)
    with quiet():
        shifted = np.where((x == top) & (top > -np.inf), x.dtype.type(0), x - top)
        result = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    result[np.isnan(result)] = -np.inf  # a row whose tokens are all at -inf
    return result


def _penalise_repeats(ids: np.ndarray, scores: np.ndarray, taken: list[int], penalty: float) -> Any:
    """The scores less `penalty` for each time that earlier groups took the token at this step.

    HammingDiversityLogitsProcessor expects a batch of prompts. Each of our beams is presented as a prompt with groups of one
    beam: one group per `taken` token, then the beam itself.
    """
    count = len(taken)
    processor = HammingDiversityLogitsProcessor(penalty, count + 1, count + 1)
    return processor(ids, scores, np.tile([*taken, 0], len(scores)), count)


def _check_functions(
    next_logits: object, processors: Sequence[Any] | None, stop: object, num_beams: int
) -> LogitsProcessorList:
    require(callable(next_logits), _OP, "next_logits", "a function (sequences, parents) -> logits", next_logits)
    require(stop is None or callable(stop), _OP, "stop", "a function of generated token ids, or None", stop)
    ok = processors is None or (isinstance(processors, Sequence) and all(map(callable, processors)))
    require(ok, _OP, "processors", "callables (input_ids, scores) -> scores, or None", processors)
    refuse_state_of_beams(_OP, processors or (), num_beams)
    return LogitsProcessorList(for_item(processors or (), 0))


def _check_draw(groups: int, do_sample: object, seed: object, top_logprobs: object) -> None:
    require(isinstance(do_sample, bool), _OP, "do_sample", "a bool", do_sample)
    require(not do_sample or groups == 1, _OP, "do_sample", "False with several groups", do_sample)
    require_seed(_OP, seed)
    ok = top_logprobs is None or (is_int(top_logprobs) and top_logprobs >= 0)
    require(ok, _OP, "top_logprobs", "None or an integer >= 0", top_logprobs)


def _check_sizes(beams: int, groups: int, returned: int, vocab: int, length: int) -> None:
    for name, value in (("num_beams", beams), ("vocab_size", vocab), ("max_new_tokens", length)):
        require(is_int(value) and value >= 1, _OP, name, "an integer >= 1", value)
    require(beams * vocab < 2**32, _OP, "num_beams", f"such that num_beams * {vocab} < 2^32", beams)
    ok = is_int(groups) and groups >= 1 and beams % groups == 0
    require(ok, _OP, "num_beam_groups", f"a divisor of num_beams = {beams}", groups)
    ok = is_int(returned) and 1 <= returned <= beams
    require(ok, _OP, "num_return_sequences", f"an integer in [1, num_beams = {beams}]", returned)


def _check_scoring(groups: int, diversity_penalty: object, length_penalty: object, early_stopping: object) -> None:
    ok = is_finite(diversity_penalty) and diversity_penalty >= 0
    require(ok, _OP, "diversity_penalty", "a finite number >= 0", diversity_penalty)
    require(groups > 1 or diversity_penalty == 0, _OP, "diversity_penalty", "0 with one group", diversity_penalty)
    require(is_finite(length_penalty), _OP, "length_penalty", "a finite number", length_penalty)
    if not (isinstance(early_stopping, bool) or (isinstance(early_stopping, str) and early_stopping == "never")):
        refuse(_OP, "early_stopping", "True, False or 'never'", early_stopping)
