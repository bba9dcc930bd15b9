"""A small decoder with recurrent states that are made of tokens: a wrong state or a wrong page shows in the next logits."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from decodestep.decoding.decoder import Decoder
from decodestep.decoding.kv_cache import PAGE, PageLayout, Pages
from decodestep.decoding.page_pool import PagePool
from decodestep.decoding.states import StateLayout
from decodestep.decoding.step_decoder import StepDecoder
from decodestep.models import Model

_MODULUS = 2**24 - 3  # float32 holds all that is below


class TokenPages(Pages):
    """The token of each position; -1: nothing has been written."""

    def __init__(self, layout, count):
        self.count, self.page_bytes = count, layout.page_bytes
        self.tokens = np.full((count, PAGE), -1)

    def parts(self, number):
        return [self.tokens[number]]


class HashDecoder(Decoder):
    """Its state is a hash of the tokens so far, with their number; its logits are made of that and of what the pages hold.

    values: of a row, at least 6: how much memory a state takes. passes, tokens: how many have run. replays: whether tokens are
    kept for a replay. replayed: how many have been.
    """

    description, cache_dtype, long_after = "a hash of the tokens", "int64", None

    def __init__(self, config, values=6, *, replays=True):
        self.config = replace(config, mixers=())
        self.page_layout = PageLayout((1,), (PAGE,), (PAGE,), np.dtype(np.int32), np.dtype(np.int32))
        self._values = values
        self.passes = self.tokens = self.replayed = 0
        self.replay_width = int(replays)

    @cached_property
    def state_layout(self):
        return StateLayout([((self._values - 3,), (3, 1))])

    def new_pages(self, count):
        return TokenPages(self.page_layout, count)

    def logits(self, batch, pages, hidden=None):
        self.passes += 1
        self.tokens += len(batch.tokens)
        for row, token, position in zip(batch.sequence, batch.tokens, batch.positions, strict=True):
            pages.tokens[batch.page_table[row, position // PAGE], position % PAGE] = token
        if batch.kept is not None:
            keeps = batch.kept_rows >= 0
            assert sorted(batch.kept_rows[keeps]) == list(range(len(batch.kept)))
            batch.kept[batch.kept_rows[keeps], 0] = batch.tokens[keeps]
        out = np.empty((len(batch.wanted), self.config.vocab_size), np.float32)
        places = {int(t): place for place, t in enumerate(batch.wanted)}
        for t, seed, last in states_after(batch, pages, self.state_layout):
            if t in places:
                count = batch.positions[t] + 1
                held = pages.tokens[batch.page_table[batch.sequence[t], : -(-count // PAGE)]].reshape(-1)[:count]
                out[places[t]] = hash_logits(seed, last, held, self.config.vocab_size)
        return out

    def replay(self, kept, states, slots, into):
        require_apart(slots, into)
        self.replayed += sum(map(len, kept))
        for tokens, slot, to in zip(kept, slots, into, strict=True):
            advance(self.state_layout, states, slot, to, tokens[:, 0].astype(int).tolist())


def require_apart(slots, into):
    for row, to in enumerate(into):
        others = np.arange(len(into)) != row
        assert to not in into[others] and to not in slots[others], "another sequence has the row"


def advance(layout, states, slot, into, tokens):
    """Brings a state forward; returns the number of tokens before them, and of each the hash and the last three after it."""
    (state, recent), *_ = layout.views(states[slot])
    seed, begun, last = int(state[0]), int(state[1]), [int(token) for [token] in recent]
    after = []
    for count, token in enumerate(tokens, begun):
        seed, last = hash_on(seed, count, token), [*last[1:], token]
        after.append((seed, last))
    (state, recent), *_ = layout.views(states[into])
    state[:2], recent[:, 0] = (seed, begun + len(tokens)), last
    return begun, after


def states_after(batch, pages, layout):
    """Brings the states of a batch up to date; returns each token's index with the hash and the last three tokens after it."""
    assert not pages.states[0].any(), "the zeros have been written"
    require_apart(batch.slots, batch.into)
    found = []
    for row, (slot, into) in enumerate(zip(batch.slots, batch.into, strict=True)):
        own = np.flatnonzero(batch.sequence == row)
        begun, after = advance(layout, pages.states, slot, into, batch.tokens[own].tolist())
        positions = batch.positions[own].tolist()
        assert positions == [*range(begun, begun + len(own))], f"the state is after {begun} tokens, those of {positions} ran"
        found += [(t, *each) for t, each in zip(own.tolist(), after, strict=True)]
    return found


def give_state(model, *, pages=200, rows=20):
    """Makes the logits of a model depend on such a state, too."""
    decoder, logits = model.decoder, model.decoder.logits
    decoder.__dict__["state_layout"] = layout = StateLayout([((3,), (3, 1)), *[(None, None)] * (decoder.config.layers - 1)])

    def with_state(batch, pages, *hidden):
        after = {t: seed for t, seed, _ in states_after(batch, pages, layout)}
        if isinstance(decoder, StepDecoder):  # which refuses states that no layer has
            batch, own = batch._replace(slots=None, into=None), pages.states
            pages.states = None
        out = logits(batch, pages, *hidden)
        if isinstance(decoder, StepDecoder):
            pages.states = own
        for place, t in enumerate(batch.wanted.tolist()):
            out[place, after[t] % 250] += 1
        return out

    decoder.logits = with_state
    model.cache = new_cache(decoder, pages, rows)
    return model


def hash_on(seed, position, token):
    return (seed * 31 + token * 7 + position + 1) % _MODULUS


def hash_logits(seed, last, held, vocab_size):
    """last: the last three tokens, zeros before the first. held: all tokens, as the pages hold them."""
    assert (held >= 0).all(), "a page has not been written"
    mixed = np.arange(vocab_size, dtype=np.uint64) + np.uint64(hash((seed, *last, *held.tolist())) % 2**64)
    for shift in (30, 27):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
    logits = (mixed >> np.uint64(40)).astype(np.float32) / np.float32(2**21)
    logits[3 + (int(held[-1]) - 2) % 30] += 6 * (seed % 4 > 0)  # so that texts repeat themselves, and drafts may be right
    return logits


def expected_logits(tokens, vocab_size):
    """Those of the last of tokens."""
    seed = 0
    for position, token in enumerate(tokens):
        seed = hash_on(seed, position, token)
    return hash_logits(seed, [0, 0, 0, *tokens][-3:], np.array(tokens), vocab_size)


def state_model(base, *, pages=200, rows=20, values=6):
    """A model with the tokenizer and the sizes of another and the decoder, whose cache has so many pages and rows."""
    decoder = HashDecoder(base.config, values)
    model = Model(base.path, base.tokenizer, decoder, base.template, None, cache_bytes=2**20)
    model.cache = new_cache(decoder, pages, rows)
    return model


def new_cache(decoder, pages, rows, most_kept=10**6, most_snapshots=None):
    pool = PagePool(decoder.new_storage(pages, rows + 1), most_kept)
    if most_snapshots is not None:
        pool.rows._most = most_snapshots
    return pool
