"""The layers of a checkpoint for next-token prediction: their cache, and the tokens that they draft."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from decodestep.decoding import grouped_layer, index_layer, latent_layer
from decodestep.decoding.decoder import TokenBatch
from decodestep.decoding.float32_layer import normalise, run_layer, scale
from decodestep.decoding.kv_cache import PAGE, LatentPages, float32_layout
from decodestep.decoding.layer_weights import GroupedWeights, LatentWeights, Weights
from decodestep.ops.linear import linear
from decodestep.ops.linear.cpu import gather_rows

_SPARE_PAGES = 512  # after those of the model's numbers: for the slots of drafted tokens
MOST_DRAFTED = _SPARE_PAGES * PAGE  # at a time


class SequenceEnd(NamedTuple):
    """Where a draft begins: after the last token of a text, which the model has not run.

    length: the number of tokens before it, which the model has run, >= 1. page_numbers: of their pages. states: those of the
    last of them.
    """

    length: int
    page_numbers: np.ndarray
    states: np.ndarray


class SharedSelection:
    """What the first drafts of sequences select, to which the drafts after them attend, and to the slots since
    (`IndexerConfig.drafts_share`).

    With these slots a token attends to itself, and to all positions where the first draft does, whatever the other sequences
    select.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._positions: np.ndarray | None = None  # by sequence; None: every one of them attends to all positions

    def choose(self, sequence: np.ndarray, positions: np.ndarray, select: Callable[[], np.ndarray | None]) -> np.ndarray | None:
        """The positions that the next draft of each sequence attends to, as a `Selector` returns them.

        positions: of the drafts. select: what the first of them selects.
        """
        if self._steps == 0 and (first := select()) is not None:
            self._positions = np.full((sequence.max() + 1, first.shape[1]), -1, first.dtype)
            self._positions[sequence] = first
        since = positions[:, None] - np.arange(self._steps)
        self._steps += 1
        return None if self._positions is None else np.concatenate([since, self._positions[sequence]], axis=1)


