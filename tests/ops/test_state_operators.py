"""What all operators with states promise of rows and states: to the bit, whatever the cut, the batch and the threads."""

from __future__ import annotations

import hashlib
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

import decodestep as ds
from support.core_builds import VECTORS, needs_fused, printed_under
from support.recurrent_calls import OPERATORS, POISON

BACKENDS = ["cpu", "reference"]
each_operator = pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def assert_same(a, b):
    np.testing.assert_array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))


@each_operator
@each_backend
def test_a_cut_changes_no_bit(op, backend, rng):
    """Tokens one by one, in halves, in pieces of any length and none: the same results, the same state."""
    call = op.make(rng, 23, 1)
    y, state = op(call, backend=backend)
    for cuts in (range(1, 23), [11], [1], [22], [3, 3, 4, 9, 17], sorted(rng.integers(0, 24, 6))):
        parts, held = [], call["state"]
        bounds = [0, *cuts, 23]
        for first, end in pairwise(bounds):
            part, held = op(op.cut(call, slice(first, end)), state=held, backend=backend)
            parts.append(part)
        assert_same(np.concatenate(parts), y)
        assert_same(held, state)


@each_operator
def test_a_row_is_alone(op, rng):
    """Its bits are the same with any batch, lengths and threads; rows may have no tokens."""
    lengths = [5, 0, 1, 9, 2, 0, 17, 1]
    call = op.make(rng, sum(lengths), len(lengths))
    ends = np.cumsum(lengths)
    alone = [
        op(op.cut(call, slice(end - n, end)), state=call["state"][[b]])
        for b, (n, end) in enumerate(zip(lengths, ends, strict=True))
    ]
    for threads in (1, 2, 3, 7):
        with ds.use_threads(threads):
            y, state = op(call, lengths=lengths)
        assert_same(y, np.concatenate([part for part, _ in alone]))
        assert_same(state, np.concatenate([held for _, held in alone]))
    turned = np.arange(len(lengths))[::-1]
    order = np.concatenate([np.arange(ends[b] - lengths[b], ends[b]) for b in turned])
    y, state = op(op.cut(call, order), lengths=np.array(lengths)[turned], slots=turned)
    assert_same(y, np.concatenate([alone[b][0] for b in turned]))
    assert_same(state, np.concatenate([held for _, held in alone]))


@each_operator
@each_backend
def test_rows_begin_with_one_state_and_leave_another(op, backend, rng):
    """Several may begin with the same; what no row writes keeps its bits."""
    call = op.make(rng, 12, 7)
    y, state = op(call, lengths=[4, 0, 8], slots=[5, 5, 2], into=[6, 0, 2], backend=backend)
    first, left = op(op.cut(call, slice(0, 4)), slots=[5], backend=backend)
    second, right = op(op.cut(call, slice(4, 12)), slots=[2], backend=backend)
    assert_same(y, np.concatenate([first, second]))
    expected = call["state"].copy()
    expected[6], expected[0], expected[2] = left[5], call["state"][5], right[2]
    assert_same(state, expected)


@each_operator
@each_backend
def test_nothing_around_a_state_is_written(op, backend, rng):
    """States that lie apart, in any order of their axes, in place."""
    call = op.make(rng, 9, 3)
    y, state = op(call, backend=backend)
    shape = call["state"].shape
    wide = np.full([2 * n + 3 for n in shape], POISON, np.float32)
    wanted = wide.copy()
    crooked = np.frombuffer(bytearray(b"\0" + bytes(4 * call["state"].size)), np.float32, call["state"].size, 1).reshape(shape)
    axes = tuple(slice(1, 2 * n + 1, 2) for n in shape)
    packed_last = (*axes[:-1], slice(2, 2 + shape[-1]))
    turned = np.full(shape[::-1], POISON, np.float32).T
    for view in (wide[axes], wide[packed_last], wide[axes][::-1], turned, crooked):
        view[...] = call["state"]
        assert_same(getattr(ds, op.name)(**{**call, "state": view}, backend=backend), y)
        assert_same(np.array(view), state)
        view[...] = POISON
    assert_same(wide, wanted)


@each_operator
def test_views_have_the_bits_of_their_copies(op, rng):
    call = op.make(rng, 14, 2)
    y, state = op(call)
    for change in (
        lambda a: np.repeat(a, 2, 0)[::2],
        lambda a: np.repeat(a, 3, -1)[..., 1::3],
        lambda a: np.array(a[::-1])[::-1],
        np.asfortranarray,
    ):
        views = {name: change(a) if isinstance(a, np.ndarray) and name != "state" else a for name, a in call.items()}
        again, held = op(views)
        assert_same(again, y)
        assert_same(held, state)
    tensors = {name: torch.from_numpy(a.copy()) if isinstance(a, np.ndarray) else a for name, a in call.items()}
    result = getattr(ds, op.name)(**tensors)
    assert isinstance(result, torch.Tensor)
    assert_same(result.numpy(), y)
    assert_same(tensors["state"].numpy(), state)


