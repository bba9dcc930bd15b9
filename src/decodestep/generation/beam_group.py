"""The beams of one group: their candidates at each step, which stay alive, which are collected, and when the group ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from decodestep._base.array_api import quiet
from decodestep.ops.decode_step import TokenLogprobs
from decodestep.random import gumbel


@dataclass(frozen=True)
class Beam:
    """One continuation.

    Attributes:
        token_ids: what follows the prompt, an end token included.
        score: the sum of its processed log-probabilities over len(token_ids) ** length_penalty.
        finished: True if an end token or `stop` ended it, False if max_new_tokens cut it.
        logprobs: a `TokenLogprobs` for each of token_ids; None without top_logprobs.
    """

    token_ids: list[int]
    score: float
    finished: bool
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True)
class BeamRules:
    """The parameters shared by all groups of a search: the checked arguments of `beam_search`."""

    size: int  # beams of a group
    candidates: int  # how many are looked at in each step
    end_token_ids: frozenset[int]
    stop: Callable[[list[int]], bool] | None
    max_new_tokens: int
    length_penalty: float
    early_stopping: bool | str
    diverse: bool  # there are several groups
    seed: int | None  # None: candidates are not drawn

    def score(self, total: float, length: int) -> float:
        with quiet():  # length ** length_penalty may overflow: the score is then the limit, 0 or -inf
            return float(np.float64(total) / np.float64(length) ** self.length_penalty) if total else 0.0


@dataclass(frozen=True)
class Path:
    """A beam during the search, or a candidate for one."""

    tokens: list[int]  # generated
    total: float  # the sum of their log-probabilities
    parent: int  # the row of the logits that the last token came from
    ended: bool = False
    logprobs: tuple[TokenLogprobs, ...] = ()


Report = Callable[[int, int], TokenLogprobs]  # (beam, token) -> the log-probabilities to report


@dataclass
class BeamGroup:
    """One group. live: the live beams. rows: their rows in the next logits. collected: the ended beams, best first."""

    rules: BeamRules
    live: list[Path] = field(default_factory=lambda: [Path([], 0.0, 0)])
    rows: list[int] = field(default_factory=lambda: [0])
    collected: list[Beam] = field(default_factory=list)

    def advance(self, log_probs: np.ndarray, length: int, position: int, report: Report | None) -> list[int]:
        """One step: collects candidates that end, and makes the best of the others the live beams.

        log_probs: (live beams, V), processed. length: generated tokens, this step's included. position: of the draw's noise.
        Returns the tokens that the best candidates that do not end have taken.
        """
        rules = self.rules
        candidates = self._candidates(log_probs, position, report)
        going_on = sorted((path for path in candidates if not path.ended), key=lambda path: -path.total)[: rules.size]
        # As in transformers: the best live beam decides; with groups (4.41) the best candidate, ended or not.
        contenders = candidates if rules.diverse else going_on
        last_step = length == rules.max_new_tokens
        if last_step and not rules.diverse:
            self._collect(candidates[: rules.size], length)
        else:
            self._collect([path for path in candidates[: rules.size] if path.ended], length)
            if last_step and not self._is_complete(contenders, length):
                self._collect(going_on, length)
        complete = last_step or self._is_complete(contenders, length)
        self.live = [] if complete else going_on
        return [path.tokens[-1] for path in going_on]

    def cut(self, length: int) -> None:
        """Ends the group before its next step: collects its live beams, of `length` tokens each, unfinished."""
        if length:
            self._collect(self.live, length)
        self.live = []

    def _candidates(self, log_probs: np.ndarray, position: int, report: Report | None) -> list[Path]:
        """The best continuations of the live beams by one token, best first; with a seed, in the order drawn."""
        rules, vocab = self.rules, log_probs.shape[-1]
        totals = (np.array([path.total for path in self.live])[:, None] + log_probs).ravel()
        totals[np.isnan(totals)] = -np.inf
        keys = totals if rules.seed is None else totals + gumbel(rules.seed, position, np.arange(totals.size))
        found = []
        for index in highest(keys, rules.candidates):
            beam, token = divmod(int(index), vocab)
            parent = self.live[beam]
            tokens = [*parent.tokens, token]
            ended = token in rules.end_token_ids or (rules.stop is not None and rules.stop(tokens))
            logprobs = (*parent.logprobs, report(beam, token)) if report else ()
            found.append(Path(tokens, float(totals[index]), self.rows[beam], ended, logprobs))
        return found

    def _collect(self, paths: list[Path], length: int) -> None:
        """Adds beams to the collection, which keeps the best `size`."""
        new = [
            Beam(path.tokens, self.rules.score(path.total, length), path.ended, list(path.logprobs) or None) for path in paths
        ]
        self.collected = sorted(self.collected + new, key=lambda beam: -beam.score)[: self.rules.size]

    def _is_complete(self, contenders: list[Path], length: int) -> bool:
        """Whether the search of this group ends. contenders: what could still improve the collection, best first."""
        rules = self.rules
        if not contenders:
            return True
        if len(self.collected) < rules.size:
            return False
        if rules.early_stopping is True:
            return True
        # Totals are negative: with a positive length_penalty the score of a given total rises with the length.
        at_best = rules.max_new_tokens if rules.early_stopping == "never" and rules.length_penalty > 0 else length
        return rules.score(contenders[0].total, at_best) <= self.collected[-1].score


def highest(keys: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` highest keys above -inf, highest first; among equals the lowest index first."""
    least = np.partition(keys, keys.size - count)[keys.size - count] if 0 < count < keys.size else -np.inf
    inside = np.flatnonzero((keys >= least) & (keys > -np.inf))
    return inside[np.argsort(-keys[inside], kind="stable")][:count]