class NextTokenLayers:
    """K layers that read a token and a state of the token before it, and predict the token after both.

        x = concat(rms_norm(embedding of the token at s, embedding_norm), rms_norm(u, hidden_norm)) @ join
            u = the model's hidden state at s - 1, as its logits weight reads it; for k > 0 the output of depth k - 1 there
        x = the layer of x, its queries and keys rotated by s, over slots k + 1 to s of its own cache, of which its own indexer
            selects some where the model's layers have one
        output = rms_norm(x, norm);  logits of the token at s + 1 = output @ the model's logits weight

    A slot has the number of the position of the token that it embeds. Like the model's keys at s, slot s of every depth depends
    on tokens 0 to s alone, and lies under the same page number: pages are shared, copied and cut with the model's.

    States, (K, He), are what the depths read with the token that follows: the hidden state, and the outputs of all but the
    last. The feed of a sequence (`SlotFeed`) has those of the tokens that it filled last; a full page whose slots are filled
    has those of its last token.

    No logits of the model depend on any of this.

    count: K. page_layout: of the cache.
    """

    def __init__(self, weights: Weights) -> None:
        self.count = len(weights.next_tokens)
        self.config = config = weights.config
        self._layers, self._weights = weights.next_tokens, weights
        latents = [one.layer.mixer for one in self._layers if isinstance(one.layer.mixer, LatentWeights)]
        self._prologs = latent_layer.prolog_weights(latents, config) if latents else []
        indexer = None if config.latent_attention is None else config.latent_attention.indexer
        index = () if indexer is None else (self.count, indexer.head_dim)
        self.page_layout = float32_layout(self.count, config.latent_dim, config.rope_dim, index)
        self._spare = threading.Lock()

    def new_pages(self, count: int) -> LatentPages:
        """Storage for `count` pages, and spare ones."""
        return LatentPages(self.page_layout, count + _SPARE_PAGES)

    def fill(
        self,
        batch: TokenBatch,
        hidden: np.ndarray,
        before: Sequence[np.ndarray | None],
        again: Sequence[int],
        pages: LatentPages,
    ) -> np.ndarray:
        """Fills the slots of tokens that the model has run, the tokens of each sequence side by side.

        hidden: (T, He), their hidden states. before: for each sequence the states of the token before its first; None: not
        known, and taken for zeros. again: for each sequence, how many of the next tokens, K at most, follow ones whose states
        are not all known, and have slots in a page that was copied: of each depth, those whose u is not known stay as they are.

        Returns the states of every token, (T, K, He).
        """
        _, sequence, positions, page_table, *_ = batch
        unknown = np.zeros((self.count, self.config.hidden), np.float32)
        of_others = np.stack([unknown if states is None else states for states in before])
        first = np.flatnonzero(np.diff(sequence, prepend=-1))
        known = np.arange(len(sequence)) - first[sequence] + self.count - np.array(again)[sequence]  # depths whose u is known
        states = np.empty((len(hidden), self.count, self.config.hidden), np.float32)
        states[:, 0] = hidden
        embedded = self._embed(batch.tokens)
        for k in range(self.count):
            u = np.concatenate([unknown[:1], states[:-1, k]])
            u[first] = of_others[:, k]
            x, fills = self._join(k, embedded, u), known > k
            if k + 1 < self.count:
                states[:, k + 1] = self._output(k, x, sequence, positions, _slots_of(page_table), pages, fills)
            else:  # nothing reads its output
                own = page_table[sequence, positions // PAGE] * PAGE + positions % PAGE
                self._store(k, x[fills], positions[fills], own[fills], pages)
        return states

    @property
    def page_bytes(self) -> int:
        """The size of a page, with the states of its last token."""
        return self.page_layout.page_bytes + 4 * self.count * self.config.hidden

    @contextmanager
    def drafting(self, ends: Sequence[SequenceEnd], most: int, pages: LatentPages) -> Iterator[DraftPass]:
        """Context manager for drafts of up to `most` tokens after each of several sequences, of MOST_DRAFTED in all."""
        with self._spare:
            yield DraftPass(self, ends, most, pages)

    def step(
        self,
        first: int,
        sequence: np.ndarray,
        tokens: np.ndarray,
        positions: np.ndarray,
        states: np.ndarray,
        slots: np.ndarray,
        pages: LatentPages,
        shared: SharedSelection | None = None,
    ) -> np.ndarray:
        """The outputs of depths from `first` on at one slot of each of R sequences, (R, K, He); zeros before.

        sequence: their rows of `slots`. states: (R, K, He), of the tokens before. slots: (B, M), the places of slots from 0 on.
        shared: of the steps of one depth that draft one after another.
        """
        embedded, outputs = self._embed(tokens), np.zeros_like(states)
        for k in range(first, self.count):
            x = self._join(k, embedded, states[:, k])
            outputs[:, k] = self._output(k, x, sequence, positions, slots, pages, shared=shared)
        return outputs

    def _embed(self, tokens: np.ndarray) -> np.ndarray:
        return scale(gather_rows(self._weights.embedding, tokens), self.config.embedding_scale)

    def _join(self, k: int, embedded: np.ndarray, u: np.ndarray) -> np.ndarray:
        layer = self._layers[k]
        both = normalise(embedded, layer.embedding_norm, self.config), normalise(u, layer.hidden_norm, self.config)
        return linear(np.concatenate(both, axis=1), layer.join)

    def _store(self, k: int, x: np.ndarray, positions: np.ndarray, slots: np.ndarray, pages: LatentPages) -> None:
        """Fills slots of depth k, by their places, and computes nothing else of the layer."""
        h = normalise(x, self._layers[k].layer.attention_norm, self.config)
        cache, rope, weights = (pages.kv[k], pages.kr[k]), self._rope(positions), self._layers[k].layer.mixer
        assert isinstance(weights, GroupedWeights | LatentWeights)
        if isinstance(weights, GroupedWeights):
            grouped_layer.store(h, weights, self.config, cache, slots, rope, layer=self.config.layers + k)
        else:
            assert isinstance(weights, LatentWeights)
            latent_layer.store(h, weights, self.config, cache, slots, rope)
            if weights.indexer is not None:
                index_layer.write_keys(h, weights.indexer, pages.index[k], slots, rope)

    def _rope(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pairs = None if self.config.latent_attention else self.config.head_dim // 2
        return self._weights.ropes[0].table(positions, pairs=pairs)

    def _output(
        self,
        k: int,
        x: np.ndarray,
        sequence: np.ndarray,
        positions: np.ndarray,
        slots: np.ndarray,
        pages: LatentPages,
        fills: np.ndarray | None = None,
        shared: SharedSelection | None = None,
    ) -> np.ndarray:
        """Runs tokens through depth k; zeros for those before its first slot.

        slots: (B, M), the places of slots 0 to M - 1 of each sequence. fills: which tokens fill their slots; None: all.
        """
        out, ran = np.zeros_like(x), positions > k
        if not ran.any():
            return out
        x, sequence, positions = x[ran], sequence[ran], positions[ran]
        # In blocks of one slot, so that a sequence may begin anywhere in its first page, and end in spare ones.
        kv, kr = (part[k].reshape(-1, 1, 1, part.shape[-1]) for part in (pages.kv, pages.kr))
        batch = TokenBatch(positions, sequence, positions - (k + 1), slots[:, k + 1 :], positions)
        rope, own, weights = self._rope(positions), slots[sequence, positions], self._layers[k].layer.mixer
        own = own if fills is None else np.where(fills[ran], own, -1)

        def attend(h: np.ndarray) -> np.ndarray:
            if isinstance(weights, GroupedWeights):
                layer = self.config.layers + k
                return grouped_layer.attend(h, weights, self.config, (kv, kr), batch, own, (rope, rope), layer=layer)
            assert isinstance(weights, LatentWeights)
            chosen, select = None, index_layer.selector(self.config, batch, own)
            if select is not None:
                keys = pages.index[k].reshape(-1, 1, 1, pages.index.shape[-1])
                of_token = partial(select, h, weights, keys, rope)
                chosen = of_token() if shared is None else shared.choose(sequence, batch.positions, of_token)
            return latent_layer.attend(h, self._prologs[k], (kv, kr), batch, own, rope, scale=self.config.scale, chosen=chosen)

        run_layer(x, self._layers[k].layer, self.config, attend)
        out[ran] = normalise(x, self._layers[k].norm, self.config)
        return out

    def logits(self, outputs: np.ndarray) -> np.ndarray:
        """Of outputs (R, He), (R, V)."""
        return linear(scale(outputs, 1 / self.config.logits_divisor), self._weights.output)


class DraftPass:
    """Drafts that are being made. Depth k gives token k + 1, so that K layers draft K tokens at most; a single one reads its
    own outputs, and goes on.

    The tokens of drafts have slots in spare pages: nothing is left of them.
    """

    def __init__(self, layers: NextTokenLayers, ends: Sequence[SequenceEnd], most: int, pages: LatentPages) -> None:
        assert len(ends) * most <= MOST_DRAFTED
        self._layers, self._pages = layers, pages
        self._states = np.stack([end.states for end in ends])
        self._lengths = np.array([end.length for end in ends])
        self._drafted = 0
        latent = layers.config.latent_attention
        indexer = None if latent is None or layers.count > 1 else latent.indexer
        self._shared = SharedSelection() if indexer is not None and indexer.drafts_share else None
        self._slots = np.zeros((len(ends), max(self._lengths) + most), np.int64)
        spare = pages.count * PAGE - MOST_DRAFTED
        for i, end in enumerate(ends):
            self._slots[i, : end.length] = _slots_of(end.page_numbers[None])[0, : end.length]
            self._slots[i, end.length : end.length + most] = np.arange(spare + i * most, spare + (i + 1) * most)

    def logits(self, tokens: Mapping[int, int]) -> np.ndarray:
        """The logits of the next token of some of the sequences, by their index, (len(tokens), V).

        tokens: their last token, or the draft after it, in the order of their indices. All of them were in the last call, if
        there was one.
        """
        layers, rows = self._layers, np.array(list(tokens))
        depth = 0 if layers.count == 1 else self._drafted
        positions = self._lengths[rows] + self._drafted
        ids = np.array(list(tokens.values()))
        outputs = layers.step(depth, rows, ids, positions, self._states[rows], self._slots, self._pages, self._shared)
        self._states[rows] = outputs if layers.count == 1 else np.roll(outputs, 1, axis=1)
        self._drafted += 1
        return layers.logits(outputs[:, depth])


def _slots_of(page_table: np.ndarray) -> np.ndarray:
    """The place of each slot of a table's sequences."""
    return (page_table[:, :, None] * PAGE + np.arange(PAGE)).reshape(len(page_table), -1)
