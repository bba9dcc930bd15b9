"""The interface of decoders: run tokens of several sequences, append them to the cache's pages, return logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decodestep.decoding.config import Config
from decodestep.decoding.fingerprint import fingerprint
from decodestep.decoding.kv_cache import PageLayout, Pages, PairedPages
from decodestep.decoding.states import StateLayout, state_layout

if TYPE_CHECKING:
    from decodestep.decoding.next_tokens import NextTokenLayers


class TokenBatch(NamedTuple):
    """T tokens of any sequences. Those at earlier positions of a sequence must be in its pages, or earlier in the batch.

    tokens, sequence, positions: int64 (T,). Token t is tokens[t], at positions[t] of sequence[t].
    page_table: int64 (B, M); page_table[b, p // 16] holds position p of sequence b.
    wanted: int64, which of the T tokens to return logits of; may be empty.
    long: bool (T,), which tokens have the rope of the long frequencies, the same for all of a sequence; None: none.
    slots, into: int64 (B,), the rows of `Pages.states` that a sequence's first token in the batch reads, and that its last one
    leaves behind; the same, or a row that no other sequence reads. None for models without recurrent states.
    kept, kept_rows: float32 (K, replay_width), written, and int64 (T,): the row of it that receives what `replay` reads of a
    token, or -1. None: of no token.
    """

    tokens: np.ndarray
    sequence: np.ndarray
    positions: np.ndarray
    page_table: np.ndarray
    wanted: np.ndarray
    long: np.ndarray | None = None
    slots: np.ndarray | None = None
    into: np.ndarray | None = None
    kept: np.ndarray | None = None
    kept_rows: np.ndarray | None = None


class Decoder(ABC):
    """Runs a model's layers on a paged cache. A token's logits depend only on its own sequence, to the bit.

    config: the model's sizes. description: how the model is run, as text. page_layout: of the cache's pages.
    cache_dtype: the type of what the cache holds: of latents without their rope keys. long_after: `Rope.long_after`.
    values: all that logits and the cache follow from beside the config: arrays and plain values, in tuples and dataclasses.
    next_tokens: the checkpoint's layers for next-token prediction; None without. replay_width: the values that `replay` reads
    of a token; 0: none are kept, and tokens whose states are missing run again.
    """

    config: Config
    description: str
    page_layout: PageLayout
    cache_dtype: str
    long_after: int | None
    values: object
    next_tokens: NextTokenLayers | None = None
    replay_width: int = 0

    @cached_property
    def state_layout(self) -> StateLayout | None:
        """Of the rows of recurrent states; None for a model that has only attention."""
        return state_layout(self.config)

    @cached_property
    def fingerprint(self) -> str:
        """Another one for other `values`. Reads all of them once, as a step of a dense model does."""
        return fingerprint(self.values)

    @abstractmethod
    def new_pages(self, count: int) -> Pages:
        """Storage for `count` pages."""

    @property
    def page_bytes(self) -> int:
        """With its part of the cache of `next_tokens`."""
        return self.page_layout.page_bytes + (0 if self.next_tokens is None else self.next_tokens.page_bytes)

    def new_storage(self, count: int, rows: int = 0) -> Pages:
        """Storage for `count` pages, with that of `next_tokens`. rows: how many rows of states, where the model has them."""
        pages = self.new_pages(count)
        if self.state_layout is not None:
            pages.states = self.state_layout.new_rows(rows)
        return pages if self.next_tokens is None else PairedPages(pages, self.next_tokens.new_pages(pages.count))

    @abstractmethod
    def logits(self, batch: TokenBatch, pages: Pages, hidden: np.ndarray | None = None) -> np.ndarray:
        """Runs T tokens and writes their keys and values to the pages; returns float32 logits (len(wanted), V).

        hidden: float32 (T, He), written if it is given: the hidden states of all tokens after the last norm.
        """

    def replay(self, kept: Sequence[np.ndarray], states: np.ndarray, slots: np.ndarray, into: np.ndarray) -> None:
        """Brings recurrent states forward by tokens that have run before, to the bits that `logits` would leave.

        kept: of each sequence what was kept of its tokens, (tokens, replay_width). states: of all rows. slots, into: int64, the
        rows that are read and written, as in `TokenBatch`.
        """
        raise NotImplementedError
