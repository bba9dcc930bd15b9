"""forward: runs new tokens of any sequences through the model together and caches their keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from decodestep._base.checks import Phrase, ids_below, refuse, require
from decodestep.decoding.decoder import Decoder, TokenBatch
from decodestep.decoding.kv_cache import PairedPages
from decodestep.decoding.page_pool import LOCK, PagePool
from decodestep.decoding.sequence import CachedSequence

_OP = "forward"
_PAIRS = "of pairs of a sequence and its new token ids"
BLOCK = 512  # tokens of one pass: enough to share the reading of a weight, few enough to need little memory

Batch = list[tuple[CachedSequence, list[int]]]


def forward(
    decoder: Decoder,
    pool: PagePool,
    batch: Iterable[tuple[CachedSequence, Sequence[int] | np.ndarray]],
    *,
    every: bool | Sequence[bool],
    wanted: Sequence[bool] | None = None,
) -> np.ndarray:
    """See `Model.forward`."""
    require(isinstance(batch, Iterable), _OP, "batch", _PAIRS, batch)
    checked = [_check(decoder, pool, pair) for pair in batch]
    twice = len(checked) - len({id(sequence) for sequence, _ in checked})
    require(not twice, _OP, "batch", "of different sequences", Phrase(f"one sequence {twice + 1} times"))
    several = isinstance(every, Iterable)
    require(wanted is None or several or not every, _OP, "wanted", "None with `every`", wanted)
    whole = _flags("every", every, len(checked)) if several else [bool(every)] * len(checked)
    asked = [True] * len(checked) if wanted is None else _flags("wanted", wanted, len(checked))
    with _running(pool, checked):
        blocks = [_run(decoder, pool, block, np.array(last, np.int64)) for block, last in _blocks(checked, whole, asked)]
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks or [np.zeros((0, decoder.config.vocab_size), np.float32)])


def _check(decoder: Decoder, pool: PagePool, pair: object) -> tuple[CachedSequence, list[int]]:
    vocab, context = decoder.config.vocab_size, decoder.config.context
    if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
        refuse(_OP, "batch", _PAIRS, pair)
    sequence, ids = pair
    ok = isinstance(sequence, CachedSequence) and sequence.belongs_to(pool)
    require(ok, _OP, "batch", "of sequences of this model", sequence)
    tokens = ids_below(vocab, ids)
    if not tokens:
        refuse(_OP, "batch", f"of one or more token ids in [0, {vocab}) for each sequence", ids)
    length = len(sequence) + len(tokens)
    require(length <= context, _OP, "batch", f"of sequences no longer than the context of {context} tokens", length)
    return sequence, tokens


def _flags(name: str, given: object, count: int) -> list[bool]:
    flags = [bool(flag) for flag in given] if isinstance(given, Iterable) else None
    if flags is None or len(flags) != count:
        refuse(_OP, name, f"a flag for each of {count}", given)
    return flags


@contextmanager
def _running(pool: PagePool, batch: Batch) -> Iterator[None]:
    """Takes all pages that the batch needs, or none, and locks its sequences against other threads."""
    entered: list[CachedSequence] = []  # a forward pass may be interrupted before all have
    try:
        with LOCK:
            pool.require_locked(sum([sequence.missing_pages(len(tokens)) for sequence, tokens in batch]))
            for sequence, tokens in batch:
                entered.append(sequence)
                sequence.begin_forward_locked(len(tokens))
        yield
    finally:
        for sequence in entered:
            sequence.end_forward()


def _blocks(batch: Batch, every: Sequence[bool], asked: Sequence[bool]) -> Iterator[tuple[Batch, list[int]]]:
    """The batch in blocks of up to BLOCK tokens, each with the indices of the tokens in it whose logits are wanted."""
    block: Batch = []
    wanted: list[int] = []
    size = 0
    for (sequence, tokens), whole, flag in zip(batch, every, asked, strict=True):
        start = 0
        while start < len(tokens):
            piece = tokens[start : start + BLOCK - size]
            start += len(piece)
            block.append((sequence, piece))
            if whole:
                wanted += range(size, size + len(piece))
            elif flag and start == len(tokens):
                wanted.append(size + len(piece) - 1)
            size += len(piece)
            if size == BLOCK:
                yield block, wanted
                block, wanted, size = [], [], 0
    if block:
        yield block, wanted


def _run(decoder: Decoder, pool: PagePool, block: Batch, wanted: np.ndarray) -> np.ndarray:
    tokens: list[int] = []
    row: list[int] = []
    positions: list[int] = []
    pages = [sequence.page_numbers for sequence, _ in block]
    table = np.zeros((len(block), max(map(len, pages))), np.int64)
    for i, (sequence, ids) in enumerate(block):
        length = len(sequence.tokens)
        tokens += ids
        row += [i] * len(ids)
        positions += range(length, length + len(ids))
        table[i, : len(pages[i])] = pages[i]
    arrays = np.array([tokens, row, positions])
    long = None
    if pool.long_after is not None and any(flags := [sequence.is_long for sequence, _ in block]):
        long = np.array(flags)[arrays[1]]
    made, layers, storage = TokenBatch(arrays[0], arrays[1], arrays[2], table, wanted, long), decoder.next_tokens, pool.storage
    if layers is None or not isinstance(storage, PairedPages):
        logits = decoder.logits(made, storage)
    else:
        hidden = np.empty((len(tokens), decoder.config.hidden), np.float32)
        logits = decoder.logits(made, storage.model, hidden)
        states = layers.fill(made, hidden, [sequence.last_states for sequence, _ in block], storage.next_tokens)
        ends = np.cumsum([len(ids) for _, ids in block])[:-1]
        for (sequence, _), own in zip(block, np.split(states, ends), strict=True):
            sequence.set_states(own)
    with LOCK:
        for sequence, ids in block:
            sequence.commit_locked(ids)
    return logits
