"""SynthID-Text: a watermark that biases each draw by keyed coin flips, and its detector.

The table of coin flips comes from torch's generator, so that text marked by transformers is recognised here and vice versa;
torch is imported when a processor is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from array_api_compat import device as device_of

from decodestep._base.array_api import Namespace, constant, largest, namespace, quiet, softmax, total
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import require
from decodestep.processors.base import LogitsProcessor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MULTIPLIER, _INCREMENT = 6364136223846793005, 1


@dataclass
class SynthIDTextWatermarkState:
    """The last ids of each row, the hashes of the contexts before them, newest first, and the number of calls."""

    context: Array
    context_history: Array
    num_calls: int = 0


class SynthIDTextWatermarkLogitsProcessor(LogitsProcessor):
    """Biases the distribution by a tournament of keyed coin flips, g(ngram, key) in {0, 1}.

        p = softmax(s);  for each key k, in order:  p[t] = p[t] * (1 + g[t, k] - sum(g[:, k] * p))
        result = log p, the dtype's lowest finite number where that is not finite;  s itself where the context repeats
        g[t, k] = table[hash(hash(context + [t]), k) mod sampling_table_size]
        hash(h, x) = (h + x) * 6364136223846793005 + 1 in wrapping int64, from h = 1

    Keeps state: one object serves one generation, and each call adds the newest id of each row.

    Args:
        ngram_len: the context is the last ngram_len - 1 generated ids, zeros before the first.
        keys: the secret, one integer for each layer of the tournament.
        sampling_table_size: of the table of coin flips.
        sampling_table_seed: of the same table.
        context_history_size: how many contexts are remembered; tokens after a remembered context get no watermark.
        device: of torch's generator.
        skip_first_ngram_calls: whether the first ngram_len - 1 calls return the scores unchanged.
        debug_mode: whether every score counts as 1.

    Raises:
        ValueError: if input_ids is not of rank 2.

    Source:
        Dathathri et al., "Scalable watermarking for identifying large language model outputs", 2024; as in
        transformers 5.23.
    """

    stateful = True

    def __init__(
        self,
        ngram_len: int,
        keys: list[int],
        sampling_table_size: int,
        sampling_table_seed: int,
        context_history_size: int,
        device: object,
        skip_first_ngram_calls: bool = False,
        debug_mode: bool = False,
    ) -> None:
        import torch

        self.ngram_len = ngram_len
        self.keys = torch.tensor(keys, device=device)
        generator = torch.Generator(device=device).manual_seed(sampling_table_seed)
        self.sampling_table = torch.randint(0, 2, (sampling_table_size,), generator=generator, device=device)
        self.context_history_size = context_history_size
        self.device = device
        self.state: SynthIDTextWatermarkState | None = None
        self.skip_first_ngram_calls = skip_first_ngram_calls
        self.debug_mode = debug_mode

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        _require_rank_2(input_ids)
        xp = namespace(scores)
        scores = xp.ones_like(scores) if self.debug_mode else scores
        if self.state is None:
            self.state = self._fresh(xp, scores, scores.shape[0])
        else:
            newest = xp.astype(input_ids[:, -1:], xp.int64)
            self.state.context = xp.concat([self.state.context, newest], axis=1)[:, 1:]
        self.state.num_calls += 1
        if self.skip_first_ngram_calls and self.state.num_calls < self.ngram_len:
            return scores
        context = self.accumulate_hash(self._ones(xp, self.state.context, scores.shape[0]), self.state.context)
        tilted = xp.concat([self._tilted(scores[i : i + 1], context[i : i + 1]) for i in range(scores.shape[0])], axis=0)
        return xp.where(self._remember(xp, self.state, context[:, None]), scores, tilted)

    def _tilted(self, scores: ArrayT, context: Array) -> ArrayT:
        """The tournament of one row, among the tokens that are left: after top_k these are few, and each costs a hash a key."""
        xp, (_, vocab) = namespace(scores), scores.shape
        left = xp.nonzero(scores[0, :] != -math.inf)[0]
        some = left if 0 < left.shape[0] < vocab else xp.arange(vocab, dtype=xp.int64, device=device_of(scores))
        keys = self._hash_with_keys(xp, self.accumulate_hash(context[:, None], xp.astype(some, xp.int64)[None, :, None]))
        tilted = self.update_scores(xp.take(scores, some, axis=1), self.sample_g_values(keys))
        if some.shape[0] == vocab:
            return tilted
        whole = xp.full_like(scores, -largest(xp, scores))
        whole[:, some] = tilted
        return whole

    def update_scores(self, scores: ArrayT, g_values: Array) -> ArrayT:
        """The tournament: scores [batch, vocab] and coin flips [batch, vocab, keys] to log-probabilities."""
        xp = namespace(scores)
        p = softmax(xp, scores)
        for layer in range(g_values.shape[-1]):
            g = xp.astype(g_values[..., layer], p.dtype)
            p = p * (1 + g - total(xp, g * p))
        with quiet():
            log_p = xp.log(p)
        return xp.where(xp.isfinite(log_p), log_p, constant(xp, -largest(xp, log_p), log_p))

    def accumulate_hash(
        self, current_hash: Array, data: Array, multiplier: int = _MULTIPLIER, increment: int = _INCREMENT
    ) -> Array:
        """Adds the elements of the last axis of `data` to the hash, one after another, in wrapping int64."""
        for i in range(data.shape[-1]):
            current_hash = (current_hash + data[..., i]) * multiplier + increment
        return current_hash

    def sample_g_values(self, ngram_keys: Array) -> Array:
        """The coin flips of hashed n-grams, in the same shape."""
        xp = namespace(ngram_keys)
        table = xp.asarray(self.sampling_table, device=device_of(ngram_keys))
        return table[ngram_keys % table.shape[0]]

    def compute_ngram_keys(self, ngrams: Array) -> Array:
        """The hashes [batch, count, keys] of n-grams [batch, count, ngram_len]."""
        ok = len(ngrams.shape) == 3 and ngrams.shape[2] == self.ngram_len
        require(ok, "SynthIDTextWatermarkLogitsProcessor", "ngrams", f"of shape (batch, count, {self.ngram_len})", ngrams)
        xp = namespace(ngrams)
        return self._hash_with_keys(xp, self.accumulate_hash(self._ones(xp, ngrams, ngrams.shape[0])[:, None], ngrams))

    def compute_g_values(self, input_ids: Array) -> Array:
        """The coin flips [batch, length - ngram_len + 1, keys] of every n-gram of a text."""
        _require_rank_2(input_ids)
        return self.sample_g_values(self.compute_ngram_keys(_windows(namespace(input_ids), input_ids, self.ngram_len)))

    def compute_context_repetition_mask(self, input_ids: Array) -> Array:
        """[batch, length - ngram_len + 1]: whether the context of each n-gram is not among the remembered ones."""
        _require_rank_2(input_ids)
        xp, batch, here = namespace(input_ids), input_ids.shape[0], device_of(input_ids)
        state = self._fresh(xp, input_ids, batch)
        contexts = _windows(xp, input_ids[:, :-1], self.ngram_len - 1)
        hashes = self.accumulate_hash(xp.ones(contexts.shape[:2], dtype=xp.int64, device=here), contexts)
        repeated = [self._remember(xp, state, hashes[:, i : i + 1]) for i in range(hashes.shape[1])]
        return ~xp.concat(repeated, axis=1) if repeated else xp.zeros((batch, 0), dtype=xp.bool, device=here)

    def compute_eos_token_mask(self, input_ids: Array, eos_token_id: int) -> Array:
        """[batch, length]: whether a position lies before the first eos of its row."""
        _require_rank_2(input_ids)
        xp = namespace(input_ids)
        return xp.cumulative_sum(xp.astype(input_ids == eos_token_id, xp.int64), axis=1) == 0

    def expected_mean_g_value(self, vocab_size: int, coinflip_prob: float = 0.5) -> float:
        """The mean coin flip of watermarked text drawn from a uniform distribution with one layer."""
        return coinflip_prob + coinflip_prob * (1 - coinflip_prob) * (1 - 1 / vocab_size)

    def _hash_with_keys(self, xp: Namespace, hashes: Array) -> Array:
        keys = xp.astype(xp.asarray(self.keys, device=device_of(hashes)), xp.int64)
        return self.accumulate_hash(hashes[..., None], keys[:, None])

    def _ones(self, xp: Namespace, like: Array, batch: int) -> Array:
        return xp.ones((batch,), dtype=xp.int64, device=device_of(like))

    def _fresh(self, xp: Namespace, like: Array, batch: int) -> SynthIDTextWatermarkState:
        sizes = (self.ngram_len - 1, self.context_history_size)
        return SynthIDTextWatermarkState(*(xp.zeros((batch, n), dtype=xp.int64, device=device_of(like)) for n in sizes))

    def _remember(self, xp: Namespace, state: SynthIDTextWatermarkState, context: Array) -> Array:
        """Whether each row's context, [batch, 1], is among the remembered ones; it becomes the newest of them."""
        known = xp.any(state.context_history == context, axis=1, keepdims=True)
        state.context_history = xp.concat([context, state.context_history], axis=1)[:, :-1]
        return known