@each_operator
@each_backend
def test_no_tokens_rows_or_states(op, backend, rng):
    call = op.make(rng, 0, 2)
    y, state = op(call, backend=backend)
    assert y.shape[0] == 0
    assert_same(state, call["state"])
    empty = op.make(rng, 0, 0)
    assert op(empty, backend=backend)[0].shape == y.shape
    y, state = op(call, slots=[], backend=backend)
    assert_same(state, call["state"])


@each_operator
@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("lengths must be given where 4 rows cannot have equal shares of 6 tokens; got None", {}),
        ("lengths must be of shape 4; got int64 2", {"lengths": [3, 3]}),
        (r"lengths must be in \[0, 6\]; got -1 to 4", {"lengths": [4, -1, 2, 1]}),
        ("lengths must be numbers whose sum is 6; got a sum of 7", {"lengths": [4, 0, 2, 1]}),
        ("lengths must be integers of rank 1; got float64 4", {"lengths": [1.5, 1.5, 1, 2]}),
        (r"slots must be in \[0, 4\); got 0 to 4", {"slots": [0, 4]}),
        ("slots must be integers of rank 1; got int64 1x2", {"slots": [[0, 1]]}),
        (r"slots must be a state for each row; got \[1, 1\]", {"slots": [1, 1]}),
        ("into must be of shape 2; got int64 1", {"slots": [1, 1], "into": [2]}),
        (r"into must be in \[0, 4\); got -1 to 3", {"slots": [1, 1], "into": [3, -1]}),
        (r"into must be a state for each row; got \[2, 2\]", {"slots": [1, 1], "into": [2, 2]}),
        (r"into must be states that no other row reads; got \[1, 0\]", {"slots": [0, 1], "into": [1, 0]}),
        (r"into must be states that no other row reads; got \[1, 2\]", {"slots": [1, 1], "into": [1, 2]}),
        ("backend must be one of 'auto', 'cpu', 'reference'; got 'gpu'", {"lengths": [1, 2, 3, 0], "backend": "gpu"}),
    ],
)  # fmt: skip
def test_rows_that_are_refused(op, message, changed, rng):
    call = op.make(rng, 6, 4)
    before = call["state"].copy()
    with pytest.raises(ValueError, match=f"^{op.name}: {message}$"):
        getattr(ds, op.name)(**{**call, **changed})
    assert_same(call["state"], before)


@each_operator
def test_states_that_are_refused(op, rng):
    call = op.make(rng, 6, 3)
    state = call["state"]
    frozen, first = state.copy(), op.by_token[0]
    frozen.flags.writeable = False
    memory = np.zeros(max(state.size, call[first].size), np.float32)
    inside = memory[: state.size].reshape(state.shape)
    for message, changed in (
        ("state must be float32 of shape", {"state": state.astype(np.float64)}),
        ("state must be float32 of shape", {"state": state[0]}),
        ("state must be float32 of shape", {"state": state[:, :, :-1]}),
        ("state must be a NumPy array or a torch tensor; got NoneType", {"state": None}),
        ("state must be writeable; got a read-only array", {"state": frozen}),
        ("state must be of elements that do not overlap in memory", {"state": np.lib.stride_tricks.as_strided(
            state, state.shape, (0, *state.strides[1:]))}),
        (f"state must be apart from {first} in memory", {"state": inside, first: memory[: call[first].size].reshape(
            call[first].shape)}),
        ("backend must be able to serve the call; got 'triton', which needs torch tensors", {"backend": "triton"}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{op.name}: {message}"):
            getattr(ds, op.name)(**{**call, **changed})
    doubles = {n: a.astype(np.float64) if isinstance(a, np.ndarray) else a for n, a in call.items()}
    with pytest.raises(ValueError, match="got 'cpu', which needs float32"):
        getattr(ds, op.name)(**doubles, backend="cpu")
    assert not memory.any()


@each_operator
def test_a_hosts_floating_point_environment_changes_no_bit(op, rng):
    call = op.make(rng, 5, 1)
    call["state"] *= np.float32(1e-39)
    y, state = op(call)
    torch.set_flush_denormal(True)
    try:
        again, held = op(call)
    finally:
        torch.set_flush_denormal(False)
    assert_same(again, y)
    assert_same(held, state)


def digest(name: str) -> str:
    """Of results and states of calls with all sizes of blocks, for a comparison of instruction sets."""
    rng, op, found = np.random.default_rng(7), OPERATORS[name], hashlib.sha256()
    for tokens in (1, 2, 40):
        for result in op(op.make(rng, tokens, 1)):
            found.update(np.asarray(result).tobytes())
    return found.hexdigest()


@needs_fused
@pytest.mark.tiers
@each_operator
@pytest.mark.parametrize("isa", VECTORS)
def test_instruction_sets_agree(op, isa):
    code = f"import sys; sys.path[:0] = {sys.path!r}; from test_state_operators import digest; print(digest({op.name!r}))"
    assert printed_under(isa, code) == digest(op.name)
