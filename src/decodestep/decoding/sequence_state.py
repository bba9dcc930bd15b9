"""The recurrent state of a sequence: after which of its tokens, in which row, and where snapshots of it stay behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decodestep.decoding.kv_cache import PAGE
from decodestep.decoding.state_rows import END_RANK, START, TURN_RANK, WRITTEN, Reached, StateRows, last_snapshot
from decodestep.decoding.states import ZERO_ROW

if TYPE_CHECKING:
    from decodestep.chat.user_mark import UserMark
    from decodestep.decoding.holdings import Holding, Page

_REWRITTEN = 8  # tokens at the end of a prompt that the next turn's may not have: a template's beginning of an answer
_APART = 256  # tokens between the end of a prompt and the snapshot before: another costs a pass, which these are worth
_SHARED = 64  # likewise of tokens that several prompts begin with


class Replay(NamedTuple):
    """Tokens that are replayed. kept: as in `Decoder.replay`. read, written: the rows of the states before and after them."""

    kept: np.ndarray
    read: int
    written: int


class SequenceState:
    """The state of a sequence of a model that has recurrent layers. As there, methods ending in `_locked` require `LOCK`.

    A state cannot be cut back as pages can. Where tokens are dropped it goes back to an earlier one, of a snapshot or the one
    before the drafts. Of tokens that have run since that one, the inputs of the state may have been kept: the next pass begins
    by replaying these. It runs again what follows: `position` is where that begins.

    Snapshots are left behind at ends of pages and of the sequence:
        where several texts are known to go on in different ways
        at the end of a prompt, but for the tokens that the next turn may not have
        before the last turn of a user: it may be edited, and what follows it may be rewritten by the turn after it
        between, as far apart as keys take the memory of a row
        where the sequence is closed
    """

    def __init__(self, rows: StateRows, held: Holding) -> None:
        self._rows, self._held = rows, held
        self._begun = 0  # the position before the pass that is running, or the last one
        self._keeps = False  # whether the state before drafts is kept, of passes that have begun
        self._marked = False  # whether the state that is kept is one to go back to
        self._inputs: np.ndarray | None = None  # of the tokens after the state that are to be replayed
        self._kept: np.ndarray | None = None  # of those after the state that is kept
        self.branch = 0  # up to where the pool's tree has pages of the text that is read
        self._stops: set[int] = set()  # where prompts that are read with it go on in another way
        self._length = 0  # of the prompt that is read
        self._end = 0  # where it ends, as far as the next turn has it
        self._turn = 0  # where its last turn of a user begins
        self._last = 0  # the position of the last snapshot that the sequence has left or gone on from
        self._begun_from: Page | None = None  # whose that one is, if the sequence has gone on from it

    @property
    def position(self) -> int:
        """How many of the sequence's tokens the next pass does not run again; while one runs, where it began."""
        reached = self.reached
        return self._begun if reached == WRITTEN else reached if self._inputs is None else reached + len(self._inputs)

    @property
    def reached(self) -> int:
        """How many tokens the state is after, without those that are to be replayed."""
        return self._held.state.position

    def expect(self, start: int, tokens: Sequence[int], user_mark: UserMark | None) -> None:
        """A prompt is read that goes on with these tokens at a position. user_mark: of turns of a user, if it is known."""
        length = start + len(tokens)
        if length == self._length:
            return
        self._length, self._end = length, (length - _REWRITTEN) // PAGE * PAGE
        turn = None if user_mark is None else user_mark.last(tokens)
        self._turn = 0 if turn is None else start + turn

    def part_at(self, position: int) -> None:
        """A text that begins with so many of this one's tokens goes on in another way."""
        self._stops.add(position // PAGE * PAGE)

    def pass_length(self, length: int, count: int, *, ends: bool) -> int:
        """How many of the next `count` tokens a pass should run, so that a snapshot can be taken after it.

        ends: whether they end a prompt.
        """
        places = (*self._stops, self.branch, self._end, self._before_turn)
        stops = [stop for stop in places if length < stop < length + count and self._wants(stop)]
        if stops:
            return min(stops) - length
        whole = count - (length + count) % PAGE
        return count if ends or whole <= 0 else whole

    def _wants(self, position: int) -> bool:
        """Whether a snapshot is wanted after so many tokens, at the price of a pass."""
        apart, is_early = position - self._last, self._is_shared(position) or position == self._before_turn
        return (apart >= _SHARED and is_early) or (apart >= _APART and position == self._end)

    @property
    def _before_turn(self) -> int:
        """The last end of a page before the last turn of a user."""
        return self._turn // PAGE * PAGE

    def _is_shared(self, position: int) -> bool:
        return position == self.branch or position in self._stops

    def keep_locked(self) -> None:
        """Keeps the state before the drafts of the passes that begin, until `settle_locked`."""
        self.settle_locked()
        self._rows.claim_locked(1)
        self._rows.hold_locked(self._held.state.row)
        self._held.before, self._keeps, self._kept = self._held.state, True, self._inputs

    def mark_locked(self) -> None:
        """Keeps the state until it goes back, if there is a row to be had."""
        self.settle_locked()
        if self._rows.spare_locked():
            self.keep_locked()
            self._keeps, self._marked = False, True

    def begin_replay_locked(self) -> Replay | None:
        """What is to be replayed before a pass; None if nothing is."""
        held, inputs = self._held, self._inputs
        if inputs is None:
            return None
        position, row = self.position, held.state.row
        self._inputs = None
        if self._keeps and held.before is held.state and row is not None and row.users == 2:  # nobody else's
            held.before = held.state = Reached(row, WRITTEN)
            rows = row.number, row.number
        else:
            rows = self.begin_pass_locked()
        self._begun = position
        return Replay(inputs, *rows)

    def end_replay_locked(self) -> None:
        self.reach_locked(self._begun)

    def begin_pass_locked(self) -> tuple[int, int]:
        """The rows that a pass reads and writes: another one where somebody else needs what it reads."""
        held, rows = self._held, self._rows
        row, self._begun = held.state
        kept = held.before is not None and held.before.row is row
        if row is not None and row.users > 1 and not kept and (held.before is not None or not rows.spare_locked()):
            row = rows.own_locked(row)  # no third row is to be had, and what the pass reads must stay
        if row is not None and row.users == 1:
            held.state = Reached(row, WRITTEN)
            return row.number, row.number
        target = Reached(rows.take_locked(), WRITTEN)
        if held.before is not None or row is None:
            held.state = target
            rows.release_locked(row)
        else:  # so that nobody writes what the pass reads
            rows.claim_locked(1)
            held.before, held.state = held.state, target
        assert target.row is not None
        return ZERO_ROW if row is None else row.number, target.row.number

    def reach_locked(self, length: int, *, drafts: bool = False, kept: np.ndarray | None = None) -> None:
        """The state is now after the sequence's tokens up to `length`.

        drafts: whether the last of them are drafts. kept: what has been kept of the tokens of the pass, if that began with the
        state before the drafts.
        """
        row = self._held.state.row
        self._held.state = Reached(row, length)
        if kept is not None:
            self._kept = kept
        if self._keeps and not drafts:
            self.keep_locked()
        elif not drafts:
            self.end_pass_locked()

    def end_pass_locked(self) -> None:
        """Gives up the state before a pass that has ended, with or without success."""
        if not self._marked:
            self.settle_locked()

    def settle_locked(self) -> None:
        """Gives up the state that is kept."""
        before, self._keeps, self._marked, self._kept = self._held.before, False, False, None
        if before is not None:
            self._held.before = None
            self._rows.claim_locked(-1)
            self._rows.release_locked(before.row)

    def take_snapshot_locked(self, page: Page | None, *, prompt: bool) -> None:
        """Leaves a snapshot if one is wanted. page: the last one, if it is full. prompt: whether several tokens have run."""
        row, length = self._held.state
        if row is None or page is None or page.parent is None:
            return
        wanted, is_shared = self._wants(length), self._is_shared(length)
        if wanted or (prompt and length - self._last >= self._rows.interval):
            if page.snapshot is None:
                of_turn = length == self._before_turn and length != self._end and not is_shared
                rank = None if not wanted else TURN_RANK if of_turn else END_RANK
                self._rows.keep_locked(page, row, length, rank, shared=is_shared)
            self._last, self._begun_from = length, None

    def go_back_locked(self, path: Sequence[Page], tokens: Sequence[int], length: int) -> None:
        """Goes back to a state after at most `length` tokens, if it is not one.

        path: the root and the pages of the sequence. tokens: of the sequence, with those that are dropped.
        """
        if 0 <= self.reached <= length:
            if self._inputs is not None:
                self._inputs = self._inputs[: length - self.reached] if self.reached < length else None
            return
        found, before, kept = START, self._held.before, None
        at = last_snapshot(path[: length // PAGE + 1], tokens[:length])
        if at is not None:
            place, page = at
            assert page.snapshot is not None
            found = Reached(page.snapshot.row, place * PAGE + len(page.tokens) % PAGE)
        self._last = min(self._last, found.position)
        if before is not None and found.position <= before.position <= length:
            found, kept = before, self._kept
        self._set_locked(found)
        if kept is not None and found.position < length:
            self._inputs = kept[: length - found.position].copy()  # so that the rest takes no memory

    def follow_locked(self, other: SequenceState) -> None:
        """Takes the state of a sequence with the same tokens."""
        self._set_locked(other._held.state)
        self._inputs = other._inputs
        self._last, self._begun_from = other._last, None

    def clear_locked(self) -> None:
        """Goes back to the state before the first token."""
        self._set_locked(START)

    def resume_locked(self, passed: Sequence[Page], page: Page, position: int) -> None:
        """Goes on from a page's snapshot, which is after so many tokens. passed: the pages before it that the text now has."""
        for each in passed:
            self._rows.pass_locked(each, uses=0)
        assert page.snapshot is not None
        self._rows.use_locked(page)
        self._set_locked(Reached(page.snapshot.row, position))
        self._last, self._begun_from = position, page

    def leave_locked(self, page: Page) -> None:
        """The sequence ends with a page that is in the tree, and leaves a snapshot there."""
        row, position = self._held.state
        if row is None:
            return
        if page.snapshot is None:
            self._rows.keep_locked(page, row, position, END_RANK)
        if self._begun_from is not None:
            is_before_turn = self._last <= self._turn and self._before_turn - self._last < _SHARED
            self._rows.pass_locked(self._begun_from, uses=1, rank=TURN_RANK if is_before_turn else 0)

    @property
    def is_worth_leaving(self) -> bool:
        return self.reached - self._last >= PAGE

    def _set_locked(self, reached: Reached) -> None:
        self._inputs = None
        self._rows.hold_locked(reached.row)
        old, self._held.state = self._held.state, reached
        self._rows.release_locked(old.row)
        self.settle_locked()