class SynthIDTextWatermarkDetector:
    """Scores tokenised text with a trained detector.

        detector_module(g values, mask): the coin flips of every n-gram, and whether they count: only before the first eos, and
        only if the context is not a remembered one

    Called with input_ids [batch, length]; returns what detector_module returns.

    Args:
        detector_module: called with [batch, count, keys] coin flips and the [batch, count] mask; a `BayesianDetector`, or
            transformers' BayesianDetectorModel.
        logits_processor: a SynthIDTextWatermarkLogitsProcessor with the settings that the text was generated with.
        tokenizer: an object with the `eos_token_id` of the text.

    Source:
        Dathathri et al., 2024; as in transformers 5.23.
    """

    def __init__(
        self,
        detector_module: Callable[[Array, Array], Array],
        logits_processor: SynthIDTextWatermarkLogitsProcessor,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self.detector_module = detector_module
        self.logits_processor = logits_processor
        self.tokenizer = tokenizer

    def __call__(self, tokenized_outputs: Array) -> Array:
        processor = self.logits_processor
        before_eos = processor.compute_eos_token_mask(tokenized_outputs, self.tokenizer.eos_token_id)
        fresh = processor.compute_context_repetition_mask(tokenized_outputs)
        mask = fresh & before_eos[:, processor.ngram_len - 1 :]
        return self.detector_module(processor.compute_g_values(tokenized_outputs), mask)


class BayesianDetector:
    """The posterior probability that text is watermarked, from trained parameters; it does not train.

        q[l] = sigmoid(beta[l] + sum(delta[l, j] * g[j] for j < l));  likelihood[l] = ((g[l] + 0.5) * q[l] + 1 - q[l]) / 2
        posterior = sigmoid(log(prior / (1 - prior)) + sum over counted n-grams and layers l of log(2 * likelihood[l]))

    Args:
        beta: the `keys` biases.
        delta: [keys, keys].
        prior: of watermarked text; taken within [1e-5, 1 - 1e-5].

    Source:
        Dathathri et al., 2024; the inference of transformers 5.23's BayesianDetectorModel, also for a batch or a text
        of one.
    """

    def __init__(self, beta: Array, delta: Array, prior: float = 0.5) -> None:
        self.beta = beta.reshape(-1)
        self.delta = delta.reshape(self.beta.shape[0], -1)
        self.prior = min(max(float(prior.reshape(-1)[0] if hasattr(prior, "reshape") else prior), 1e-5), 1 - 1e-5)

    def __call__(self, g_values: Array, mask: Array) -> Array:
        """[batch] posteriors of coin flips [batch, count, keys] where `mask` [batch, count] holds."""
        xp = namespace(g_values)
        beta, delta = (xp.asarray(w, device=device_of(g_values)) for w in (self.beta, self.delta))
        g = xp.astype(g_values, beta.dtype)
        counted = xp.astype(mask, g.dtype)[..., None]
        with quiet():
            q = 1 / (1 + xp.exp(-(g @ xp.tril(delta, k=-1).T + beta)))
            likelihood = ((g + 0.5) * q + (1 - q)) / 2
            evidence = xp.log(xp.where(likelihood < 1e-30, constant(xp, 1e-30, g), likelihood) * 2)
            odds = math.log(self.prior / (1 - self.prior)) + xp.sum(evidence * counted, axis=(1, 2))
            return 1 / (1 + xp.exp(-odds))


def _require_rank_2(input_ids: Array) -> None:
    require(len(input_ids.shape) == 2, "SynthIDTextWatermarkLogitsProcessor", "input_ids", "of rank 2", input_ids)


def _windows(xp: Namespace, ids: Array, n: int) -> Array:
    """The n-grams of each row: [batch, length - n + 1, n]."""
    here = device_of(ids)
    starts = xp.arange(max(ids.shape[1] - n + 1, 0), device=here)
    return xp.astype(ids, xp.int64)[:, starts[:, None] + xp.arange(n, device=here)[None, :]]
