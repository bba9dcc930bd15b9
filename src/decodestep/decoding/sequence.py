"""CachedSequence: tokens whose keys and values are in a model's cache, to be continued by `Model.forward`."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NoReturn

import numpy as np

from decodestep._base.checks import Phrase, is_int, refuse, require
from decodestep.decoding.holdings import Page
from decodestep.decoding.kv_cache import PAGE
from decodestep.decoding.page_pool import LOCK, PagePool
from decodestep.decoding.paged_tokens import PagedTokens, count_pages
from decodestep.decoding.sequence_state import SequenceState
from decodestep.decoding.slot_feed import SlotFeed, fill_slots
from decodestep.decoding.state_rows import last_snapshot, passed_pages
from decodestep.errors import CacheFullError

_OP = "CachedSequence"


class CachedSequence(PagedTokens):
    """Tokens whose keys and values are in pages of a model's cache. Made by `Model.sequence`.

    tokens: the ids, in order; len(sequence) is their number. `Model.forward` appends to them. drafted: how many of them, the
        last ones, are drafts that `keep` has not settled yet. feed: where layers for next-token prediction draft from it, what
        fills their slots; given before the first token.

    Sequences with a common prefix share full pages, which are never written again; a partly filled page belongs to one
    sequence. A sequence holds its pages until `close`, the end of its `with` block, or garbage collection. One thread at a time
    may use a sequence; several threads may use several sequences of a model. In a forked child only sequences created by the
    forking thread stay open.

    Of a model with recurrent layers the sequence also has a state, which cannot be cut back as pages can: after `truncate` it
    may be one after fewer tokens (`position`). The next pass then runs the others again, which changes no bit; after `keep` it
    need not, or only with `dtype="float32"`. `reuse` goes on from a snapshot of a state, and `close` leaves one.

    With long-rope, the length of a text decides how its tokens are rotated (`expect`), and only pages that are rotated the same
    way are shared.

    The package's own: `forward` runs tokens between `begin_forward_locked` and `end_forward`. As in `PagePool`, methods whose
    names end in `_locked` require `LOCK`, and a change of the pool.
    """

    def __init__(self, pool: PagePool, capacity: int | None = None, *, admitted: bool = False) -> None:
        super().__init__(pool, capacity, admitted=admitted)
        self.reused = 0  # how many tokens `reuse` has appended
        self.feed: SlotFeed | None = None

    def reuse(self, tokens: Sequence[int]) -> int:
        """Appends as many of `tokens` as the cache holds after this sequence, without running them; returns how many.

            while a full page of the cache holds the next of tokens after this sequence, and not the last one:
                append them
            if a page holds some of them (the last such page that was filled): copy it, and append those

        Of a model with recurrent layers only as many as are before a snapshot of its state.

        tokens: ids that would continue the sequence. At least one is left, to be run for its logits.
        """
        self._require_settled()
        fill_slots([self])
        start = len(self.tokens)
        self.expect(start + len(tokens))
        if self.state is not None:
            self.state.expect(start, tokens, self._pool.user_mark)
        if len(self._pages) > count_pages(start) or not self._rotates_alike:
            return 0  # a forward pass that failed had taken pages, or pages from here on are rotated in another way
        with LOCK, self._pool.changing_locked():
            if self.state is not None:
                self._mend_locked()
                self._resume_locked(tokens, self.state)
            else:
                self._reuse_pages_locked(tokens)
                if len(self.tokens) % PAGE == 0:
                    self._reuse_part_locked(tokens[len(self.tokens) - start :])
        self.reused += len(self.tokens) - start
        return len(self.tokens) - start

    def fork(self, capacity: int | None = None) -> CachedSequence:
        """A new sequence with the same tokens: full pages are shared, a partly filled last one is copied.

        capacity: as in `Model.sequence`. Raises CacheFullError if there is no room.
        """
        other = CachedSequence(self._pool, capacity)
        other.feed = None if self.feed is None else self.feed.new()
        try:
            other.assign(self)
        except BaseException:
            other.close()
            raise
        return other

    def assign(self, source: CachedSequence) -> None:
        """Makes this sequence a copy of `source`, as `fork` does; its previous pages are released.

        source: another sequence of the same model. Raises CacheFullError, with nothing changed, if there is no room.
        """
        same = isinstance(source, CachedSequence) and source.belongs_to(self._pool)
        require(same, _OP, "source", "one of the same model", source)
        source._require_settled()
        self._require_settled()
        if source is self:
            return
        if self.feed is not None:
            fill_slots([source])
        pool, full, partial = self._pool, len(source) // PAGE, len(source) % PAGE > 0
        with LOCK, pool.changing_locked():
            own, tokens, shared = self._pages, self.tokens, source._pages[:full]
            given_back, old = sum(page.users == 1 for page in own), own.copy()
            if partial:
                pool.require_locked(1 - given_back - min(self.reserved, max(0, full + 1 - len(old))))
            pool.hold_locked(*shared)
            if self.state is not None:
                self.state.clear_locked()
                source._mend_locked()
            own[:], tokens[:] = [], []
            pool.release_locked(old)
            self._claim_locked(full + partial - len(old))
            if partial:
                shared.append(pool.take_locked())
                pool.storage.copy(source._pages[full].number, shared[full].number)
            self._put(0, shared, source.tokens)
            if self.state is not None and source.state is not None:
                self.state.follow_locked(source.state)
            self._expected, self._long, self._same_rope = source._expected, source._long, source._same_rope
            if self.feed is not None:
                self.feed.follow(source.feed)
            self._reserve_again_locked(given_back - partial)

    def truncate(self, length: int) -> None:
        """Drops the tokens from `length` on, so that others can replace them.

        length: in [0, len(sequence)]. Pages that only this sequence had stay reserved for it, up to its capacity.
        Raises CacheFullError, with nothing changed, if the page where the sequence then ends is shared and there is no room to
        copy it.
        """
        require(is_int(length) and 0 <= length <= len(self), _OP, "length", f"in [0, {len(self)}]", length)
        self._require_settled()
        self._truncate(length)

    def mark(self) -> None:
        """Remembers where the sequence is now: `truncate` to as many tokens, or some more, then makes none of them run again.

        Of effect for recurrent states only, and where the cache has room for one more.
        """
        self._require_settled()
        if self.state is not None:
            with LOCK, self._pool.changing_locked():
                self._mend_locked()
                self.state.mark_locked()

    def keep(self, count: int) -> None:
        """Keeps the first `count` of the drafted tokens, in [0, drafted], and drops the others.

        Only now can pages that they have filled be reused: of the others nothing is left in the cache.
        """
        require(is_int(count) and 0 <= count <= self.drafted, _OP, "count", f"in [0, {self.drafted}]", count)
        self._require_idle()
        drafted, self.drafted = self.drafted, 0
        if count < drafted:
            self._truncate(len(self.tokens) - drafted + count)
        with LOCK, self._pool.changing_locked():
            if self.state is not None:
                self.state.settle_locked()
            self._share_full_pages_locked(len(self.tokens) - count)

    def _truncate(self, length: int) -> None:
        kept, pool, pages, tokens = count_pages(length), self._pool, self._pages, self.tokens
        with LOCK, pool.changing_locked():
            dropped, last = pages[kept:], pages[kept - 1] if length % PAGE else None
            freed = sum(page.users == 1 for page in dropped)
            alone = last is not None and last.users == 1
            if last is not None and alone and not last.children:
                pool.withdraw_locked(last)
                last = None
            same_rope, whole = min(self._same_rope, length), length
            if last is not None:
                pool.require_locked(1 - freed - (self.reserved > 0))
                kept, whole = kept - 1, (kept - 1) * PAGE
            part = tokens[whole:length]
            if self.state is not None:
                self.state.go_back_locked([self._page_before(0), *pages], tokens, length)
            del pages[kept:], tokens[whole:]
            pool.release_locked(dropped)
            self._reserve_again_locked(freed)
            if last is not None:  # it was full, and stays as it is for others
                self._claim_locked(1)
                page = pool.take_locked()
                pool.storage.copy(last.number, page.number)
                self._put(kept, [page], part)
                pool.release_locked([last])
                self._reserve_again_locked(alone)
            self._expected, self._same_rope = length, same_rope
            if self.feed is not None:
                self.feed.cut(length, pages[-1].states if pages and length % PAGE == 0 else None)

    def close(self) -> None:
        """Releases the pages; full ones are kept for reuse, and of a recurrent model all up to its state. The sequence cannot
        be used afterwards."""
        if self._pool.is_open(self._held):
            self._require_idle()
            with LOCK, self._pool.changing_locked():
                self._mend_locked()
                if self.state is not None and not self.drafted and self.state.is_worth_leaving:
                    self._leave_snapshot_locked(self.state)
                self._pool.close_locked(self._held)

    def __reduce__(self) -> NoReturn:  # two objects would release the same pages
        raise TypeError("a CachedSequence cannot be copied or pickled; fork() makes another one")

    def __enter__(self) -> CachedSequence:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def missing_pages(self, tokens: int) -> int:
        """The number of pages that a pass of this many tokens needs beyond the reserved ones. Refuses a sequence in use."""
        self._require_settled()
        again = 0
        if self.state is not None:
            self._mend_locked()
            again = len(self._shared_from(self.position))
        return max(0, count_pages(len(self.tokens) + tokens) - len(self._pages) + again - self.reserved)

    def begin_forward_locked(self, tokens: int, *, drafts: bool) -> None:
        """Takes the pages of this many more tokens, and keeps other threads out until `end_forward`.

        drafts: whether there are drafts among them.
        """
        self._held.runner = threading.get_ident()
        length = len(self.tokens) + tokens
        self.expect(length)
        if self.state is not None:
            self._own_from_locked(self.position)
            if drafts:
                self.state.keep_locked()
        for place in range(len(self._pages), count_pages(length)):
            self._claim_locked(1)
            self._put(place, [self._pool.take_locked()])

    def pass_length(self, position: int, count: int, *, ends: bool = False) -> int:
        """How many of `count` tokens from a position on one pass should run: fewer where a snapshot of the state is wanted.

        ends: whether they end a prompt.
        """
        return count if self.state is None else self.state.pass_length(position, count, ends=ends)

    def part_at(self, length: int) -> None:
        """Announces another prompt that begins with so many tokens of this one, and then goes on in another way."""
        if self.state is not None:
            self.state.part_at(length)

    def commit_locked(self, tokens: Sequence[int], drafted: int, kept: np.ndarray | None = None) -> None:
        """Appends tokens that the forward pass has run, but for those that it has run again; pages that they fill can be reused
        from now on.

        drafted: how many of the last of them are drafts; pages that these fill are the sequence's alone until `keep`.
        kept: as in `SequenceState.reach_locked`.
        """
        before = self.position
        self.drafted += drafted
        self._put(len(self._pages), [], tokens[len(self.tokens) - before :])
        if self.state is not None:
            self.state.reach_locked(before + len(tokens), drafts=self.drafted > 0, kept=kept)
        self._share_full_pages_locked(before)
        if self.state is not None and not self.drafted:
            page = self._pages[self.position // PAGE - 1] if self.position % PAGE == 0 else None
            self.state.take_snapshot_locked(page, prompt=len(tokens) > 1)

    def _share_full_pages_locked(self, before: int) -> None:
        """Adds the pages to the pool's tree that have become full since the sequence had `before` tokens, without drafts."""
        last = len(self.tokens) - self.drafted if self.state is None else min(self.position, len(self.tokens) - self.drafted)
        for i in range(before // PAGE, min(self._same_rope, last) // PAGE):
            pages, table = self._pages, self._table
            own, filled = pages[i], 0 if self.feed is None else self.feed.filled - i * PAGE
            page = self._pool.share_locked(own, self._page_before(i), self.tokens[i * PAGE : (i + 1) * PAGE])
            if self.feed is not None and page is not own and filled > 0:  # the other's slots may wait
                self.feed.pages.copy(own.number, page.number, min(filled, PAGE))
            pages[i], table[i] = page, page.number

    def give_states(self, states: Mapping[int, np.ndarray]) -> None:
        """Gives pages the states of their last tokens, by the positions of these, now that all their slots are filled."""
        with LOCK:
            for position, own in states.items():
                page = self._pages[position // PAGE]
                if page.parent is not None:  # else the page may be written again
                    page.states = own.copy()

    def end_forward(self) -> None:
        """Also of a forward pass that failed: its pages stay, to be filled by the next."""
        self._held.runner = None

    def _require_settled(self) -> None:
        self._require_idle()
        if self.drafted:
            refuse(
                _OP, "sequence", "one whose drafts are settled, by `keep`", Phrase(f"one with {self.drafted} drafted tokens")
            )

    def _reuse_pages_locked(self, tokens: Sequence[int]) -> None:
        """Appends the pages that hold the next of tokens, the first in place of one that is partly filled."""
        parent, rest = self._last_full_page()
        room = self._pool.available_locked() + self.reserved + bool(rest)  # a page that is replaced becomes available
        pages: list[Page] = []
        for page in self._pool.path_locked(parent, (*rest, *tokens)):
            room -= page.users == 0  # a kept page that is held is no longer available
            if room < 0:
                break
            pages.append(page)
        if not pages:
            return
        first = len(self.tokens) // PAGE
        replaced = self._pages[first:]
        self._pool.hold_locked(*pages)
        self._claim_locked(len(pages) - len(replaced))
        self._put(first, pages, [token for page in pages for token in page.tokens][len(rest) :])
        self._pool.release_locked(replaced)
        if self.feed is not None:
            self.feed.begin(len(self.tokens), pages[-1].states)

    def _resume_locked(self, tokens: Sequence[int], state: SequenceState) -> None:
        """Appends the pages up to the last snapshot from which the next of tokens go on; a partly filled one is copied."""
        parent, rest = self._last_full_page()
        path = [parent, *self._pool.path_locked(parent, (*rest, *tokens))]
        first, base = len(self.tokens) // PAGE, len(self.tokens) - len(rest)
        state.branch = base + (len(path) - 1) * PAGE
        found = last_snapshot(path, (*rest, *tokens[:-1]))
        if found is None:
            return
        place, page = found
        part = len(page.tokens) < PAGE
        pages, length = path[1 : place + 1], base + place * PAGE + len(page.tokens) % PAGE
        replaced, copied = self._pages[first:], part and page.users == 0  # which is held, too, until it has been copied
        claimed = len(pages) + part - len(replaced) + copied
        taken = sum(each.users == 0 for each in {*pages, page}) + part - (bool(rest) and not part)  # copies come first
        room = self._pool.available_locked() + min(claimed, self.reserved)
        if length <= len(self.tokens) or taken > room or (part and rest and not place):
            return
        self._pool.hold_locked(*pages, *[page] * part)
        self._claim_locked(claimed)
        if part:
            pages.append(self._pool.take_locked())
            self._pool.storage.copy(page.number, pages[-1].number)
        self._put(first, pages, tokens[: length - len(self.tokens)])
        state.resume_locked(passed_pages(path[: place + 1], (*rest, *tokens), page), page, length)
        self._pool.release_locked([*replaced, *[page] * part])
        self._reserve_again_locked(copied)
        if self.feed is not None:
            self.feed.begin(length, page.states)

    def _leave_snapshot_locked(self, state: SequenceState) -> None:
        page = self._tree_page_locked(state.reached)
        if page is not None and page.parent is not None:
            state.leave_locked(page)
            if self.feed is not None and len(page.tokens) < PAGE and (own := self.feed.states(state.reached - 1)) is not None:
                page.states = own.copy()

    def _reuse_part_locked(self, tokens: Sequence[int]) -> None:
        """Copies the page that begins like `tokens`, without the last of them."""
        page = self._pool.child_beginning_with_locked(self._last_full_page()[0], tokens[0]) if len(tokens) > 1 else None
        # A page that is kept cannot be handed out while it is copied.
        if page is None or self._pool.available_locked() + (self.reserved > 0) <= (page.users == 0):
            return
        most = min(PAGE, len(tokens)) - 1
        feed = self.feed
        # The states of the tokens that it begins with are not known: the last of them run again.
        again = 0 if feed is None or not feed.known or page.states is None else feed.layers.count
        same = next((i for i in range(most) if tokens[i] != page.tokens[i]), most) - again
        if same < 1:
            return
        self._pool.hold_locked(page)  # or it might be the one that is taken
        self._claim_locked(1)
        copied = self._pool.take_locked()
        self._pool.storage.copy(page.number, copied.number)
        self._put(len(self._pages), [copied], page.tokens[:same])
        self._pool.release_locked([page])
        if feed is not None:
            feed.begin(len(self.tokens), None, again)


def admit(pool: PagePool, count: int, capacity: int) -> list[CachedSequence]:
    """`count` sequences with pages reserved for `capacity` tokens each, for a caller that closes them without waiting.

    Raises CacheFullError, with nothing reserved, if there are too few pages. A caller that holds no pages may then wait for
    others to release theirs: `PagePool.wait_for`.
    """
    made: list[CachedSequence] = []
    try:
        for _ in range(count):
            made.append(CachedSequence(pool, capacity, admitted=True))
    except CacheFullError:
        for sequence in made:
            sequence.close()
        raise
    return made
