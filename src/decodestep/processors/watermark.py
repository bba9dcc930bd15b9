"""The green-list watermark: a bias towards a pseudo-random part of the vocabulary, and its detector.

The green lists come from torch's generator, so that text marked by transformers is recognised here and vice versa; torch is
imported when a processor is built.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import device as device_of

from decodestep._base.array_api import copy, namespace, narrow, quiet, widen
from decodestep._base.arrays import Array, ArrayT, Integers
from decodestep._base.checks import Phrase, refuse, require, require_choice
from decodestep.processors.base import LogitsProcessor

if TYPE_CHECKING:
    from transformers import PretrainedConfig, WatermarkingConfig

_TABLE_SIZE = 1_000_003
_CANDIDATES = 40  # how many of the best tokens "selfhash" tries on each row


class WatermarkLogitsProcessor(LogitsProcessor):
    """Adds a bias to a pseudo-random part of the vocabulary, chosen by the last ids.

        g = int(vocab_size * greenlist_ratio);  green(ids) = randperm(vocab_size, seed(ids) mod (2^64 - 1))[:g]
        lefthash:  seed(ids) = hashing_key * ids[-1];           s[t] += bias for t in green(input_ids)
        selfhash:  seed(ids) = min over the last context_width ids i of hashing_key * f(i) * f(ids[-1]), in wrapping int64,
                   f(i) = table[i mod 1000003] + 1, table = randperm(1000003, seed hashing_key)
                   s[t] += bias for each t of the 40 highest scores that is in green(input_ids + [t])

    A shorter input logs a warning and leaves the scores unchanged. Of tied scores, "selfhash" tries the lowest ids.

    Args:
        vocab_size: of the model.
        device: of torch's generator and of the tables.
        greenlist_ratio: in (0, 1).
        bias: added to green tokens.
        hashing_key: the secret.
        seeding_scheme: "lefthash" or "selfhash".
        context_width: how many of the last ids select the green list.

    Source:
        Kirchenbauer et al., "A watermark for large language models", 2023, and "On the reliability of watermarks for
        large language models", 2023. As in transformers 5.23, where "selfhash" raises for a vocabulary of fewer than 40 tokens
        and for a row without a green token among the 40: here such a row stays as it is.
    """

    def __init__(
        self,
        vocab_size: int,
        device: object,
        greenlist_ratio: float = 0.25,
        bias: float = 2.0,
        hashing_key: int = 15485863,
        seeding_scheme: str = "lefthash",
        context_width: int = 1,
    ) -> None:
        import torch

        require_choice("WatermarkLogitsProcessor", "seeding_scheme", seeding_scheme, ("selfhash", "lefthash"))
        require(0 < greenlist_ratio < 1, "WatermarkLogitsProcessor", "greenlist_ratio", "in (0, 1)", greenlist_ratio)
        self.vocab_size = vocab_size
        self.greenlist_size = int(self.vocab_size * greenlist_ratio)
        self.bias = bias
        self.seeding_scheme = seeding_scheme
        self.hash_key = hashing_key
        self.context_width = context_width
        self.rng = torch.Generator(device=device)
        self.rng.manual_seed(hashing_key)
        self.table_size = _TABLE_SIZE
        self.fixed_table = torch.randperm(self.table_size, generator=self.rng, device=device)

    def set_seed(self, input_seq: Integers) -> None:
        """Seeds the generator from the last ids of one row."""
        last = [int(i) for i in input_seq[-self.context_width :]]
        seed = self.hash_key * last[-1]
        if self.seeding_scheme == "selfhash":
            table = self.fixed_table[[i % self.table_size for i in last]] + 1
            seed = int((self.hash_key * table * table[-1]).min())
        self.rng.manual_seed(seed % (2**64 - 1))

    def _get_greenlist_ids(self, input_seq: Integers) -> Array:
        import torch

        self.set_seed(input_seq)
        return torch.randperm(self.vocab_size, device=self.rng.device, generator=self.rng)[: self.greenlist_size]

    def _self_green(self, ids: list[int], scores: Array) -> list[int]:
        """Those of the best tokens that are on the green list that they select themselves."""
        xp = namespace(scores)
        best = xp.argsort(-scores, axis=-1, stable=True)[:_CANDIDATES].tolist()
        return [token for token in best if bool((self._get_greenlist_ids([*ids, token]) == token).any())]

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        if input_ids.shape[-1] < self.context_width:
            rule = "WatermarkLogitsProcessor: input_ids must be at least context_width = %d long; got %d, left unmarked"
            logging.getLogger(__name__).warning(rule, self.context_width, input_ids.shape[-1])
            return scores
        xp = namespace(scores)
        result = copy(xp, scores)
        for row, ids in enumerate(input_ids[:, -self.context_width :].tolist()):
            green = self._self_green(ids, scores[row]) if self.seeding_scheme == "selfhash" else self._get_greenlist_ids(ids)
            green = xp.asarray(green, dtype=xp.int64, device=device_of(scores))
            with quiet():
                raised = widen(xp, result[row, green]) + float(self.bias)
            result[row, green] = narrow(xp, raised, scores)
        return result


@dataclass
class WatermarkDetectorOutput:
    """The result of a detector. Each field is an array with one entry for each text."""

    num_tokens_scored: np.ndarray | None = None
    num_green_tokens: np.ndarray | None = None
    green_fraction: np.ndarray | None = None
    z_score: np.ndarray | None = None
    p_value: np.ndarray | None = None
    prediction: np.ndarray | None = None
    confidence: np.ndarray | None = None


class WatermarkDetector:
    """Detects text with the green-list watermark.

        n tokens scored, g of them green, r = greenlist_ratio:  z = (g - r n) / sqrt(n r (1 - r));  marked: z > z_threshold
        p_value = erfc(z / sqrt(2)) / 2;   confidence = 1 - p_value

    Called with input_ids [batch, length] and z_threshold; returns the [batch] decisions, or with return_dict a
    WatermarkDetectorOutput. A leading bos token is left out of the score; ValueError where only some rows have one, or where
    fewer than context_width + 1 ids remain.

    Args:
        model_config: the model's configuration: vocab_size, bos_token_id, is_encoder_decoder, decoder_start_token_id.
        device: as in WatermarkLogitsProcessor.
        watermarking_config: what the text was generated with: a dict of WatermarkLogitsProcessor's arguments, or an object with
            `to_dict`.
        ignore_repeated_ngrams: whether an n-gram counts once however often it occurs.
        max_cache_size: how many n-grams are remembered between calls.

    Source:
        Kirchenbauer et al., 2023. As in transformers 5.23, but there the memory of n-grams never hits.
    """

    def __init__(
        self,
        model_config: PretrainedConfig,
        device: object,
        watermarking_config: WatermarkingConfig | dict[str, Any],
        ignore_repeated_ngrams: bool = False,
        max_cache_size: int = 128,
    ) -> None:
        config = watermarking_config if isinstance(watermarking_config, dict) else watermarking_config.to_dict()
        start = "decoder_start_token_id" if model_config.is_encoder_decoder else "bos_token_id"
        self.bos_token_id = getattr(model_config, start)
        self.greenlist_ratio = config["greenlist_ratio"]
        self.ignore_repeated_ngrams = ignore_repeated_ngrams
        self.processor = WatermarkLogitsProcessor(vocab_size=model_config.vocab_size, device=device, **config)
        self._is_green = lru_cache(maxsize=max_cache_size)(self._score)

    def _score(self, ngram: tuple[int, ...]) -> bool:
        prefix = ngram if self.processor.seeding_scheme == "selfhash" else ngram[:-1]
        return bool((self.processor._get_greenlist_ids(prefix) == ngram[-1]).any())

    def _counts(self, ids: list[int]) -> tuple[int, int]:
        n = self.processor.context_width + (self.processor.seeding_scheme == "lefthash")
        found = Counter(tuple(ids[i : i + n]) for i in range(len(ids) - n + 1))
        weight = {ngram: 1 if self.ignore_repeated_ngrams else count for ngram, count in found.items()}
        return sum(weight.values()), sum(count for ngram, count in weight.items() if self._is_green(ngram))

    def __call__(self, input_ids: Array, z_threshold: float = 3.0, return_dict: bool = False) -> Any:
        rows = input_ids.tolist()
        starts = [row[:1] == [self.bos_token_id] for row in rows]
        if any(starts) and not all(starts):
            rule = "with a leading bos token in every row or in none"
            refuse("WatermarkDetector", "input_ids", rule, Phrase(f"{sum(starts)} rows with one"))
        rows = [row[1:] for row in rows] if any(starts) else rows
        width, length = self.processor.context_width, input_ids.shape[1] - any(starts)
        require(length > width, "WatermarkDetector", "input_ids", f"longer than context_width = {width}", length)
        scored, green = np.array([self._counts(row) for row in rows], np.float64).reshape(-1, 2).T
        r = self.greenlist_ratio
        z = (green - r * scored) / np.sqrt(scored * r * (1 - r))
        prediction = z > z_threshold
        if not return_dict:
            return prediction
        p_value = np.array([0.5 * math.erfc(v / math.sqrt(2)) for v in z])
        return WatermarkDetectorOutput(scored, green, green / scored, z, p_value, prediction, 1 - p_value)
