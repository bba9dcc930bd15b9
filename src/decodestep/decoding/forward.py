"""forward: runs new tokens of any sequences through the model together and caches their keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from decodestep._base.checks import Phrase, ids_below, is_int, refuse, require
from decodestep.decoding.decoder import Decoder, TokenBatch
from decodestep.decoding.kv_cache import Pages, PairedPages
from decodestep.decoding.page_pool import LOCK, PagePool
from decodestep.decoding.sequence import CachedSequence
from decodestep.decoding.slot_feed import fill_slots
from decodestep.decoding.state_rows import StateRows

_OP = "forward"
_PAIRS = "of pairs of a sequence and its new token ids"
_LATE = 16
_MOST_KEPT = 64  # tokens of a sequence's drafts, with those before them in the pass, whose inputs are kept
BLOCK = 512  # tokens of one pass: enough to share the reading of a weight, few enough to need little memory

Batch = list[tuple[CachedSequence, list[int]]]


class _Piece(NamedTuple):
    """Tokens of a sequence in a block. drafted: how many of them are drafts, the last ones."""

    sequence: CachedSequence
    tokens: list[int]
    drafted: int


def forward(
    decoder: Decoder,
    pool: PagePool,
    batch: Iterable[tuple[CachedSequence, Sequence[int] | np.ndarray]],
    *,
    every: bool | Sequence[bool],
    wanted: Sequence[bool] | None = None,
    drafted: Sequence[int] | None = None,
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
    drafts = [0] * len(checked) if drafted is None else _draft_lengths(drafted, checked)
    firsts = [
        0 if every_one else len(tokens) - drafts[i] - 1 if asked[i] else len(tokens)
        for i, ((_, tokens), every_one) in enumerate(zip(checked, whole, strict=True))
    ]
    with _running(pool, checked, drafts):
        if pool.rows is not None:
            _replay(decoder, pool, pool.rows, checked)
            checked, firsts = _catch_up(decoder, pool, checked, drafts, firsts)
        blocks = [_run(decoder, pool, block, np.array(last, np.int64)) for block, last in _blocks(checked, drafts, firsts)]
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks or [np.zeros((0, decoder.config.vocab_size), np.float32)])


def _check(decoder: Decoder, pool: PagePool, pair: object) -> tuple[CachedSequence, list[int]]:
    config = decoder.config
    if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
        refuse(_OP, "batch", _PAIRS, pair)
    sequence, ids = pair
    ok = isinstance(sequence, CachedSequence) and sequence.belongs_to(pool)
    require(ok, _OP, "batch", "of sequences of this model", sequence)
    tokens = ids_below(config.vocab_size, ids)
    if not tokens:
        refuse(_OP, "batch", f"of one or more token ids in [0, {config.vocab_size}) for each sequence", ids)
    length = len(sequence) + len(tokens)
    if length > config.context:
        refuse(_OP, "batch", f"of sequences no longer than {config.context_in_words}", length)
    return sequence, tokens


def _flags(name: str, given: object, count: int) -> list[bool]:
    flags = [bool(flag) for flag in given] if isinstance(given, Iterable) else None
    if flags is None or len(flags) != count:
        refuse(_OP, name, f"a flag for each of {count}", given)
    return flags


def _draft_lengths(given: object, batch: Batch) -> list[int]:
    lengths = list(given) if isinstance(given, Iterable) else []
    ok = len(lengths) == len(batch) and all(
        is_int(length) and 0 <= length < len(tokens) for length, (_, tokens) in zip(lengths, batch, strict=True)
    )
    require(ok, _OP, "drafted", "for each sequence a number below that of its new tokens", given)
    return lengths


@contextmanager
def _running(pool: PagePool, batch: Batch, drafts: Sequence[int]) -> Iterator[None]:
    """Takes all pages that the batch needs, or none, and locks its sequences against other threads."""
    entered: list[CachedSequence] = []  # a forward pass may be interrupted before all have
    try:
        with LOCK, pool.changing_locked():
            pool.require_locked(sum([sequence.missing_pages(len(tokens)) for sequence, tokens in batch]))
            if pool.rows is not None:
                pool.rows.require_locked(sum(map(bool, drafts)))
            for (sequence, tokens), draft in zip(batch, drafts, strict=True):
                entered.append(sequence)
                sequence.begin_forward_locked(len(tokens), drafts=draft > 0)
        yield
    finally:
        for sequence in entered:
            sequence.end_forward()


def _replay(decoder: Decoder, pool: PagePool, rows: StateRows, batch: Batch) -> None:
    """Brings recurrent states forward by what was accepted of drafts that were rejected in part."""
    with LOCK, pool.changing_locked():
        states = [sequence.state for sequence, _ in batch if sequence.state is not None]
        begun = [(state, replay) for state in states if (replay := state.begin_replay_locked()) is not None]
    if begun:
        kept, slots, into = zip(*(replay for _, replay in begun), strict=True)
        decoder.replay(kept, rows.storage, np.array(slots), np.array(into))
        with LOCK, pool.changing_locked():
            for state, _ in begun:
                state.end_replay_locked()


def _catch_up(
    decoder: Decoder, pool: PagePool, batch: Batch, drafts: Sequence[int], firsts: Sequence[int]
) -> tuple[Batch, list[int]]:
    """The batch and the firsts of `_blocks` with the tokens that a sequence's recurrent state does not have yet.

    Where drafts would follow many of them, these run first, so that the next pass need not run them again with the draft.
    """
    late = [(sequence, again) for sequence, again, draft in _behind(batch, drafts) if draft and len(again) >= _LATE]
    for block, last in _blocks(late, [0] * len(late), [len(again) for _, again in late]):
        _run(decoder, pool, block, np.array(last, np.int64))
    behind = list(_behind(batch, drafts))
    return (
        [(sequence, again + tokens) for (sequence, again, _), (_, tokens) in zip(behind, batch, strict=True)],
        [first + len(again) for (_, again, _), first in zip(behind, firsts, strict=True)],
    )


def _behind(batch: Batch, drafts: Sequence[int]) -> Iterator[tuple[CachedSequence, list[int], int]]:
    """Each sequence, its tokens that run again, and how many of its new ones are drafts."""
    for (sequence, _), draft in zip(batch, drafts, strict=True):
        yield sequence, sequence.tokens[sequence.position :], draft


def _blocks(batch: Batch, drafts: Sequence[int], firsts: Sequence[int]) -> Iterator[tuple[list[_Piece], list[int]]]:
    """The batch in blocks of up to BLOCK tokens, each with the indices of the tokens in it whose logits are wanted.

    drafts: how many of each sequence's tokens are drafts. firsts: the first of each whose logits are wanted, with those after.
    """
    block: list[_Piece] = []
    wanted: list[int] = []
    size = 0
    for (sequence, tokens), draft, first in zip(batch, drafts, firsts, strict=True):
        start, position = 0, sequence.position
        while start < len(tokens):
            piece = tokens[start : start + BLOCK - size]
            if start + len(piece) < len(tokens):
                piece = piece[: sequence.pass_length(position + start, len(piece))]
            end = start + len(piece)
            block.append(_Piece(sequence, piece, min(len(piece), max(0, end - (len(tokens) - draft)))))
            wanted += range(size + max(first - start, 0), size + len(piece))
            start = end
            size += len(piece)
            if size == BLOCK or start < len(tokens):
                yield block, wanted
                block, wanted, size = [], [], 0
    if block:
        yield block, wanted


def _run(decoder: Decoder, pool: PagePool, block: list[_Piece], wanted: np.ndarray) -> np.ndarray:
    tokens: list[int] = []
    row: list[int] = []
    positions: list[int] = []
    numbers = [piece.sequence.page_numbers for piece in block]
    table = np.zeros((len(block), max(map(len, numbers))), np.int64)
    for i, (sequence, ids, _) in enumerate(block):
        length = sequence.position
        tokens += ids
        row += [i] * len(ids)
        positions += range(length, length + len(ids))
        table[i, : len(numbers[i])] = numbers[i]
    arrays = np.array([tokens, row, positions])
    long = None
    if pool.long_after is not None and any(flags := [piece.sequence.is_long for piece in block]):
        long = np.array(flags)[arrays[1]]
    slots, into = (None, None) if pool.rows is None else _state_rows(pool, block)
    kept, kept_rows, kept_of = _room_for_inputs(decoder, block)
    made = TokenBatch(arrays[0], arrays[1], arrays[2], table, wanted, long, slots, into, kept, kept_rows)
    storage = pool.storage
    fed = [feed for piece in block if (feed := piece.sequence.feed) is not None and feed.known]
    pages = storage.model if isinstance(storage, PairedPages) else storage
    logits = _run_fed(decoder, pages, block, made) if fed else decoder.logits(made, pages)
    with LOCK, pool.changing_locked():
        for piece, inputs in zip(block, kept_of, strict=True):
            piece.sequence.commit_locked(piece.tokens, piece.drafted, inputs)
    if fed:  # what is read will be shared, and is filled at once
        fill_slots(s for s, tokens, drafted in block if s.feed and (s.feed.due or len(tokens) - drafted > 1))
    return logits


def _state_rows(pool: PagePool, block: list[_Piece]) -> np.ndarray:
    """The rows of states that the sequences read, and those that they write."""
    with LOCK, pool.changing_locked():
        rows = [state.begin_pass_locked() for piece in block if (state := piece.sequence.state) is not None]
    return np.array(rows, np.int64).T.copy()


def _room_for_inputs(
    decoder: Decoder, block: list[_Piece]
) -> tuple[np.ndarray | None, np.ndarray | None, list[np.ndarray | None]]:
    """`kept` and `kept_rows` of the batch, and the part of it that each sequence has: of those that begin with drafts."""
    keeps = [
        sequence.state is not None and drafted > 0 and not sequence.drafted and len(tokens) <= _MOST_KEPT
        for sequence, tokens, drafted in block
    ]
    if not any(keeps) or not decoder.replay_width:
        return None, None, [None] * len(block)
    lengths = np.array([len(piece.tokens) for piece in block])
    flags = np.repeat(keeps, lengths)
    kept = np.empty((np.count_nonzero(flags), decoder.replay_width), np.float32)
    parts = np.split(kept, np.cumsum(lengths * keeps)[:-1])
    return (
        kept,
        np.where(flags, np.cumsum(flags) - 1, -1),
        [part if keep else None for part, keep in zip(parts, keeps, strict=True)],
    )


def _run_fed(decoder: Decoder, pages: Pages, block: list[_Piece], batch: TokenBatch) -> np.ndarray:
    """The logits; the feeds of sequences are given the hidden states of their tokens."""
    hidden = np.empty((len(batch.tokens), decoder.config.hidden), np.float32)
    logits = decoder.logits(batch, pages, hidden)
    first = 0
    for sequence, tokens, _ in block:
        if sequence.feed is not None:
            again = min(len(tokens), len(sequence) - sequence.position)
            sequence.feed.add(len(sequence), hidden[first + again : first + len(tokens)])
        first += len(tokens)
    return logits
